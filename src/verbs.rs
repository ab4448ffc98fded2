//! The verbs vocabulary: work requests, completions, attributes and limits, as safe types.
//!
//! The values are those of `verbs.h`, so that the C interface only has to cast.

use std::sync::Arc;

use crate::ids::{Gid, LKey, Lid, Mtu, Psn, QKey, Qpn, RKey};
use crate::mem::Access;
use crate::wire::Path;

/// What kind of service a queue pair gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum QpType {
    /// Reliable connected.
    Rc = 2,
    /// Unreliable connected.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
}

/// The states of a queue pair (IBA 10.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum QpState {
    /// As created.
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// The send queue drains: no new work request is begun.
    Sqd = 4,
    /// The send queue failed, receives go on (UC and UD).
    Sqe = 5,
    /// Everything is flushed.
    Err = 6,
}

/// A piece of registered memory. Laid out as `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// First byte, in the address space of the key.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// The key.
    pub lkey: LKey,
}

/// Memory of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remote {
    /// First byte, in the address space of the key.
    pub addr: u64,
    /// The key.
    pub rkey: RKey,
}

/// What a send work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm([u8; 4]),
    /// RDMA WRITE.
    Write(Remote),
    /// RDMA WRITE with immediate data: takes a receive of the peer.
    WriteImm(Remote, [u8; 4]),
    /// RDMA READ.
    Read(Remote),
    /// Compare and swap of 8 bytes.
    CompareSwap {
        /// Where.
        remote: Remote,
        /// Swap if it is this.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Fetch and add of 8 bytes.
    FetchAdd {
        /// Where.
        remote: Remote,
        /// What to add.
        add: u64,
    },
}

/// Flags of a send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendFlags(pub u32);

impl SendFlags {
    /// Wait for earlier READs and atomics.
    pub const FENCE: Self = Self(1);
    /// Make a completion.
    pub const SIGNALED: Self = Self(2);
    /// Make a solicited event at the receiver.
    pub const SOLICITED: Self = Self(4);
    /// The data is copied while posting; keys are not looked at.
    pub const INLINE: Self = Self(8);
    /// Every flag there is.
    pub const ALL: Self = Self(15);

    /// Whether all flags of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
    /// Both.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Where a datagram goes.
#[derive(Clone, Debug)]
pub struct UdDest {
    /// The address handle's path.
    pub path: Arc<Path>,
    /// The queue pair there.
    pub qpn: Qpn,
    /// Its key. With the top bit set, the sender's own Q_Key is used instead (IBA 10.2.5).
    pub qkey: QKey,
}

/// A send work request, as posted.
#[derive(Clone, Debug)]
pub struct SendWr<'a> {
    /// The program's name for it.
    pub id: u64,
    /// What it does.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// The local memory. With [`SendFlags::INLINE`] the keys are ignored.
    pub sges: &'a [Sge],
    /// Where to, on a datagram queue pair.
    pub ud: Option<UdDest>,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// The program's name for it.
    pub id: u64,
    /// The local memory.
    pub sges: &'a [Sge],
}

/// Why a work request could not be posted. Requests before it were taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// The queue pair is in a state in which nothing may be posted.
    #[error("the queue pair is in state {0:?}")]
    State(QpState),
    /// The queue is full.
    #[error("the queue holds {0} work requests already, as many as it was made for")]
    Full(u32),
    /// More scatter/gather elements than the queue pair was made for.
    #[error("{have} scatter/gather elements, but the queue was made for {max}")]
    TooManySges {
        /// Given.
        have: usize,
        /// Allowed.
        max: u32,
    },
    /// Inline data longer than the queue pair was made for.
    #[error("{have} bytes of inline data, but the queue pair was made for {max}")]
    InlineTooLong {
        /// Given.
        have: u64,
        /// Allowed.
        max: u32,
    },
    /// A message longer than 2^31 bytes, or a datagram longer than the MTU.
    #[error("a message of {have} bytes, but at most {max} are possible")]
    TooLong {
        /// Given.
        have: u64,
        /// Allowed.
        max: u64,
    },
    /// The operation is not defined for this type of queue pair, or its flags are not.
    #[error("{0} is not possible on a {1:?} queue pair")]
    Unsupported(&'static str, QpType),
    /// A datagram without an address handle.
    #[error("a datagram needs an address handle")]
    NoAddress,
    /// Inline data could not be read.
    #[error("inline data at {0:#x} cannot be read")]
    Fault(u64),
    /// A receive was posted to a queue pair that takes them from a shared receive queue.
    #[error("the queue pair takes its receives from a shared receive queue")]
    HasSrq,
}

