//! Answers `urxe stat`: the daemon's own facts, and what the processes say of themselves.

use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::time::Duration;

use urxe_control::protocol::{
    DaemonStatus, DeviceStatus, MAX_MESSAGE, Notice, ProcessReport, ProcessStatus, Reply,
};

use crate::client::{ClientId, Handle};
use crate::server::{Daemon, State};

/// How long processes may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of a message that a report may have; the rest is for what the daemon adds.
const MAX_REPORT: usize = MAX_MESSAGE - 8192;

/// A question that processes are answering.
pub(crate) struct Question {
    asker: Weak<Handle>,
    waiting: BTreeSet<ClientId>,
}

impl State {
    /// The daemon's own facts.
    pub(crate) fn status(&self, fabric: &str, uptime: Duration) -> DaemonStatus {
        let devices = self.devices.values().map(|device| {
            let (slots, draining) = device.counts();
            DeviceStatus {
                address: device.address,
                node: device.node,
                rail: device.rail,
                interface: device.interface.clone(),
                slots,
                draining,
                groups: device
                    .multicast
                    .iter()
                    .map(|(group, members)| (*group, members.len() as u32))
                    .collect(),
            }
        });
        let listeners: BTreeSet<_> = self.manager.listeners().collect();
        let listeners =
            listeners.into_iter().filter_map(|owner| Some(self.clients.get(&ClientId(owner.0))?.pid));
        let counters = self.manager.counters().named().chain(self.wire.counters.all());
        DaemonStatus {
            pid: std::process::id(),
            fabric: fabric.to_owned(),
            uptime_ms: uptime.as_millis() as u64,
            devices: devices.collect(),
            endpoints: self.manager.endpoints() as u32,
            // What fits the message beside the rest; nobody looks for more.
            listeners: listeners.take(1024).collect(),
            counters: counters.map(|(name, value)| (name.to_owned(), value)).collect(),
        }
    }

    fn leases_of(&self, client: ClientId) -> Vec<(std::net::IpAddr, u8)> {
        let of = |d: &crate::device::Device| {
            d.slots_of(client).into_iter().map(|slot| (d.address, slot)).collect::<Vec<_>>()
        };
        self.devices.values().flat_map(of).collect()
    }
}

impl Daemon {
    /// Answers with the daemon's facts, and asks all processes that have devices for theirs.
    pub(crate) fn ask_all(self: &Rc<Self>, asker: &Rc<Handle>, number: u32) {
        let mut state = self.state.borrow_mut();
        let status = state.status(self.fabric(), self.uptime());
        asker.reply(number, Reply::Status(status));
        state.last_question = state.last_question.wrapping_add(1);
        let question = state.last_question;
        let mut waiting = BTreeSet::new();
        for (id, client) in &state.clients {
            if *id != asker.id && !state.leases_of(*id).is_empty() {
                client.notice(Notice::Report(question));
                waiting.insert(*id);
            }
        }
        state.questions.insert(question, Question { asker: Rc::downgrade(asker), waiting });
        drop(state);
        self.end_if_answered(question);
        let daemon = self.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(PATIENCE).await;
            daemon.end(question);
        });
    }

    /// A process has answered.
    pub(crate) fn answered(&self, handle: &Handle, mut report: ProcessReport) {
        let mut state = self.state.borrow_mut();
        let leases = state.leases_of(handle.id);
        let Some(question) = state.questions.get_mut(&report.number) else { return };
        if !question.waiting.remove(&handle.id) {
            return;
        }
        let number = report.number;
        let asker = question.asker.upgrade();
        drop(state);
        if let Some(asker) = asker {
            let length =
                |r: &ProcessReport| urxe_control::connection::encode(r).map_or(usize::MAX, |b| b.len());
            while length(&report) > MAX_REPORT && report.devices.pop().is_some() {}
            let (pid, program) = (handle.pid, handle.program.clone());
            asker.notice(Notice::Process(ProcessStatus { pid, program, leases, report }));
        }
        self.end_if_answered(number);
    }

    /// A client is gone: nobody waits for its answer.
    pub(crate) fn will_not_answer(&self, client: ClientId) {
        let mut state = self.state.borrow_mut();
        let open: Vec<u32> = state.questions.keys().copied().collect();
        for question in state.questions.values_mut() {
            question.waiting.remove(&client);
        }
        drop(state);
        open.into_iter().for_each(|question| self.end_if_answered(question));
    }

    fn end_if_answered(&self, question: u32) {
        let answered = self.state.borrow().questions.get(&question).is_some_and(|q| q.waiting.is_empty());
        if answered {
            self.end(question);
        }
    }

    fn end(&self, question: u32) {
        let Some(question) = self.state.borrow_mut().questions.remove(&question) else { return };
        if let Some(asker) = question.asker.upgrade() {
            asker.notice(Notice::End { silent: question.waiting.len() as u32 });
        }
    }
}
