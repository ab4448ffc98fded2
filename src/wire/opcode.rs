//! The table of BTH opcodes (IBA 9.2.1, table "OpCode field", and annexes A14 for XRC, A17 for the CNP, A19 for FLUSH
//! and ATOMIC WRITE).
//!
//! Reliable datagram is left out: nothing implements it.

use super::header::{AtomicEth, Bth, Deth, Feth, MAX_HEADERS, Reth};

/// The transport service that an opcode belongs to: its top three bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// Congestion notification, which belongs to no service.
    Cnp,
}

/// What a packet does, regardless of which part of a message it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Operation {
    /// SEND, with or without immediate data or an invalidation.
    Send,
    /// RDMA WRITE, with or without immediate data.
    RdmaWrite,
    /// RDMA READ request.
    ReadRequest,
    /// Data of an RDMA READ; also answers FLUSH and ATOMIC WRITE, without data.
    ReadResponse,
    /// ACK or NAK.
    Acknowledge,
    /// The answer to a compare-and-swap or a fetch-and-add.
    AtomicAcknowledge,
    /// Atomic compare and swap.
    CompareSwap,
    /// Atomic fetch and add.
    FetchAdd,
    /// FLUSH of earlier writes to memory or to persistence.
    Flush,
    /// ATOMIC WRITE of 8 bytes.
    AtomicWrite,
    /// Congestion notification packet.
    Cnp,
}

/// Which part of its message a packet is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last of several.
    Last,
    /// The message is one packet.
    Only,
}

impl Position {
    /// Whether the packet begins a message.
    pub const fn is_start(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }
    /// Whether the packet ends a message.
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// What the last packet of a message carries beyond its data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Extra {
    /// Nothing.
    #[default]
    None,
    /// Immediate data.
    Immediate,
    /// A key for the receiver to invalidate.
    Invalidate,
}

/// A header that may follow the BTH.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Extension {
    /// XRC extended: the target's SRQ.
    Xrceth,
    /// Datagram extended.
    Deth,
    /// FLUSH extended.
    Feth,
    /// RDMA extended.
    Reth,
    /// Atomic extended.
    AtomicEth,
    /// ACK extended.
    Aeth,
    /// The old value, in the answer to an atomic.
    AtomicAckEth,
    /// Immediate data.
    Immediate,
    /// Invalidate extended.
    Ieth,
    /// The 16 reserved bytes of a CNP.
    CnpReserved,
}

impl Extension {
    /// Its bytes.
    // `len` would ask for `is_empty`, and no header is.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Xrceth | Self::Aeth | Self::Immediate | Self::Ieth => 4,
            Self::Feth => Feth::LEN,
            Self::Deth => Deth::LEN,
            Self::AtomicAckEth => 8,
            Self::Reth => Reth::LEN,
            Self::CnpReserved => 16,
            Self::AtomicEth => AtomicEth::LEN,
        }
    }
}

/// One row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpcodeInfo {
    /// The opcode that the row is about.
    pub opcode: Opcode,
    /// Its transport service.
    pub service: Service,
    /// What it does.
    pub operation: Operation,
    /// Which part of a message it is.
    pub position: Position,
    /// Whether a requester sends it (else a responder; a CNP is neither).
    pub request: bool,
    /// Whether data may follow the headers.
    pub payload: bool,
    /// Immediate data, an invalidation, or neither.
    pub extra: Extra,
    /// The headers after the BTH, in the order of the wire.
    pub extensions: &'static [Extension],
    /// Bytes of the BTH and `extensions`.
    pub header_len: usize,
}

impl OpcodeInfo {
    /// Derives from the header list and the operation all that follows from them.
    const fn row(
        opcode: Opcode,
        service: Service,
        operation: Operation,
        position: Position,
        extensions: &'static [Extension],
    ) -> Self {
        let mut header_len = Bth::LEN;
        let mut extra = Extra::None;
        let mut i = 0;
        while i < extensions.len() {
            header_len += extensions[i].bytes();
            match extensions[i] {
                Extension::Immediate => extra = Extra::Immediate,
                Extension::Ieth => extra = Extra::Invalidate,
                _ => {}
            }
            i += 1;
        }
        assert!(header_len <= MAX_HEADERS);
        let (request, payload) = match operation {
            Operation::Send | Operation::RdmaWrite | Operation::AtomicWrite => (true, true),
            Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd | Operation::Flush => {
                (true, false)
            }
            Operation::ReadResponse => (false, true),
            Operation::Acknowledge | Operation::AtomicAcknowledge | Operation::Cnp => (false, false),
        };
        Self { opcode, service, operation, position, request, payload, extra, extensions, header_len }
    }