/// How a work request ended: the values of `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[allow(missing_docs)]
pub enum WcStatus {
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    GeneralErr = 21,
}

/// What a completion is of: the values of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[allow(missing_docs)]
pub enum WcOpcode {
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    Recv = 128,
    RecvRdmaWithImm = 129,
}

/// A work completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wc {
    /// The program's name for the request.
    pub id: u64,
    /// How it ended. If not [`WcStatus::Success`], only `id`, `qpn` and `vendor_error` are valid besides.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Which check failed, for diagnostics.
    pub vendor_error: u32,
    /// Bytes received, read or swapped.
    pub byte_len: u32,
    /// Immediate data, as carried on the wire.
    pub immediate: Option<[u8; 4]>,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The sender's, on a datagram queue pair.
    pub src_qpn: Qpn,
    /// Whether the first 40 bytes of the buffer are a GRH.
    pub grh: bool,
    /// The sender's LID.
    pub slid: Lid,
    /// The sender asked for a solicited event.
    pub solicited: bool,
    /// When it was made, in ns of the device's clock.
    pub timestamp: u64,
}

impl Wc {
    /// A successful completion with nothing special about it.
    pub fn new(id: u64, opcode: WcOpcode, qpn: Qpn, byte_len: u32) -> Self {
        Self {
            id,
            status: WcStatus::Success,
            opcode,
            vendor_error: 0,
            byte_len,
            immediate: None,
            qpn,
            src_qpn: Qpn(0),
            grh: false,
            slid: Lid(0),
            solicited: false,
            timestamp: 0,
        }
    }
    /// A failed one.
    pub fn failed(id: u64, opcode: WcOpcode, qpn: Qpn, status: WcStatus) -> Self {
        Self { status, ..Self::new(id, opcode, qpn, 0) }
    }
}

/// Sizes of a queue pair's queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpCaps {
    /// Send work requests.
    pub max_send_wr: u32,
    /// Receive work requests.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a send.
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
}

/// An address vector: how to reach a port (`struct ibv_ah_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AddressVector {
    /// The peer's GID, if `is_global`.
    pub dgid: Gid,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// Which of our GIDs is the source.
    pub sgid_index: u8,
    /// IP time to live.
    pub hop_limit: u8,
    /// IP type of service.
    pub traffic_class: u8,
    /// The peer's LID, used if not `is_global`.
    pub dlid: Lid,
    /// Service level.
    pub sl: u8,
    /// Low bits of our LID.
    pub src_path_bits: u8,
    /// Static rate.
    pub static_rate: u8,
    /// Route by GID.
    pub is_global: bool,
    /// Our port, 1.
    pub port: u8,
}

/// Which attributes `modify` changes: the bits of `enum ibv_qp_attr_mask`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct AttrMask(pub u32);

#[allow(missing_docs)]
impl AttrMask {
    pub const STATE: Self = Self(1 << 0);
    pub const CUR_STATE: Self = Self(1 << 1);
    pub const EN_SQD_ASYNC_NOTIFY: Self = Self(1 << 2);
    pub const ACCESS_FLAGS: Self = Self(1 << 3);
    pub const PKEY_INDEX: Self = Self(1 << 4);
    pub const PORT: Self = Self(1 << 5);
    pub const QKEY: Self = Self(1 << 6);
    pub const AV: Self = Self(1 << 7);
    pub const PATH_MTU: Self = Self(1 << 8);
    pub const TIMEOUT: Self = Self(1 << 9);
    pub const RETRY_CNT: Self = Self(1 << 10);
    pub const RNR_RETRY: Self = Self(1 << 11);
    pub const RQ_PSN: Self = Self(1 << 12);
    pub const MAX_QP_RD_ATOMIC: Self = Self(1 << 13);
    pub const ALT_PATH: Self = Self(1 << 14);
    pub const MIN_RNR_TIMER: Self = Self(1 << 15);
    pub const SQ_PSN: Self = Self(1 << 16);
    pub const MAX_DEST_RD_ATOMIC: Self = Self(1 << 17);
    pub const PATH_MIG_STATE: Self = Self(1 << 18);
    pub const CAP: Self = Self(1 << 19);
    pub const DEST_QPN: Self = Self(1 << 20);
    pub const RATE_LIMIT: Self = Self(1 << 25);
    /// Every bit that is defined.
    pub const ALL: Self = Self(0x021f_ffff);

    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl std::fmt::Debug for AttrMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const NAMES: [(u32, &str); 22] = [
            (0, "STATE"),
            (1, "CUR_STATE"),
            (2, "EN_SQD_ASYNC_NOTIFY"),
            (3, "ACCESS_FLAGS"),
            (4, "PKEY_INDEX"),
            (5, "PORT"),
            (6, "QKEY"),
            (7, "AV"),
            (8, "PATH_MTU"),
            (9, "TIMEOUT"),
            (10, "RETRY_CNT"),
            (11, "RNR_RETRY"),
            (12, "RQ_PSN"),
            (13, "MAX_QP_RD_ATOMIC"),
            (14, "ALT_PATH"),
            (15, "MIN_RNR_TIMER"),
            (16, "SQ_PSN"),
            (17, "MAX_DEST_RD_ATOMIC"),
            (18, "PATH_MIG_STATE"),
            (19, "CAP"),
            (20, "DEST_QPN"),
            (25, "RATE_LIMIT"),
        ];
        let mut first = true;
        for (bit, name) in NAMES {
            if self.0 & (1 << bit) != 0 {
                f.write_str(if first { "" } else { "|" })?;
                f.write_str(name)?;
                first = false;
            }
        }
        if first { f.write_str("none") } else { Ok(()) }
    }
}

