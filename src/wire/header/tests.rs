use super::*;
use crate::wire::Packet;
use crate::wire::opcode::TABLE;
use proptest::prelude::*;

fn bth(opcode: Opcode) -> impl Strategy<Value = Bth> {
    (any::<[bool; 5]>(), 0..4u8, any::<u16>(), any::<u32>(), any::<u32>()).prop_map(
        move |([solicited, mig_req, fecn, becn, ack_request], pad, pkey, qpn, psn)| Bth {
            opcode,
            solicited,
            mig_req,
            pad,
            version: 0,
            pkey: PKey(pkey),
            fecn,
            becn,
            dest_qpn: Qpn(qpn & QPN_MASK),
            ack_request,
            psn: Psn::new(psn),
        },
    )
}

/// Every legal packet's headers.
fn headers() -> impl Strategy<Value = Headers> {
    proptest::sample::select(TABLE.as_slice()).prop_flat_map(|row| {
        let on = move |extension| {
            let listed = row.has(extension);
            move |bytes: [u8; 28]| listed.then_some(bytes)
        };
        // Bytes are the source of each header, so that every field takes every value.
        (bth(row.opcode), any::<[[u8; 28]; 9]>()).prop_map(move |(bth, raw)| Headers {
            bth,
            reth: on(Extension::Reth)(raw[0]).map(|b| Reth::parse(b.first_chunk().unwrap())),
            atomic: on(Extension::AtomicEth)(raw[1]).map(|b| AtomicEth::parse(&b)),
            aeth: on(Extension::Aeth)(raw[2]).map(|b| Aeth::parse(b.first_chunk().unwrap())),
            atomic_ack: on(Extension::AtomicAckEth)(raw[3])
                .map(|b| u64::from_ne_bytes(*b.first_chunk().unwrap())),
            deth: on(Extension::Deth)(raw[4]).map(|b| Deth::parse(b.first_chunk().unwrap())),
            immediate: on(Extension::Immediate)(raw[5]).map(|b| *b.first_chunk().unwrap()),
            invalidate: on(Extension::Ieth)(raw[6])
                .map(|b| RKey(u32::from_ne_bytes(*b.first_chunk().unwrap()))),
            xrc_srqn: on(Extension::Xrceth)(raw[7])
                .map(|b| Qpn(u32::from_ne_bytes(*b.first_chunk().unwrap()) & QPN_MASK)),
            flush: on(Extension::Feth)(raw[8]).map(|b| Feth::parse(b.first_chunk().unwrap())),
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn emitted_headers_parse_back(headers in headers()) {
        let mut out = [0xee; MAX_HEADERS];
        let len = headers.emit(&mut out);
        prop_assert_eq!(len, headers.emitted_len());
        prop_assert!(out[len..].iter().all(|&byte| byte == 0xee), "bytes after the headers are touched");
        let (parsed, rest) = Headers::parse(&out).unwrap();
        prop_assert_eq!(parsed, headers);
        prop_assert_eq!(rest.len(), MAX_HEADERS - len);
        for short in 0..len {
            let refused = matches!(Headers::parse(&out[..short]), Err(Malformed::TooShort { .. }));
            prop_assert!(refused, "{} of {} bytes", short, len);
        }
    }

    #[test]
    fn emitted_packets_parse_back(mut headers in headers(), data in proptest::collection::vec(any::<u8>(), 0..70)) {
        let payload = if headers.bth.opcode.info().payload { &data[..] } else { &[] };
        headers.bth.pad = (payload.len() as u8).wrapping_neg() & 3;
        let mut out = [0; MAX_HEADERS];
        let len = headers.emit(&mut out);
        let mut datagram = [&out[..len], payload].concat();
        datagram.resize(datagram.len() + usize::from(headers.bth.pad), 0);
        datagram.extend([1, 2, 3, 4]);
        let packet = Packet::parse(&datagram).unwrap();
        prop_assert_eq!(packet, Packet { headers, payload, icrc: [1, 2, 3, 4] });
    }

    #[test]
    fn hostile_bytes_are_refused_or_come_out_again(
        mut bytes in proptest::collection::vec(any::<u8>(), 16..120),
        row in proptest::sample::select(TABLE.as_slice()),
        plausible in any::<bool>(),
    ) {
        if plausible {
            bytes[0] = row.opcode as u8;
            bytes[1] &= 0xf0;
            bytes.truncate(bytes.len() & !3);
        }
        if let Ok(packet) = Packet::parse(&bytes) {
            let mut out = [0; MAX_HEADERS];
            let len = packet.headers.emit(&mut out);
            let mut again = [&out[..len], packet.payload].concat();
            again.resize(again.len() + usize::from(packet.headers.bth.pad), 0);
            again.extend(packet.icrc);
            prop_assert_eq!(again.len(), bytes.len());
            prop_assert_eq!(Packet::parse(&again).unwrap(), packet);
            // Reserved bits and the pad become zero; nothing else changes, or it would not parse to the same.
            prop_assert!(again.iter().zip(&bytes).all(|(new, old)| new & old == *new));
        }
    }
}

#[test]
fn base_header_is_laid_out_as_in_the_spec() {
    let bth = Bth {
        solicited: true,
        mig_req: false,
        pad: 3,
        becn: true,
        ack_request: true,
        pkey: PKey(0x7fff),
        ..Bth::new(Opcode::RcSendOnly, Qpn(0x12_3456), Psn::new(0xab_cdef))
    };
    let mut out = [0; Bth::LEN];
    bth.emit(&mut out);
    assert_eq!(out, [0x04, 0xb0, 0x7f, 0xff, 0x40, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef]);
}

#[test]
fn extension_headers_are_laid_out_as_in_the_spec() {
    fn emitted(headers: Headers) -> Vec<u8> {
        let mut out = [0; MAX_HEADERS];
        let len = headers.emit(&mut out);
        out[Bth::LEN..len].to_vec()
    }
    let of = |opcode| Headers::new(Bth::new(opcode, Qpn(1), Psn::new(0)));
    let reth = Some(Reth { addr: 0x0102_0304_0506_0708, rkey: RKey(0x0a0b_0c0d), len: 0x1112_1314 });
    let reth_bytes = [1, 2, 3, 4, 5, 6, 7, 8, 0xa, 0xb, 0xc, 0xd, 0x11, 0x12, 0x13, 0x14];

    // XRCETH before RETH before the immediate.
    let write = Headers {
        reth,
        xrc_srqn: Some(Qpn(0x31_3233)),
        immediate: Some([9, 8, 7, 6]),
        ..of(Opcode::XrcRdmaWriteOnlyWithImmediate)
    };
    assert_eq!(emitted(write), [&[0, 0x31, 0x32, 0x33][..], &reth_bytes, &[9, 8, 7, 6]].concat());

    // FETH before RETH; selectivity is above placement.
    let flush = Some(Feth { placement: Feth::PERSISTENT, selectivity: FlushSelectivity::Region });
    let flush = Headers { reth, flush, ..of(Opcode::RcFlush) };
    assert_eq!(emitted(flush), [&[0, 0, 0, 0x12][..], &reth_bytes].concat());

    let atomic = AtomicEth {
        addr: 0x0102_0304_0506_0708,
        rkey: RKey(0x0a0b_0c0d),
        swap_add: 0x2122_2324_2526_2728,
        compare: 0x3132_3334_3536_3738,
    };
    let swap = Headers { atomic: Some(atomic), ..of(Opcode::RcCompareSwap) };
    assert_eq!(
        emitted(swap),
        [
            &reth_bytes[..12],
            &[0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38]
        ]
        .concat()
    );

    let deth = Some(Deth { qkey: QKey(0x8001_0203), src_qpn: Qpn(0x04_0506) });
    assert_eq!(emitted(Headers { deth, ..of(Opcode::UdSendOnly) }), [0x80, 1, 2, 3, 0, 4, 5, 6]);

    let aeth = Some(Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: 0x00_0102 });
    let nak = Headers { aeth, ..of(Opcode::RcAcknowledge) };
    assert_eq!(emitted(nak), [0x62, 0, 1, 2]);
    let ack = Headers { aeth, atomic_ack: Some(0x0102_0304_0506_0708), ..of(Opcode::RcAtomicAcknowledge) };
    assert_eq!(emitted(ack), [0x62, 0, 1, 2, 1, 2, 3, 4, 5, 6, 7, 8]);

    let invalidate = Headers { invalidate: Some(RKey(0x0102_0304)), ..of(Opcode::RcSendOnlyWithInvalidate) };
    assert_eq!(emitted(invalidate), [1, 2, 3, 4]);
    assert_eq!(emitted(of(Opcode::Cnp)), [0; 16]);
}

#[test]
fn every_syndrome_survives() {
    for byte in 0..=u8::MAX {
        assert_eq!(Syndrome::from_u8(byte).to_u8(), byte);
    }
    assert_eq!(Syndrome::from_u8(0x1f), Syndrome::ACK);
    assert_eq!(Syndrome::from_u8(0x34), Syndrome::Rnr { timer: 20 });
    assert_eq!(Syndrome::from_u8(0x60), Syndrome::Nak(NakCode::PsnSequence));
    assert_eq!(Syndrome::from_u8(0x61), Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!(Syndrome::from_u8(0x63), Syndrome::Nak(NakCode::RemoteOperational));
    assert_eq!(Syndrome::from_u8(0x40), Syndrome::Reserved(0x40));
    assert_eq!(Syndrome::from_u8(0x80), Syndrome::Reserved(0x80));
}

#[test]
fn numbers_wider_than_their_field_do_not_spill() {
    let wide = Bth { pad: 0xff, version: 0xf0, ..Bth::new(Opcode::UdSendOnly, Qpn(u32::MAX), Psn::new(0)) };
    let deth = Some(Deth { qkey: QKey(0), src_qpn: Qpn(u32::MAX) });
    let mut out = [0; MAX_HEADERS];
    let len = Headers { deth, ..Headers::new(wide) }.emit(&mut out);
    let expected = [0x64, 0x70, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff];
    assert_eq!(out[..len], expected);
    assert_eq!(Syndrome::Ack { credits: 0xff }.to_u8(), 0x1f);
    assert_eq!(NakCode::Reserved(0xff).bits(), 0x1f);
}