    /// Whether the packet carries immediate data.
    pub const fn has_immediate(&self) -> bool {
        matches!(self.extra, Extra::Immediate)
    }
    /// Whether the packet names a key to invalidate.
    pub const fn has_invalidate(&self) -> bool {
        matches!(self.extra, Extra::Invalidate)
    }
    /// Whether the packet carries this header.
    pub fn has(&self, extension: Extension) -> bool {
        self.extensions.contains(&extension)
    }
}

macro_rules! opcodes {
    ($($name:ident = $code:literal, $service:ident $operation:ident $position:ident [$($extension:ident)*];)*) => {
        /// Every legal BTH opcode.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Opcode {
            $(
                #[doc = concat!(stringify!($service), " ", stringify!($operation), ", ", stringify!($position),
                    ": BTH" $(, ", ", stringify!($extension))*, ".")]
                $name = $code,
            )*
        }

        /// The table, in ascending order of the opcode.
        pub static TABLE: [OpcodeInfo; ROWS.len()] = ROWS;

        const ROWS: [OpcodeInfo; [$($code),*].len()] = [
            $(OpcodeInfo::row(
                Opcode::$name,
                Service::$service,
                Operation::$operation,
                Position::$position,
                &[$(Extension::$extension),*],
            ),)*
        ];
    };
}

