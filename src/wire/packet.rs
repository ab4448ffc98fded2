//! A datagram, checked once.

use super::header::Headers;
use super::opcode::Opcode;
use super::{Bth, ICRC_LEN};

/// Why a datagram is not a RoCEv2 packet. It is counted and dropped: none of these says whom to answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// It ends before its headers and the ICRC do.
    #[error("{have} bytes, and its headers and ICRC need {need}")]
    TooShort {
        /// Bytes that it must have.
        need: usize,
        /// Bytes that it has.
        have: usize,
    },
    /// No such opcode.
    #[error("opcode {0:#04x} is reserved")]
    UnknownOpcode(u8),
    /// The transport version is not 0.
    #[error("transport version {0} instead of 0")]
    Version(u8),
    /// The pad count exceeds what follows the headers.
    #[error("a pad of {pad} in {have} bytes")]
    PadTooLong {
        /// The pad count of the BTH.
        pad: u8,
        /// Bytes between the headers and the ICRC.
        have: usize,
    },
    /// Data after the headers of an opcode that has none.
    #[error("{opcode:?} with {len} bytes of payload")]
    PayloadNotAllowed {
        /// The opcode.
        opcode: Opcode,
        /// Bytes between the headers and the pad.
        len: usize,
    },
    /// The whole is not a multiple of 4 bytes.
    #[error("{0} bytes, not a multiple of 4")]
    LengthNotMultipleOf4(usize),
}

/// A datagram's parts. The ICRC is not verified yet: [`super::icrc::verify`] does that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// All headers.
    pub headers: Headers,
    /// The data, without the pad.
    pub payload: &'a [u8],
    /// As on the wire.
    pub icrc: [u8; ICRC_LEN],
}

impl<'a> Packet<'a> {
    /// Takes a UDP payload apart. What depends on the QP, such as whether the payload has the length that its position in
    /// the message wants, is left to the engine, which must answer it.
    #[inline]
    pub fn parse(udp_payload: &'a [u8]) -> Result<Self, Malformed> {
        let have = udp_payload.len();
        let too_short = |need| Malformed::TooShort { need, have };
        let Some((covered, icrc)) = udp_payload.split_last_chunk::<ICRC_LEN>() else {
            return Err(too_short(Bth::LEN + ICRC_LEN));
        };
        let (headers, data) = match Headers::parse(covered) {
            Ok(parts) => parts,
            Err(Malformed::TooShort { need, .. }) => return Err(too_short(need + ICRC_LEN)),
            Err(other) => return Err(other),
        };
        let Bth { opcode, version, pad, .. } = headers.bth;
        if version != 0 {
            return Err(Malformed::Version(version));
        }
        if !have.is_multiple_of(4) {
            return Err(Malformed::LengthNotMultipleOf4(have));
        }
        let Some((payload, _)) =
            data.len().checked_sub(pad.into()).and_then(|len| data.split_at_checked(len))
        else {
            return Err(Malformed::PadTooLong { pad, have: data.len() });
        };
        if !payload.is_empty() && !opcode.info().payload {
            return Err(Malformed::PayloadNotAllowed { opcode, len: payload.len() });
        }
        Ok(Self { headers, payload, icrc: *icrc })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Psn, Qpn};
    use crate::wire::MAX_HEADERS;

    fn datagram(opcode: Opcode, pad: u8, after: usize) -> Vec<u8> {
        let mut headers = Headers::new(Bth { pad, ..Bth::new(opcode, Qpn(7), Psn::new(9)) });
        headers.reth = Some(Default::default());
        let mut out = [0; MAX_HEADERS];
        let len = headers.emit(&mut out);
        let mut all = out[..len].to_vec();
        all.resize(len + after + ICRC_LEN, 0xaa);
        all
    }

    #[test]
    fn each_malformation_is_named() {
        let parse = |bytes: &[u8]| Packet::parse(bytes).map(|_| ()).unwrap_err();
        assert_eq!(parse(&[]), Malformed::TooShort { need: 16, have: 0 });
        assert_eq!(parse(&[0; 15]), Malformed::TooShort { need: 16, have: 15 });

        let read = datagram(Opcode::RcRdmaReadRequest, 0, 0);
        assert!(Packet::parse(&read).is_ok());
        assert_eq!(parse(&read[..28]), Malformed::TooShort { need: 32, have: 28 });
        assert_eq!(
            parse(&datagram(Opcode::RcRdmaReadRequest, 0, 4)),
            Malformed::PayloadNotAllowed { opcode: Opcode::RcRdmaReadRequest, len: 4 }
        );
        assert_eq!(
            parse(&datagram(Opcode::RcRdmaReadRequest, 2, 0)),
            Malformed::PadTooLong { pad: 2, have: 0 }
        );

        let mut send = datagram(Opcode::RcSendOnly, 3, 4);
        assert_eq!(Packet::parse(&send).unwrap().payload, [0xaa]);
        assert_eq!(parse(&datagram(Opcode::RcSendOnly, 0, 5)), Malformed::LengthNotMultipleOf4(21));
        send[1] |= 5;
        assert_eq!(parse(&send), Malformed::Version(5));
        send[0] = 0x15;
        assert_eq!(parse(&send), Malformed::UnknownOpcode(0x15));
    }

    #[test]
    fn cnp_has_sixteen_reserved_bytes() {
        let cnp = datagram(Opcode::Cnp, 0, 0);
        assert_eq!(cnp.len(), 32);
        assert!(Packet::parse(&cnp).unwrap().payload.is_empty());
        assert_eq!(Packet::parse(&cnp[..28]), Err(Malformed::TooShort { need: 32, have: 28 }));
    }
}
