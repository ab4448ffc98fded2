//! Time as the engine sees it: a number that the caller passes in.

/// Nanoseconds since an arbitrary start. The engine never reads a clock; a simulation counts its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// The start of time.
    pub const ZERO: Self = Self(0);
    /// Later than anything.
    pub const NEVER: Self = Self(u64::MAX);

    /// This instant plus `ns` nanoseconds; [`Instant::NEVER`] on overflow.
    pub const fn plus(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }
    /// Nanoseconds since `earlier`; 0 if that lies ahead.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// How long something takes that is made slow on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Latency {
    /// None.
    #[default]
    None,
    /// Always the same, in ns.
    Fixed(u64),
    /// Anything between, equally likely, in ns.
    Uniform(u64, u64),
    /// Exponentially distributed with this mean, in ns; at most 20 times it.
    Exponential(u64),
}

impl Latency {
    /// One latency in ns, from a random number.
    pub(crate) fn sample(self, random: u64) -> u64 {
        match self {
            Self::None => 0,
            Self::Fixed(ns) => ns,
            Self::Uniform(low, high) => {
                low + ((u128::from(random) * u128::from(high - low + 1)) >> 64) as u64
            }
            Self::Exponential(mean) => {
                let unit = ((random >> 11) + 1) as f64 / (1_u64 << 53) as f64;
                (-unit.ln() * mean as f64).min(20.0 * mean as f64) as u64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_have_the_distribution_that_was_asked_for() {
        let mean = |latency: Latency| {
            let n = 10_000_u64;
            let step = u64::MAX / n;
            (0..n).map(|i| latency.sample(i * step)).sum::<u64>() as f64 / n as f64
        };
        assert_eq!(mean(Latency::None), 0.0);
        assert_eq!(mean(Latency::Fixed(7)), 7.0);
        assert!((mean(Latency::Uniform(1000, 3000)) - 2000.0).abs() < 5.0);
        assert!((mean(Latency::Exponential(1000)) - 1000.0).abs() < 10.0);
        assert_eq!(Latency::Uniform(5, 6).sample(u64::MAX), 6);
        assert_eq!(Latency::Exponential(1000).sample(0), 20_000);
    }
}