opcodes! {
    RcSendFirst = 0x00, Rc Send First [];
    RcSendMiddle = 0x01, Rc Send Middle [];
    RcSendLast = 0x02, Rc Send Last [];
    RcSendLastWithImmediate = 0x03, Rc Send Last [Immediate];
    RcSendOnly = 0x04, Rc Send Only [];
    RcSendOnlyWithImmediate = 0x05, Rc Send Only [Immediate];
    RcRdmaWriteFirst = 0x06, Rc RdmaWrite First [Reth];
    RcRdmaWriteMiddle = 0x07, Rc RdmaWrite Middle [];
    RcRdmaWriteLast = 0x08, Rc RdmaWrite Last [];
    RcRdmaWriteLastWithImmediate = 0x09, Rc RdmaWrite Last [Immediate];
    RcRdmaWriteOnly = 0x0a, Rc RdmaWrite Only [Reth];
    RcRdmaWriteOnlyWithImmediate = 0x0b, Rc RdmaWrite Only [Reth Immediate];
    RcRdmaReadRequest = 0x0c, Rc ReadRequest Only [Reth];
    RcRdmaReadResponseFirst = 0x0d, Rc ReadResponse First [Aeth];
    RcRdmaReadResponseMiddle = 0x0e, Rc ReadResponse Middle [];
    RcRdmaReadResponseLast = 0x0f, Rc ReadResponse Last [Aeth];
    RcRdmaReadResponseOnly = 0x10, Rc ReadResponse Only [Aeth];
    RcAcknowledge = 0x11, Rc Acknowledge Only [Aeth];
    RcAtomicAcknowledge = 0x12, Rc AtomicAcknowledge Only [Aeth AtomicAckEth];
    RcCompareSwap = 0x13, Rc CompareSwap Only [AtomicEth];
    RcFetchAdd = 0x14, Rc FetchAdd Only [AtomicEth];
    RcSendLastWithInvalidate = 0x16, Rc Send Last [Ieth];
    RcSendOnlyWithInvalidate = 0x17, Rc Send Only [Ieth];
    RcFlush = 0x1c, Rc Flush Only [Feth Reth];
    RcAtomicWrite = 0x1d, Rc AtomicWrite Only [Reth];

    UcSendFirst = 0x20, Uc Send First [];
    UcSendMiddle = 0x21, Uc Send Middle [];
    UcSendLast = 0x22, Uc Send Last [];
    UcSendLastWithImmediate = 0x23, Uc Send Last [Immediate];
    UcSendOnly = 0x24, Uc Send Only [];
    UcSendOnlyWithImmediate = 0x25, Uc Send Only [Immediate];
    UcRdmaWriteFirst = 0x26, Uc RdmaWrite First [Reth];
    UcRdmaWriteMiddle = 0x27, Uc RdmaWrite Middle [];
    UcRdmaWriteLast = 0x28, Uc RdmaWrite Last [];
    UcRdmaWriteLastWithImmediate = 0x29, Uc RdmaWrite Last [Immediate];
    UcRdmaWriteOnly = 0x2a, Uc RdmaWrite Only [Reth];
    UcRdmaWriteOnlyWithImmediate = 0x2b, Uc RdmaWrite Only [Reth Immediate];

    UdSendOnly = 0x64, Ud Send Only [Deth];
    UdSendOnlyWithImmediate = 0x65, Ud Send Only [Deth Immediate];

    Cnp = 0x81, Cnp Cnp Only [CnpReserved];

    XrcSendFirst = 0xa0, Xrc Send First [Xrceth];
    XrcSendMiddle = 0xa1, Xrc Send Middle [Xrceth];
    XrcSendLast = 0xa2, Xrc Send Last [Xrceth];
    XrcSendLastWithImmediate = 0xa3, Xrc Send Last [Xrceth Immediate];
    XrcSendOnly = 0xa4, Xrc Send Only [Xrceth];
    XrcSendOnlyWithImmediate = 0xa5, Xrc Send Only [Xrceth Immediate];
    XrcRdmaWriteFirst = 0xa6, Xrc RdmaWrite First [Xrceth Reth];
    XrcRdmaWriteMiddle = 0xa7, Xrc RdmaWrite Middle [Xrceth];
    XrcRdmaWriteLast = 0xa8, Xrc RdmaWrite Last [Xrceth];
    XrcRdmaWriteLastWithImmediate = 0xa9, Xrc RdmaWrite Last [Xrceth Immediate];
    XrcRdmaWriteOnly = 0xaa, Xrc RdmaWrite Only [Xrceth Reth];
    XrcRdmaWriteOnlyWithImmediate = 0xab, Xrc RdmaWrite Only [Xrceth Reth Immediate];
    XrcRdmaReadRequest = 0xac, Xrc ReadRequest Only [Xrceth Reth];
    XrcRdmaReadResponseFirst = 0xad, Xrc ReadResponse First [Aeth];
    XrcRdmaReadResponseMiddle = 0xae, Xrc ReadResponse Middle [];
    XrcRdmaReadResponseLast = 0xaf, Xrc ReadResponse Last [Aeth];
    XrcRdmaReadResponseOnly = 0xb0, Xrc ReadResponse Only [Aeth];
    XrcAcknowledge = 0xb1, Xrc Acknowledge Only [Aeth];
    XrcAtomicAcknowledge = 0xb2, Xrc AtomicAcknowledge Only [Aeth AtomicAckEth];
    XrcCompareSwap = 0xb3, Xrc CompareSwap Only [Xrceth AtomicEth];
    XrcFetchAdd = 0xb4, Xrc FetchAdd Only [Xrceth AtomicEth];
    XrcSendLastWithInvalidate = 0xb6, Xrc Send Last [Xrceth Ieth];
    XrcSendOnlyWithInvalidate = 0xb7, Xrc Send Only [Xrceth Ieth];
    XrcFlush = 0xbc, Xrc Flush Only [Xrceth Feth Reth];
    XrcAtomicWrite = 0xbd, Xrc AtomicWrite Only [Xrceth Reth];
}

const SERVICES: usize = Service::Cnp as usize + 1;
const OPERATIONS: usize = Operation::Cnp as usize + 1;
const POSITIONS: usize = Position::Only as usize + 1;
const EXTRAS: usize = Extra::Invalidate as usize + 1;

/// The row of each code; `NO_ROW` where there is none.
static ROW_OF: [u8; 256] = {
    let mut rows = [NO_ROW; 256];
    let mut i = 0;
    while i < ROWS.len() {
        let code = ROWS[i].opcode as usize;
        assert!(rows[code] == NO_ROW);
        rows[code] = i as u8;
        i += 1;
    }
    rows
};
const NO_ROW: u8 = u8::MAX;

/// The inverse of the table: which opcode has these properties.
static BY_PROPERTIES: [Option<Opcode>; SERVICES * OPERATIONS * POSITIONS * EXTRAS] = {
    let mut all = [None; SERVICES * OPERATIONS * POSITIONS * EXTRAS];
    let mut i = 0;
    while i < ROWS.len() {
        let row = &ROWS[i];
        let at = property_index(row.service, row.operation, row.position, row.extra);
        // Two rows with the same properties would make one of them unreachable.
        assert!(all[at].is_none());
        all[at] = Some(row.opcode);
        i += 1;
    }
    all
};

