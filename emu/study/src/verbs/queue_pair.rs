//! Reliable queue pairs: making and connecting them.
#![allow(unsafe_code)]

use std::mem::zeroed;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use urxe_abi::*;

use super::completion::{CompletionQueue, Queue};
use super::context::Port;
use super::error::{Error, Result, check};
use super::library::{self, library};
use super::memory::ProtectionDomain;
use super::post::{Poster, WorkRequests};
use crate::work::Api;

/// A queue pair of the reliable connected service.
#[derive(Debug)]
pub struct QueuePair {
    pub(super) raw: *mut ibv_qp,
    pub(super) poster: Poster,
    _domain: Arc<ProtectionDomain>,
    _completions: Arc<Queue>,
}

// SAFETY: verbs may be called by any thread.
unsafe impl Send for QueuePair {}

/// Sizes of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Requests in the send queue.
    pub send: u32,
    /// Receives in the receive queue.
    pub receive: u32,
    /// Bytes of inline data.
    pub inline: u32,
}

/// What one end of a connection has to know of the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Destination {
    /// Number of the queue pair.
    pub number: u32,
    /// First PSN that it sends.
    pub psn: u32,
    /// GID of its port; zeros where none is needed.
    pub gid: [u8; 16],
    /// LID of its port.
    pub lid: u16,
    /// `IBV_MTU_*` of its port.
    pub mtu: u32,
    /// READs and atomics that it takes at a time.
    pub reads: u8,
}

/// The operations of [`Api::WorkRequest`] that are asked for.
const OPERATIONS: u32 =
    IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ;

impl QueuePair {
    /// A queue pair whose requests and receives complete to `completions`.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        completions: &CompletionQueue,
        sizes: Sizes,
        api: Api,
        atomics: bool,
    ) -> Result<Self> {
        let (raw, poster) = match api {
            Api::PostSend => create(domain, completions, sizes)?,
            Api::WorkRequest => create_extended(domain, completions, sizes, atomics)?,
        };
        Ok(Self { raw, poster, _domain: domain.clone(), _completions: completions.queue.clone() })
    }

    /// What the other end has to know.
    pub fn destination(&self, port: &Port, psn: u32, reads: u8) -> Destination {
        Destination { number: self.number(), psn, gid: port.gid, lid: port.lid, mtu: port.mtu, reads }
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair lives.
        unsafe { (*self.raw).qp_num }
    }

    /// Connects it to another one. `own` is what that one has been told.
    pub fn connect(&self, port: &Port, own: &Destination, peer: &Destination) -> Result<()> {
        self.initialise(port)?;
        self.ready_to_receive(port, own, peer)?;
        self.ready_to_send(own, peer)
    }

    fn initialise(&self, port: &Port) -> Result<()> {
        let mut attributes = attributes(IBV_QPS_INIT);
        attributes.port_num = port.number;
        attributes.qp_access_flags = IBV_ACCESS_LOCAL_WRITE
            | IBV_ACCESS_REMOTE_WRITE
            | IBV_ACCESS_REMOTE_READ
            | IBV_ACCESS_REMOTE_ATOMIC;
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        match self.modify(&mut attributes, mask) {
            Err(error) if error.errno() == Some(libc::EINVAL) => {
                // Some devices without atomics do not take their flag.
                attributes.qp_access_flags &= !IBV_ACCESS_REMOTE_ATOMIC;
                self.modify(&mut attributes, mask)
            }
            other => other,
        }
    }

    fn ready_to_receive(&self, port: &Port, own: &Destination, peer: &Destination) -> Result<()> {
        let mut attributes = attributes(IBV_QPS_RTR);
        attributes.path_mtu = own.mtu.min(peer.mtu);
        attributes.dest_qp_num = peer.number;
        attributes.rq_psn = peer.psn;
        attributes.max_dest_rd_atomic = own.reads;
        // 0.64 ms.
        attributes.min_rnr_timer = 12;
        attributes.ah_attr.port_num = port.number;
        attributes.ah_attr.dlid = peer.lid;
        if port.global {
            attributes.ah_attr.is_global = 1;
            attributes.ah_attr.grh.dgid.raw = peer.gid;
            attributes.ah_attr.grh.sgid_index = port.gid_index;
            attributes.ah_attr.grh.hop_limit = 64;
        }
        let path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        let responder = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attributes, IBV_QP_STATE | path | responder)
    }

    fn ready_to_send(&self, own: &Destination, peer: &Destination) -> Result<()> {
        let mut attributes = attributes(IBV_QPS_RTS);
        attributes.sq_psn = own.psn;
        // 67 ms, and 7 times that before a peer counts as lost; one that is not ready is waited for.
        attributes.timeout = 14;
        attributes.retry_cnt = 7;
        attributes.rnr_retry = 7;
        attributes.max_rd_atomic = own.reads.min(peer.reads);
        let retries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
        self.modify(&mut attributes, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | retries)
    }

    fn modify(&self, attributes: &mut ibv_qp_attr, mask: u32) -> Result<()> {
        // SAFETY: the queue pair lives and the attributes are valid.
        check("ibv_modify_qp", unsafe { (library()?.ibv_modify_qp)(self.raw, attributes, mask as i32) })
    }
}