/// The attributes of a queue pair (`struct ibv_qp_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpAttr {
    /// The state to go to.
    pub state: QpState,
    /// The state that the caller believes it to be in.
    pub cur_state: QpState,
    /// Payload bytes of a packet.
    pub path_mtu: Mtu,
    /// Key of a datagram queue pair.
    pub qkey: QKey,
    /// First PSN that is expected.
    pub rq_psn: Psn,
    /// First PSN that is sent.
    pub sq_psn: Psn,
    /// The peer.
    pub dest_qpn: Qpn,
    /// What the peer may do: bits of [`Access`].
    pub access: Access,
    /// Where the peer is.
    pub av: AddressVector,
    /// Index into the port's P_Key table.
    pub pkey_index: u16,
    /// Raise an event when the send queue is drained.
    pub en_sqd_async_notify: bool,
    /// READs and atomics that we may have outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// Code of the time that a peer waits when we have no receive.
    pub min_rnr_timer: u8,
    /// Our port.
    pub port: u8,
    /// Local ACK timeout: 4.096 us * 2^n, 0 is infinite.
    pub timeout: u8,
    /// How often a time-out is retried.
    pub retry_cnt: u8,
    /// How often "receiver not ready" is retried; 7 is forever.
    pub rnr_retry: u8,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            state: QpState::Reset,
            cur_state: QpState::Reset,
            path_mtu: Mtu::B1024,
            qkey: QKey(0),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            dest_qpn: Qpn(0),
            access: Access(0),
            av: AddressVector::default(),
            pkey_index: 0,
            en_sqd_async_notify: false,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            port: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
        }
    }
}

/// What the device can do.
pub mod limits {
    /// Work requests of a queue.
    pub const MAX_QP_WR: u32 = 32_768;
    /// Scatter/gather elements of a work request.
    pub const MAX_SGE: u32 = 32;
    /// Bytes of inline data.
    pub const MAX_INLINE: u32 = 1024;
    /// READs and atomics outstanding on a queue pair, either way.
    pub const MAX_RD_ATOMIC: u8 = 128;
    /// Queue pairs.
    pub const MAX_QP: u32 = 65_536;
    /// Completion queues.
    pub const MAX_CQ: u32 = 65_536;
    /// Entries of a completion queue.
    pub const MAX_CQE: u32 = 1 << 22;
    /// Bytes of a message (IBA 9.3.4).
    pub const MAX_MESSAGE: u64 = 1 << 31;
    /// Shared receive queues.
    pub const MAX_SRQ: u32 = 65_536;
    /// Work requests of a shared receive queue.
    pub const MAX_SRQ_WR: u32 = 32_768;
    /// Multicast groups with members.
    pub const MAX_GROUPS: u32 = 64;
    /// Queue pairs in a multicast group.
    pub const MAX_GROUP_QPS: u32 = 64;
}

/// What a program hears about without asking (IBA 11.6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum AsyncEvent {
    /// A completion queue overran.
    CqError(u32),
    /// A queue pair failed.
    QpFatal(Qpn),
    /// A peer's request was not legal.
    QpRequestError(Qpn),
    /// A peer's request had no access.
    QpAccessError(Qpn),
    /// The first packet arrived before the move to RTS.
    CommEstablished(Qpn),
    /// The send queue is drained.
    SqDrained(Qpn),
    /// The last receive of a failed queue pair on a shared receive queue is done.
    LastWqeReached(Qpn),
    /// A shared receive queue fell below its limit.
    SrqLimitReached(u32),
}