const fn property_index(service: Service, operation: Operation, position: Position, extra: Extra) -> usize {
    ((service as usize * OPERATIONS + operation as usize) * POSITIONS + position as usize) * EXTRAS
        + extra as usize
}

impl Opcode {
    /// The opcode with this code, if it is a legal one.
    #[inline]
    pub fn from_u8(code: u8) -> Option<Self> {
        TABLE.get(usize::from(ROW_OF[usize::from(code)])).map(|row| row.opcode)
    }

    /// Its row of the table.
    #[inline]
    pub fn info(self) -> &'static OpcodeInfo {
        &TABLE[usize::from(ROW_OF[usize::from(self as u8)])]
    }

    /// The opcode for a packet with these properties, if the service has one.
    #[inline]
    pub fn find(service: Service, operation: Operation, position: Position, extra: Extra) -> Option<Self> {
        BY_PROPERTIES[property_index(service, operation, position, extra)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_by_code_and_by_properties() {
        for row in &TABLE {
            assert_eq!(Opcode::from_u8(row.opcode as u8), Some(row.opcode));
            assert_eq!(row.opcode.info(), row);
            assert_eq!(Opcode::find(row.service, row.operation, row.position, row.extra), Some(row.opcode));
        }
        let legal = (0..=255).filter(|&code| Opcode::from_u8(code).is_some()).count();
        assert_eq!(legal, TABLE.len());
    }

    #[test]
    fn service_is_the_top_three_bits() {
        for row in &TABLE {
            let service = match row.opcode as u8 >> 5 {
                0 => Service::Rc,
                1 => Service::Uc,
                3 => Service::Ud,
                4 => Service::Cnp,
                5 => Service::Xrc,
                other => panic!("service bits {other}"),
            };
            assert_eq!(row.service, service, "{:?}", row.opcode);
        }
    }

    #[test]
    fn uc_and_xrc_number_their_operations_as_rc_does() {
        for row in TABLE.iter().filter(|row| matches!(row.service, Service::Uc | Service::Xrc)) {
            let rc = Opcode::from_u8(row.opcode as u8 & 0x1f).unwrap().info();
            let properties = |r: &OpcodeInfo| (r.operation, r.position, r.extra, r.request, r.payload);
            assert_eq!(properties(row), properties(rc), "{:?}", row.opcode);
            // IBA A14: an XRC request is the RC one with an XRCETH right after the BTH; responses are equal.
            let xrceth = row.service == Service::Xrc && row.request;
            assert_eq!(row.extensions.first() == Some(&Extension::Xrceth), xrceth);
            assert_eq!(&row.extensions[usize::from(xrceth)..], rc.extensions);
        }
        let count = |service| TABLE.iter().filter(|row| row.service == service).count();
        assert_eq!(count(Service::Rc), count(Service::Xrc));
        assert_eq!(count(Service::Uc), 12);
    }

    #[test]
    fn header_lengths_are_those_of_the_spec() {
        let len = |opcode: Opcode| opcode.info().header_len;
        assert_eq!(len(Opcode::RcSendMiddle), 12);
        assert_eq!(len(Opcode::RcRdmaWriteOnlyWithImmediate), 32);
        assert_eq!(len(Opcode::RcAcknowledge), 16);
        assert_eq!(len(Opcode::RcAtomicAcknowledge), 24);
        assert_eq!(len(Opcode::RcCompareSwap), 40);
        assert_eq!(len(Opcode::RcFlush), 32);
        assert_eq!(len(Opcode::UdSendOnlyWithImmediate), 24);
        assert_eq!(len(Opcode::Cnp), 28);
        assert_eq!(TABLE.iter().map(|row| row.header_len).max(), Some(MAX_HEADERS));
    }

    #[test]
    fn reserved_codes_are_refused() {
        for code in [0x15, 0x18, 0x1b, 0x1e, 0x2c, 0x36, 0x40, 0x55, 0x60, 0x66, 0x80, 0x82, 0xb5, 0xc0, 0xff]
        {
            assert_eq!(Opcode::from_u8(code), None, "{code:#x}");
        }
        assert_eq!(Opcode::find(Service::Uc, Operation::ReadRequest, Position::Only, Extra::None), None);
        assert_eq!(Opcode::find(Service::Rc, Operation::RdmaWrite, Position::Last, Extra::Invalidate), None);
    }
}
