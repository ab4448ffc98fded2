//! Posting requests, by either interface.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem::zeroed;

use urxe_abi::*;

use super::error::{Error, Result, check};
use super::queue_pair::QueuePair;

/// A request for the send queue, with one piece of local memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// What its completion has.
    pub id: u64,
    /// What is done.
    pub verb: Verb,
    /// How.
    pub flags: Flags,
    /// Address of the local memory.
    pub address: u64,
    /// Its length in bytes.
    pub length: u32,
    /// Its key; of no meaning for inline data.
    pub key: u32,
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImmediate(u32),
    /// RDMA WRITE.
    Write(Remote),
    /// RDMA READ.
    Read(Remote),
    /// Fetching ADD of this number.
    FetchAdd(Remote, u64),
}

/// Memory of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Its address.
    pub address: u64,
    /// Its key.
    pub key: u32,
}

/// How a request is done: any of the constants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flags(u32);

impl Flags {
    /// Nothing special.
    pub const NONE: Self = Self(0);
    /// There is a completion.
    pub const SIGNALED: Self = Self(IBV_SEND_SIGNALED);
    /// The data is taken when the request is posted.
    pub const INLINE: Self = Self(IBV_SEND_INLINE);

    /// Both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are in it.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receive {
    /// What its completion has.
    pub id: u64,
    /// Where the data goes.
    pub address: u64,
    /// Room there, in bytes.
    pub length: u32,
    /// Key of the memory.
    pub key: u32,
}

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PostReceive = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// The functions that post to a queue pair.
#[derive(Debug)]
pub(super) struct Poster {
    send: PostSend,
    receive: PostReceive,
    requests: Option<WorkRequests>,
}

impl Poster {
    /// # Safety
    /// `qp` is a queue pair that lives.
    pub(super) unsafe fn new(qp: *mut ibv_qp, requests: Option<WorkRequests>) -> Result<Self> {
        // SAFETY: by contract.
        let ops = unsafe { &(*(*qp).context).ops };
        match (ops.post_send, ops.post_recv) {
            (Some(send), Some(receive)) => Ok(Self { send, receive, requests }),
            _ => Err(Error::Unsupported("the device cannot post requests".to_owned())),
        }
    }
}

macro_rules! work_requests {
    ($($name:ident: $member:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of `ibv_wr_*` that are used. A device may lack those that were not asked for.
        #[derive(Debug)]
        pub(super) struct WorkRequests {
            qp: *mut ibv_qp_ex,
            $($name: unsafe extern "C" fn(*mut ibv_qp_ex, $($argument),*) $(-> $result)?,)*
            fetch_add: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>,
        }

        impl WorkRequests {
            /// The functions of a queue pair, if it has all of them.
            ///
            /// # Safety
            /// `qp` is null or lives.
            pub(super) unsafe fn of(qp: *mut ibv_qp_ex) -> Option<Self> {
                // SAFETY: by contract.
                let functions = unsafe { qp.as_ref()? };
                Some(Self { qp, $($name: functions.$member?,)* fetch_add: functions.wr_atomic_fetch_add })
            }
        }
    };
}

work_requests! {
    start: wr_start();
    complete: wr_complete() -> c_int;
    abort: wr_abort();
    send: wr_send();
    send_immediate: wr_send_imm(u32);
    write: wr_rdma_write(u32, u64);
    read: wr_rdma_read(u32, u64);
    element: wr_set_sge(u32, u64, u32);
    inline: wr_set_inline_data(*mut std::ffi::c_void, usize);
}

impl WorkRequests {
    /// # Safety
    /// As for [`QueuePair::post`].
    #[inline]
    unsafe fn post(&self, request: &Request) -> Result<()> {
        let qp = self.qp;
        let Request { address, length, key, flags, .. } = *request;
        // SAFETY: by contract; the calls are in the order that ibv_wr_post(3) has.
        unsafe {
            (self.start)(qp);
            (*qp).wr_id = request.id;
            (*qp).wr_flags = flags.0 & !Flags::INLINE.0;
            match request.verb {
                Verb::Send => (self.send)(qp),
                Verb::SendImmediate(number) => (self.send_immediate)(qp, number.to_be()),
                Verb::Write(remote) => (self.write)(qp, remote.key, remote.address),
                Verb::Read(remote) => (self.read)(qp, remote.key, remote.address),
                Verb::FetchAdd(remote, number) => match self.fetch_add {
                    Some(fetch_add) => fetch_add(qp, remote.key, remote.address, number),
                    None => {
                        (self.abort)(qp);
                        return Err(Error::Unsupported(
                            "the device has no ibv_wr_atomic_fetch_add".to_owned(),
                        ));
                    }
                },
            }
            match flags.has(Flags::INLINE) {
                true => (self.inline)(qp, address as *mut _, length as usize),
                false => (self.element)(qp, key, address, length),
            }
            check("ibv_wr_complete", (self.complete)(qp))
        }
    }
}

impl QueuePair {
    /// Posts a request.
    ///
    /// # Safety
    /// The local memory is registered with the key, or readable if the data is inline, and stays mapped until the
    /// request has completed; nobody has a reference to it.
    #[inline]
    pub unsafe fn post(&self, request: &Request) -> Result<()> {
        // SAFETY: by contract.
        unsafe {
            match &self.poster.requests {
                None => self.post_send(request),
                Some(requests) => requests.post(request),
            }
        }
    }

    /// # Safety
    /// As for [`Self::post`].
    #[inline]
    unsafe fn post_send(&self, request: &Request) -> Result<()> {
        let mut element = ibv_sge { addr: request.address, length: request.length, lkey: request.key };
        // SAFETY: numbers and null pointers.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        wr.wr_id = request.id;
        wr.sg_list = &mut element;
        wr.num_sge = 1;
        wr.send_flags = request.flags.0;
        let rdma = |remote: Remote| ibv_send_wr_operation {
            rdma: ibv_send_wr_rdma { remote_addr: remote.address, rkey: remote.key },
        };
        match request.verb {
            Verb::Send => wr.opcode = IBV_WR_SEND,
            Verb::SendImmediate(number) => {
                wr.opcode = IBV_WR_SEND_WITH_IMM;
                wr.imm_data = number.to_be();
            }
            Verb::Write(remote) => {
                wr.opcode = IBV_WR_RDMA_WRITE;
                wr.wr = rdma(remote);
            }
            Verb::Read(remote) => {
                wr.opcode = IBV_WR_RDMA_READ;
                wr.wr = rdma(remote);
            }
            Verb::FetchAdd(remote, number) => {
                wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
                wr.wr.atomic = ibv_send_wr_atomic {
                    remote_addr: remote.address,
                    compare_add: number,
                    swap: 0,
                    rkey: remote.key,
                };
            }
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair lives, the request is valid, and by contract its memory is.
        check("ibv_post_send", unsafe { (self.poster.send)(self.raw, &mut wr, &mut bad) })
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// The memory is registered with the key and stays mapped until the receive has completed; nobody has a reference
    /// to it.
    #[inline]
    pub unsafe fn post_receive(&self, receive: &Receive) -> Result<()> {
        let mut element = ibv_sge { addr: receive.address, length: receive.length, lkey: receive.key };
        let mut wr =
            ibv_recv_wr { wr_id: receive.id, next: std::ptr::null_mut(), sg_list: &mut element, num_sge: 1 };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair lives, the receive is valid, and by contract its memory is.
        check("ibv_post_recv", unsafe { (self.poster.receive)(self.raw, &mut wr, &mut bad) })
    }
}
