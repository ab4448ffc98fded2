//! A connection to a daemon: messages and the descriptors beside them.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;
use crate::client::PATIENCE;
use crate::protocol::{
    Hello, MAGIC, MAX_MESSAGE, Notice, Numbered, ProcessReport, Reply, Request, ToClient, VERSION, Welcome,
};

/// Descriptors beside a message, at most.
const MAX_DESCRIPTORS: usize = 8;

/// Descriptors that came beside a message.
pub type Descriptors = Vec<OwnedFd>;

/// The client's end of a connection to a daemon.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
}

impl Connection {
    /// Connects to the daemon that listens on a socket; `None` if nobody listens.
    pub fn open(path: &Path) -> Result<Option<Self>, Error> {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(Error::io("make a socket"))?;
        // Also how long to wait for room in the queue of connections.
        let time = Some(PATIENCE);
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, time)
            .map_err(Error::io("set a time-out"))?;
        let address = SocketAddrUnix::new(path).map_err(Error::io("name the daemon's socket"))?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => {}
            Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(None),
            Err(Errno::AGAIN) => return Err(Error::Timeout),
            Err(e) => return Err(Error::io("connect to the daemon")(e)),
        }
        let peer = crate::peer(socket.as_fd())
            .map_err(|source| Error::Io { what: "see who the daemon is", source })?;
        if peer.user != rustix::process::geteuid().as_raw() {
            return Err(Error::Foreign { path: path.into(), uid: peer.user });
        }
        let connection = Self { socket };
        Ok(connection.greet(path)?.then_some(connection))
    }

    /// Says who we are. False: the daemon left before it answered.
    fn greet(&self, path: &Path) -> Result<bool, Error> {
        let mut message = MAGIC.to_vec();
        message.extend(VERSION.to_le_bytes());
        message.extend(encode(&Hello { program: program() })?);
        match send(self.socket.as_fd(), &message, &[]) {
            Ok(()) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => return Ok(false),
            Err(e) => return Err(Error::io("greet the daemon")(e)),
        }
        if !readable(self.socket.as_fd(), Instant::now() + PATIENCE)? {
            return Err(Error::Timeout);
        }
        let mut buffer = vec![0; MAX_MESSAGE];
        let length = match receive(self.socket.as_fd(), &mut buffer, &mut Vec::new()) {
            Ok(0) | Err(Errno::CONNRESET) => return Ok(false),
            Ok(length) => length,
            Err(e) => return Err(Error::io("hear the daemon")(e)),
        };
        let message = buffer.get(..length).unwrap_or_default();
        let theirs = version_of(message).ok_or(Error::Protocol("no greeting"))?;
        if theirs != VERSION {
            return Err(Error::Version { path: path.into(), theirs });
        }
        match decode(message.get(GREETING..).unwrap_or_default())? {
            Welcome::Ready { .. } => Ok(true),
            Welcome::Refused(failure) => Err(failure.into()),
        }
    }

    /// Sends a request. Any thread may; it waits for room for [`PATIENCE`].
    pub fn send(&self, number: u32, body: &Request, beside: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let bytes = encode(&Numbered { number, body })?;
        if bytes.len() > MAX_MESSAGE {
            return Err(Error::TooLong(bytes.len()));
        }
        send(self.socket.as_fd(), &bytes, beside).map_err(|e| match e {
            Errno::AGAIN => Error::Timeout,
            e => Error::Lost(std::io::Error::from(e).to_string()),
        })
    }

    /// Sends a report, with fewer queue pairs if all are too long for a message.
    pub fn send_report(&self, mut report: ProcessReport) -> Result<(), Error> {
        loop {
            match self.send(0, &Request::Report(report.clone()), &[]) {
                Err(Error::TooLong(_)) if report.devices.iter().any(|d| !d.qps.is_empty()) => {
                    for device in &mut report.devices {
                        device.qps.truncate(device.qps.len() / 2);
                    }
                }
                result => return result,
            }
        }
    }

    /// The next message if there is one; one thread at a time.
    pub fn receive(&self, buffer: &mut Vec<u8>) -> Result<Option<(ToClient, Descriptors)>, Error> {
        buffer.resize(MAX_MESSAGE, 0);
        let mut beside = Vec::new();
        let length = match receive(self.socket.as_fd(), buffer, &mut beside) {
            Ok(0) => return Err(Error::Lost("it ended".into())),
            Ok(length) => length,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(e) => return Err(Error::Lost(std::io::Error::from(e).to_string())),
        };
        Ok(Some((decode(buffer.get(..length).unwrap_or_default())?, beside)))
    }

    /// Asks and waits for the answer; `notice` gets what comes in between.
    pub fn ask(
        &self,
        body: &Request,
        beside: &[BorrowedFd<'_>],
        mut notice: impl FnMut(Notice),
    ) -> Result<(Reply, Descriptors), Error> {
        const NUMBER: u32 = 0;
        self.send(NUMBER, body, beside)?;
        let end = Instant::now() + PATIENCE;
        loop {
            match self.next(end)? {
                (ToClient::Reply(Numbered { number: NUMBER, body: Reply::Failed(failure) }), _) => {
                    return Err(failure.into());
                }
                (ToClient::Reply(Numbered { number: NUMBER, body }), beside) => return Ok((body, beside)),
                (ToClient::Reply(_), _) => {}
                (ToClient::Notice(n), _) => notice(n),
            }
        }
    }

    /// Waits for the next message.
    pub fn next(&self, end: Instant) -> Result<(ToClient, Descriptors), Error> {
        let mut buffer = Vec::new();
        while readable(self.socket.as_fd(), end)? {
            if let Some(message) = self.receive(&mut buffer)? {
                return Ok(message);
            }
        }
        Err(Error::Timeout)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Bytes before a [`Hello`] or [`Welcome`].
pub const GREETING: usize = MAGIC.len() + 2;

/// The version in a greeting; `None` if it is none.
pub fn version_of(message: &[u8]) -> Option<u16> {
    let version = message.strip_prefix(&MAGIC)?.first_chunk()?;
    Some(u16::from_le_bytes(*version))
}

/// A message as bytes.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, Error> {
    postcard::to_stdvec(message).map_err(|_| Error::Protocol("nothing: a message cannot be written"))
}

/// A message from bytes: all of them.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(Error::Protocol("a message that cannot be read")),
    }
}

