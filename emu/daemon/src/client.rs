//! A connection of a client: messages in, a bounded queue out.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::PidfdFlags;
use serde::Serialize;
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio::sync::Notify;
use urxe_control::connection::{self, GREETING, decode, encode, version_of};
use urxe_control::protocol::{
    Failure, Hello, MAGIC, MAX_MESSAGE, Notice, Numbered, Reply, Request, ToClient, VERSION, Welcome,
};

use crate::server::Daemon;
use crate::sys;

/// A connection. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ClientId(pub(crate) u64);

/// How long a client may take to say who it is.
const GREETING_TIME: Duration = Duration::from_secs(5);
/// Messages that wait for a client that does not read. More, and it is dropped.
const MAX_QUEUE: usize = 16 << 10;
/// Their bytes.
const MAX_QUEUED_BYTES: usize = 8 << 20;
/// Messages of one client that are handled before others have their turn.
const BURST: usize = 32;

/// The end of a client's connection that the tables hold.
pub(crate) struct Handle {
    pub(crate) id: ClientId,
    pub(crate) pid: u32,
    pub(crate) program: String,
    socket: AsyncFd<OwnedFd>,
    outbox: RefCell<Outbox>,
    /// Something is in the outbox, or the connection is to end.
    kick: Notify,
    dropped: Cell<Option<&'static str>>,
    /// It has asked for something that needs the daemon to stay.
    pub(crate) asked: Cell<bool>,
    /// The daemon stays for it.
    pub(crate) needs: Cell<bool>,
}

#[derive(Default)]
struct Outbox {
    queue: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    bytes: usize,
}

impl Handle {
    /// Answers a request.
    pub(crate) fn reply(&self, number: u32, body: Reply) {
        self.send(&ToClient::Reply(Numbered { number, body }), Vec::new());
    }

    /// Answers a request that fails.
    pub(crate) fn refuse(&self, number: u32, failure: Failure) {
        tracing::info!("{} ({}): {failure}", self.program, self.pid);
        self.reply(number, Reply::Failed(failure));
    }

    /// Says something unasked.
    pub(crate) fn notice(&self, notice: Notice) {
        self.send(&ToClient::Notice(notice), Vec::new());
    }

    /// Sends a message with descriptors, now or when the client has read others.
    pub(crate) fn send(&self, message: &impl Serialize, beside: Vec<OwnedFd>) {
        if self.dropped.get().is_some() {
            return;
        }
        let bytes = match encode(message) {
            Ok(bytes) if bytes.len() <= MAX_MESSAGE => bytes,
            _ => return self.drop_it("a message for it was too long"),
        };
        let mut outbox = self.outbox.borrow_mut();
        if outbox.queue.is_empty() {
            match send_now(&self.socket, &bytes, &beside) {
                Ok(()) => return,
                Err(Errno::AGAIN) => {}
                Err(_) => return self.drop_it("it does not hear any more"),
            }
        }
        if outbox.queue.len() >= MAX_QUEUE || outbox.bytes + bytes.len() > MAX_QUEUED_BYTES {
            return self.drop_it("it does not read what it is sent");
        }
        outbox.bytes += bytes.len();
        outbox.queue.push_back((bytes, beside));
        self.kick.notify_one();
    }

    fn drop_it(&self, why: &'static str) {
        self.dropped.set(Some(why));
        self.kick.notify_one();
    }

    /// Sends what waits; false while there is more than the client takes.
    fn flush(&self) -> Result<bool, Errno> {
        let mut outbox = self.outbox.borrow_mut();
        while let Some((bytes, beside)) = outbox.queue.front() {
            match send_now(&self.socket, bytes, beside) {
                Ok(()) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(e) => return Err(e),
            }
            if let Some((bytes, _)) = outbox.queue.pop_front() {
                outbox.bytes -= bytes.len();
            }
        }
        Ok(true)
    }

    fn has_queue(&self) -> bool {
        !self.outbox.borrow().queue.is_empty()
    }
}

fn send_now(socket: &AsyncFd<OwnedFd>, bytes: &[u8], beside: &[OwnedFd]) -> Result<(), Errno> {
    let beside: Vec<_> = beside.iter().map(|fd| fd.as_fd()).collect();
    connection::send(socket.get_ref().as_fd(), bytes, &beside)
}

/// Serves one connection to its end.
pub(crate) async fn serve(daemon: Rc<Daemon>, socket: OwnedFd) {
    let peer = match urxe_control::peer(socket.as_fd()) {
        Ok(peer) => peer,
        Err(e) => return tracing::warn!("a client that cannot be identified: {e}"),
    };
    let pid = peer.process.map_or(0, |p| p.as_raw_pid() as u32);
    let socket = match sys::watch(socket, Interest::READABLE | Interest::WRITABLE) {
        Ok(socket) => socket,
        Err(e) => return tracing::warn!("process {pid} cannot be heard: {e}"),
    };
    let program: String = match tokio::time::timeout(GREETING_TIME, greet(&socket)).await {
        Ok(Ok(hello)) => hello.program.chars().filter(|c| !c.is_control()).take(64).collect(),
        Ok(Err(Some(failure))) => return refuse(&socket, failure),
        Ok(Err(None)) => return tracing::debug!("process {pid} left before it said who it is"),
        Err(_) => return tracing::warn!("process {pid} connected and said nothing"),
    };
    // Only now: the end of a connection with something unread would overtake the answer.
    let own = rustix::process::geteuid().as_raw();
    if peer.user != own {
        let message = format!("this daemon serves user {own}, and process {pid} is of user {}", peer.user);
        return refuse(&socket, Failure { errno: libc::EACCES, message });
    }
    // A child of the process may keep the connection open when it ends; this tells. Old kernels have it not.
    let life = peer.process.and_then(|p| rustix::process::pidfd_open(p, PidfdFlags::NONBLOCK).ok());
    let life = life.and_then(|fd| sys::watch(fd, Interest::READABLE).ok());
    let handle = Rc::new(Handle {
        id: daemon.next_id(),
        pid,
        program,
        socket,
        outbox: RefCell::default(),
        kick: Notify::new(),
        dropped: Cell::new(None),
        asked: Cell::new(false),
        needs: Cell::new(false),
    });
    tracing::debug!("{} ({pid}) has come", handle.program);
    daemon.enter(&handle);
    welcome(&handle.socket, &Welcome::Ready { daemon: std::process::id() });
    let why = tokio::select! {
        why = talk(&daemon, &handle) => why,
        () = ended(life) => "its process ended".to_owned(),
    };
    tracing::debug!("{} ({pid}) is gone: {why}", handle.program);
    daemon.leave(&handle);
}

