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
