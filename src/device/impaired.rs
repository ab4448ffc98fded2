//! A device on a network that is bad on purpose: who releases the packets that its link keeps back.
//!
//! Whoever makes progress does: a program that polls, the receive thread, and, at the end, whoever drops the device.

use std::sync::Arc;
use std::time::Duration;

use super::{Clock, Core};
use crate::config::{Config, Impair};
use crate::io::Link;
use crate::io::impair::{Direction, Impaired, Impairments};
use crate::time::Instant;

/// A link that spoils what passes it.
pub(super) type BadLink = Impaired<Arc<dyn Link>>;

/// How long a device that ends waits for what is still on the way.
pub(super) const LINGER: Duration = Duration::from_secs(2);
/// How long it waits for somebody who is at work on the link.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);

/// The link with the impairments of the configuration, if there are any.
pub(super) fn impaired(config: &Config, link: &Arc<dyn Link>, clock: &Clock) -> Option<Arc<BadLink>> {
    let impairments = Impairments {
        loss: config.loss.value(),
        duplicate: config.duplicate.value(),
        reorder: config.reorder.value(),
        corrupt: config.corrupt.value(),
        delay: config.delay,
        rate: config.rate.map(|rate| rate.bytes_per_second()),
        queue: config.rate_queue.map(|queue| queue.bytes() as u64),
    };
    let direction = match config.impair {
        Impair::Send => Direction::Send,
        Impair::Receive => Direction::Receive,
        Impair::Both => Direction::Both,
    };
    let seed = u64::from(config.impair_seed.value()) + u64::from(config.node_number());
    let clock = clock.clone();
    impairments
        .any()
        .then(|| Arc::new(Impaired::new(link.clone(), impairments, direction, seed, move || clock.now())))
}

impl Core {
    /// Whether packets may have to wait in the link.
    pub(crate) fn keeps_back(&self) -> bool {
        self.impaired.is_some()
    }

    /// Sends what the link has kept back for long enough.
    pub(crate) fn release(&self, now: Instant) {
        if let Some(link) = &self.impaired {
            link.release(now);
        }
    }

    /// When the link has something to release, or to hand over.
    pub(crate) fn next_release(&self) -> Instant {
        self.impaired.as_ref().map_or(Instant::NEVER, |link| link.next_release())
    }

    /// When the link has something to release.
    pub(crate) fn next_to_send(&self) -> Instant {
        self.impaired.as_ref().map_or(Instant::NEVER, |link| link.next_to_send())
    }

    /// Something was sent or received: the receive thread must not sleep longer than the link keeps it back.
    pub(super) fn keep_awake(&self) {
        if let Some(link) = &self.impaired {
            self.attention.sends(link.next_to_send());
            self.attention.due(link.next_release());
        }
    }

    /// Waits until what was sent has left, at most for `linger`; what still waits then leaves at once. A network does not
    /// forget the packets of a program that ends. The link is not waited for beyond `patience`.
    pub(super) fn see_off(&self, linger: Duration, patience: Duration) {
        let Some(link) = &self.impaired else { return };
        let end = self.clock.now().plus(linger.as_nanos() as u64);
        while !self.manual && link.next_to_send() <= end {
            let due = link.next_to_send().since(self.clock.now());
            std::thread::sleep(Duration::from_nanos(due));
            if !link.try_release(self.clock.now(), patience) {
                return;
            }
        }
        link.flush(patience);
    }
}