fn attributes(state: u32) -> ibv_qp_attr {
    // SAFETY: numbers.
    let mut attributes: ibv_qp_attr = unsafe { zeroed() };
    attributes.qp_state = state;
    attributes
}

fn caps(sizes: Sizes) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: sizes.send,
        max_recv_wr: sizes.receive,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: sizes.inline,
    }
}

fn create(
    domain: &ProtectionDomain,
    completions: &CompletionQueue,
    sizes: Sizes,
) -> Result<(*mut ibv_qp, Poster)> {
    // SAFETY: numbers and null pointers.
    let mut attributes: ibv_qp_init_attr = unsafe { zeroed() };
    attributes.send_cq = completions.queue.raw;
    attributes.recv_cq = completions.queue.raw;
    attributes.cap = caps(sizes);
    attributes.qp_type = IBV_QPT_RC;
    // SAFETY: domain and queue live; the attributes are valid.
    let raw = unsafe { (library()?.ibv_create_qp)(domain.raw, &mut attributes) };
    match raw.is_null() {
        true => Err(Error::last("ibv_create_qp")),
        // SAFETY: it is new.
        false => Ok((raw, unsafe { Poster::new(raw, None)? })),
    }
}

fn create_extended(
    domain: &ProtectionDomain,
    completions: &CompletionQueue,
    sizes: Sizes,
    atomics: bool,
) -> Result<(*mut ibv_qp, Poster)> {
    let missing = |why: String| {
        let name = domain.context.name();
        Error::Unsupported(format!("{name} has no ibv_wr_* functions ({why}); only post-send works with it"))
    };
    let atomic = if atomics { IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD } else { 0 };
    // SAFETY: numbers and null pointers.
    let mut attributes: ibv_qp_init_attr_ex = unsafe { zeroed() };
    attributes.send_cq = completions.queue.raw;
    attributes.recv_cq = completions.queue.raw;
    attributes.cap = caps(sizes);
    attributes.qp_type = IBV_QPT_RC;
    attributes.pd = domain.raw;
    attributes.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attributes.send_ops_flags = u64::from(OPERATIONS | atomic);
    let context = domain.context.raw;
    // SAFETY: the domain holds its context.
    let create = unsafe { library::create_qp_ex(context) };
    let create = create.ok_or_else(|| missing("there is no ibv_create_qp_ex".to_owned()))?;
    // SAFETY: domain and queue live; the attributes are valid.
    let raw = unsafe { create(context, &mut attributes) };
    if raw.is_null() {
        return Err(match Error::last("ibv_create_qp_ex") {
            error if error.is_unsupported() => missing(error.to_string()),
            error => error,
        });
    }
    // SAFETY: it is new, and was made with operations.
    let poster = unsafe {
        let extended = (library()?.ibv_qp_to_qp_ex)(raw);
        WorkRequests::of(extended).and_then(|requests| Poster::new(raw, Some(requests)).ok())
    };
    poster.map(|poster| (raw, poster)).ok_or_else(|| {
        if let Ok(library) = library() {
            // SAFETY: nobody else has it.
            unsafe { (library.ibv_destroy_qp)(raw) };
        }
        missing("some are null".to_owned())
    })
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if let Ok(library) = library() {
            // SAFETY: it is this one's.
            unsafe { (library.ibv_destroy_qp)(self.raw) };
        }
    }
}