/// Sends a packet with descriptors beside it.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], beside: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !beside.is_empty() && !control.push(SendAncillaryMessage::ScmRights(beside)) {
        return Err(Errno::INVAL);
    }
    loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            result => return result.map(|_| ()),
        }
    }
}

/// Receives a packet without waiting; 0 bytes: the other end has closed. A packet that does not fit is `EMSGSIZE`.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], beside: &mut Descriptors) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received =
        rustix::net::recvmsg(socket, &mut [std::io::IoSliceMut::new(buffer)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            beside.extend(descriptors);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE);
    }
    Ok(received.bytes)
}

/// Waits until a socket can be read; false: not in time.
fn readable(socket: BorrowedFd<'_>, end: Instant) -> Result<bool, Error> {
    Ok(wait(&[socket], Some(end))?.first().copied().unwrap_or(false))
}

/// Waits until one of the descriptors can be read, and says which can.
pub(crate) fn wait(sources: &[BorrowedFd<'_>], end: Option<Instant>) -> Result<Vec<bool>, Error> {
    let mut all: Vec<PollFd<'_>> =
        sources.iter().map(|s| PollFd::from_borrowed_fd(*s, PollFlags::IN)).collect();
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let time = left.map(timespec);
        match rustix::event::poll(&mut all, time.as_ref()) {
            Err(Errno::INTR) => {}
            Err(e) => return Err(Error::io("wait")(e)),
            Ok(_) => return Ok(all.iter().map(|p| !p.revents().is_empty()).collect()),
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

/// The name of this program.
fn program() -> String {
    let name = std::fs::read("/proc/self/comm").unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}
