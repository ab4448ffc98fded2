//! Requests that nobody hears yet, and that wait a moment for somebody to listen: see [`Manager::set_patience`].

use std::net::IpAddr;

use super::super::message::{IpHeader, Message, padded};
use super::Manager;
use super::receive::port_of;
use crate::time::Instant;

/// Requests that wait; more are refused at once.
const MAX_HELD: usize = 256;

/// What to do with a request that nobody hears.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unheard {
    Hold,
    Refuse,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) until: Instant,
    pub(super) at: IpAddr,
    from: IpAddr,
    transaction: u64,
    message: Message,
}

impl Manager {
    /// Lets a request wait, if there is room. One that waits already is ignored.
    pub(super) fn hold(
        &mut self,
        now: Instant,
        at: IpAddr,
        from: IpAddr,
        transaction: u64,
        message: Message,
    ) -> bool {
        let same =
            |h: &Held| (h.at, h.from, h.transaction) == (at, from, transaction) && h.message == message;
        if self.held.iter().any(same) {
            self.counters.duplicates += 1;
            return true;
        }
        if self.patience == 0 || self.held.len() >= MAX_HELD {
            return false;
        }
        self.held.push_back(Held { until: now.plus(self.patience), at, from, transaction, message });
        true
    }

    /// Somebody listens who did not before.
    pub(super) fn release_held(&mut self, now: Instant) {
        let mut kept = std::mem::take(&mut self.held);
        let (heard, unheard): (Vec<_>, Vec<_>) = kept.drain(..).partition(|h| self.is_heard(h));
        self.held = unheard.into();
        heard.into_iter().for_each(|h| self.handle_held(now, h));
    }

    /// Those whose time is up.
    pub(super) fn refuse_held(&mut self, now: Instant) {
        while let Some(held) = self.held.pop_front_if(|h| h.until <= now) {
            self.handle_held(now, held);
        }
    }

    fn is_heard(&self, held: &Held) -> bool {
        let (service_id, data) = match &held.message {
            Message::Req(req) => (req.service_id, &req.private_data[..]),
            Message::SidrReq(req) => (req.service_id, &req.private_data[..]),
            _ => return false,
        };
        port_of(service_id)
            .zip(IpHeader::parse(&padded(data)))
            .and_then(|((space, port), header)| {
                self.ports.listener(space, port, held.at, header.destination.to_canonical())
            })
            .is_some()
    }

    fn handle_held(&mut self, now: Instant, held: Held) {
        let Held { at, from, transaction, message, .. } = held;
        match message {
            Message::Req(req) => self.handle_req(now, at, from, transaction, &req, Unheard::Refuse),
            Message::SidrReq(req) => self.handle_sidr_req(now, at, from, transaction, &req, Unheard::Refuse),
            _ => {}
        }
    }
}
