//! Ping-pongs, as ib_send_lat and ib_write_lat have them: each end answers when it has got what the other one sent.

use crate::verbs::{Kind, Verb};
use crate::work::endpoint::{Endpoint, Id, Tag};
use crate::work::error::Result;
use crate::work::lane::{Lane, Role};
use crate::work::meter::Meter;

/// By SENDs.
pub(super) fn send<E: Endpoint>(lane: &mut Lane<E>, meter: &mut Meter) -> Result<()> {
    let mut queue = 0;
    let mut spent = None;
    meter.tick();
    while meter.take() {
        let before = meter.now();
        lane.make_room(queue)?;
        lane.post_operation(queue, false)?;
        // There are more receives, so it need not be posted before the ping.
        if let Some((queue, buffer)) = spent.take() {
            lane.post_receive(queue, buffer)?;
        }
        let pong = await_receive(lane)?;
        spent = Some((pong.queue.into(), pong.number));
        meter.tick();
        meter.sample(meter.now() - before);
        queue = (queue + 1) % lane.queues();
    }
    if let Some((queue, buffer)) = spent {
        lane.post_receive(queue, buffer)?;
    }
    Ok(())
}

/// Waits for what the other end sends, one message at a time.
pub(crate) fn await_receive<E: Endpoint>(lane: &mut Lane<E>) -> Result<Id> {
    loop {
        let mut received = None;
        // Requests that have completed with it are accounted for as well.
        for index in 0..lane.poll()? {
            let (id, completion) = lane.completion(index);
            if completion.kind == Kind::Receive {
                received = Some(id);
            }
        }
        if let Some(id) = received {
            return Ok(id);
        }
    }
}

/// By RDMA WRITEs, whose last byte the other end looks at.
pub(super) fn put<E: Endpoint>(lane: &mut Lane<E>, meter: &mut Meter) -> Result<()> {
    let mut queue = 0;
    meter.tick();
    while meter.take() {
        let before = meter.now();
        lane.exchange_put(queue)?;
        meter.tick();
        meter.sample(meter.now() - before);
        queue = (queue + 1) % lane.queues();
    }
    Ok(())
}

impl<E: Endpoint> Lane<E> {
    /// One ping and one pong, of which the initiator begins.
    pub(crate) fn exchange_put(&mut self, queue: usize) -> Result<()> {
        let offset = self.walk.next(&self.layout);
        self.pings += 1;
        match self.role {
            Role::Initiator => {
                self.write_ping(queue, offset)?;
                self.await_ping(offset)
            }
            Role::Target => {
                self.await_ping(offset)?;
                self.write_ping(queue, offset)
            }
        }
    }

    /// Writes a ping, and waits for its completion, as ib_write_lat does.
    fn write_ping(&mut self, queue: usize, offset: u64) -> Result<()> {
        let last = offset + u64::from(self.layout.bytes) - 1;
        self.endpoint.memory().write(last, self.ping_byte());
        let place = self.local(offset, self.key);
        let verb = Verb::Write(self.remote.at(self.layout.inbox + offset));
        self.post_tagged(queue, verb, place, self.payload(), Tag::Plain, true)?;
        while !self.outgoing[queue].is_empty() {
            self.take_completions()?;
        }
        Ok(())
    }

    fn await_ping(&mut self, offset: u64) -> Result<()> {
        let last = self.layout.inbox + offset + u64::from(self.layout.bytes) - 1;
        let wanted = self.ping_byte();
        while self.endpoint.memory().read(last) != wanted {
            self.patience.idle()?;
        }
        self.patience.busy();
        Ok(())
    }

    /// The last byte of the present ping. It is not 0, and not that of the ping which was in the same slot before.
    fn ping_byte(&self) -> u8 {
        let slots = self.layout.slots;
        let cycle = (1..=255).rev().find(|cycle| !slots.is_multiple_of(*cycle)).unwrap_or(255);
        (self.pings % cycle) as u8 + 1
    }
}
