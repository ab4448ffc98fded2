//! Messages for people: off, on standard error, or in a file. The device lives in other people's programs, so without
//! being asked it says nothing.

use std::fs::OpenOptions;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::level_filters::LevelFilter;

use crate::config::{Config, LogLevel};
use crate::time::Instant;

/// Starts logging as the configuration says. Only the first call in a process has an effect.
pub fn init(config: &Config) -> io::Result<()> {
    let level = match config.log {
        LogLevel::Off => return Ok(()),
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let builder = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_target(false);
    // A second device of the process logs where the first does.
    let _ = match &config.log_file {
        Some(path) => {
            let file = OpenOptions::new().create(true).append(true).open(path)?;
            builder.with_writer(file).try_init()
        }
        None => builder.with_writer(io::stderr).without_time().try_init(),
    };
    Ok(())
}

/// Lets a few messages a second through and counts the rest: a program whose every request fails is told so, but is not
/// slowed down by it.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// The second it counts for.
    second: AtomicU64,
    passed: AtomicU64,
    suppressed: AtomicU64,
}

impl Throttle {
    const PER_SECOND: u64 = 20;

    /// Whether a message may pass now.
    pub(crate) fn passes(&self, now: Instant) -> bool {
        let second = now.0 / 1_000_000_000;
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.passed.store(0, Ordering::Relaxed);
            let n = self.suppressed.swap(0, Ordering::Relaxed);
            if n > 0 {
                tracing::warn!("{n} more messages of this kind were left out");
            }
        }
        let passes = self.passed.fetch_add(1, Ordering::Relaxed) < Self::PER_SECOND;
        if !passes {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_to_a_few_lines_a_second() {
        let t = Throttle::default();
        let passed = (0..1000).filter(|_| t.passes(Instant(5_000_000_000))).count();
        assert_eq!(passed as u64, Throttle::PER_SECOND);
        assert!(t.passes(Instant(6_000_000_000)));
    }
}