/// Waits for the end of a process.
async fn ended(life: Option<AsyncFd<OwnedFd>>) {
    match life {
        Some(life) => _ = life.readable().await,
        None => std::future::pending().await,
    }
}

fn refuse(socket: &AsyncFd<OwnedFd>, failure: Failure) {
    tracing::warn!("a client is refused: {failure}");
    welcome(socket, &Welcome::Refused(failure));
}

/// Our half of the greeting. It is the first message of this direction, so there is room; if the client has gone, the
/// next read tells.
fn welcome(socket: &AsyncFd<OwnedFd>, welcome: &Welcome) {
    let mut message = MAGIC.to_vec();
    message.extend(VERSION.to_le_bytes());
    message.extend(encode(welcome).unwrap_or_default());
    let _ = send_now(socket, &message, &[]);
}

/// The client's half. `None`: it has gone.
async fn greet(socket: &AsyncFd<OwnedFd>) -> Result<Hello, Option<Failure>> {
    // A greeting is short; a longer message is none.
    let mut buffer = [0; 512];
    let protocol = |message: String| Some(Failure { errno: libc::EPROTO, message });
    let length = loop {
        let mut guard = socket.readable().await.map_err(|_| None)?;
        match guard.try_io(|s| Ok(connection::receive(s.get_ref().as_fd(), &mut buffer, &mut Vec::new())?)) {
            Ok(Ok(0)) => return Err(None),
            Ok(Ok(length)) => break length,
            Ok(Err(e)) => return Err(protocol(format!("its greeting cannot be read: {e}"))),
            Err(_) => {}
        }
    };
    let message = buffer.get(..length).unwrap_or_default();
    match version_of(message) {
        Some(VERSION) => decode(message.get(GREETING..).unwrap_or_default())
            .map_err(|_| protocol("its greeting makes no sense".into())),
        Some(theirs) => Err(protocol(format!(
            "it speaks version {theirs} of the messages, and this daemon version {VERSION}: they are of different versions \
             of urxe"
        ))),
        None => Err(protocol("it does not speak the daemon's protocol".into())),
    }
}

/// Hears a client until it goes or must go, and says why.
async fn talk(daemon: &Rc<Daemon>, handle: &Rc<Handle>) -> String {
    loop {
        if let Some(why) = handle.dropped.get() {
            tracing::warn!("{} ({}) is disconnected: {why}", handle.program, handle.pid);
            return why.into();
        }
        let interest = match handle.has_queue() {
            true => Interest::READABLE | Interest::WRITABLE,
            false => Interest::READABLE,
        };
        let mut guard = tokio::select! {
            guard = handle.socket.ready(interest) => match guard {
                Ok(guard) => guard,
                Err(e) => return e.to_string(),
            },
            () = handle.kick.notified() => continue,
        };
        if guard.ready().is_writable() {
            match handle.flush() {
                Ok(true) => {}
                Ok(false) => guard.clear_ready_matching(Ready::WRITABLE),
                Err(e) => return io::Error::from(e).to_string(),
            }
        }
        if !(guard.ready().is_readable() || guard.ready().is_read_closed()) {
            continue;
        }
        let mut ended = None;
        for _ in 0..BURST {
            let mut beside = Vec::new();
            let mut buffer = daemon.buffer.borrow_mut();
            match connection::receive(handle.socket.get_ref().as_fd(), &mut buffer, &mut beside) {
                Ok(0) => ended = Some("it closed the connection".to_owned()),
                Ok(length) => match decode::<Numbered<Request>>(buffer.get(..length).unwrap_or_default()) {
                    Ok(Numbered { number, body }) => daemon.handle(handle, number, body, beside),
                    Err(e) => ended = Some(garbage(handle, &format!("{length} bytes: {e}"))),
                },
                Err(Errno::AGAIN) => {
                    guard.clear_ready_matching(Ready::READABLE);
                    break;
                }
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => ended = Some("it ended".to_owned()),
                Err(e) => ended = Some(garbage(handle, &io::Error::from(e).to_string())),
            }
            if let Some(why) = ended {
                return why;
            }
        }
        daemon.after_requests();
        tokio::task::yield_now().await;
    }
}

fn garbage(handle: &Handle, what: &str) -> String {
    tracing::warn!(
        "{} ({}) is disconnected: a message that cannot be read ({what})",
        handle.program,
        handle.pid
    );
    "it sent garbage".into()
}
