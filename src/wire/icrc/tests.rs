use super::*;
use proptest::prelude::*;

/// The definition, bit by bit, over a packet put together by hand.
fn reference(bytes: &[u8]) -> [u8; 4] {
    let mut state = u32::MAX;
    for &byte in bytes {
        state ^= u32::from(byte);
        for _ in 0..8 {
            state = if state & 1 == 1 { state >> 1 ^ 0xedb8_8320 } else { state >> 1 };
        }
    }
    (!state).to_le_bytes()
}

/// What the ICRC of a packet covers, with the masked fields as ones.
fn covered(src: SocketAddr, dst: SocketAddr, id: u16, transport: &[u8]) -> Vec<u8> {
    let udp_len = (UDP_LEN + transport.len() + ICRC_LEN) as u16;
    let mut all = vec![0xff; 8];
    match (src.ip(), dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            all.extend([0x45, 0xff]);
            all.extend((20 + udp_len).to_be_bytes());
            all.extend(id.to_be_bytes());
            all.extend([0x40, 0x00, 0xff, 17, 0xff, 0xff]);
            all.extend(src.octets());
            all.extend(dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            all.extend([0x6f, 0xff, 0xff, 0xff]);
            all.extend(udp_len.to_be_bytes());
            all.extend([17, 0xff]);
            all.extend(src.octets());
            all.extend(dst.octets());
        }
        _ => unreachable!("one family"),
    }
    all.extend(src.port().to_be_bytes());
    all.extend(dst.port().to_be_bytes());
    all.extend(udp_len.to_be_bytes());
    all.extend([0xff, 0xff]);
    let masked = all.len() + 4;
    all.extend(transport);
    all[masked] = 0xff;
    all
}

fn v4() -> (SocketAddr, SocketAddr) {
    ("127.0.0.1:50000".parse().unwrap(), "10.1.2.3:4791".parse().unwrap())
}
fn v6() -> (SocketAddr, SocketAddr) {
    ("[fe80::1]:50000".parse().unwrap(), "[2001:db8::2]:4791".parse().unwrap())
}

/// A SEND ONLY with a payload of this length, its pad and space for the ICRC.
fn send_only(payload_len: usize) -> Vec<u8> {
    let pad = payload_len.wrapping_neg() & 3;
    let mut datagram = vec![4, (pad as u8) << 4, 0xff, 0xff, 0, 0, 0, 17, 0x80, 0, 1, 2];
    datagram.extend((0..payload_len).map(|i| (i * 7 + 1) as u8));
    datagram.resize(datagram.len() + pad + ICRC_LEN, 0);
    datagram
}

#[test]
fn every_payload_length_agrees_with_the_definition() {
    // CASES 19, and every length around the switch to the vectorised implementation, and full packets.
    for payload_len in (0..=300).chain([1023, 1024, 4095, 4096]) {
        for (src, dst) in [v4(), v6()] {
            let path = PathIcrc::new(src, dst);
            let mut datagram = send_only(payload_len);
            assert_eq!(datagram.len() % 4, 0);
            for id in [0, 1, 0x8000, 0xabcd] {
                path.seal(id, FlushIcrc::Standard, &mut datagram);
                let (transport, icrc) = datagram.split_last_chunk().unwrap();
                assert_eq!(
                    *icrc,
                    reference(&covered(src, dst, id, transport)),
                    "{payload_len} bytes, id {id}"
                );
                assert_eq!(verify(&path, Some(id), &datagram), Check::Match);
                let expected = if id == 0 || path.is_v6() { Check::Match } else { Check::SolvedId(id) };
                assert_eq!(verify(&path, None, &datagram), expected, "{payload_len} bytes, id {id}");
            }
        }
    }
}

#[test]
fn every_identification_is_solved() {
    let (src, dst) = v4();
    let path = PathIcrc::new(src, dst);
    for payload_len in [0, 8, 4096, 4200, 9000] {
        let mut datagram = send_only(payload_len);
        for id in 1..=u16::MAX {
            path.seal(id, FlushIcrc::Standard, &mut datagram);
            assert_eq!(verify(&path, None, &datagram), Check::SolvedId(id));
        }
    }
}

#[test]
fn random_damage_is_taken_for_an_identification_once_in_65536() {
    let (src, dst) = v4();
    let path = PathIcrc::new(src, dst);
    let mut datagram = send_only(24);
    path.seal(0, FlushIcrc::Standard, &mut datagram);
    let (mut solved, mut random) = (0, 1u32);
    for _ in 0..1 << 20 {
        random = random.wrapping_mul(0x9e37_79b1).wrapping_add(0x7f4a_7c15);
        let mut damaged = datagram.clone();
        damaged[16..20].copy_from_slice(&(random ^ random >> 15).to_le_bytes());
        if damaged != datagram && verify(&path, None, &damaged) != Check::Mismatch {
            solved += 1;
        }
    }
    assert!((4..=40).contains(&solved), "{solved} of 2^20, where 16 are expected");
}

#[test]
fn mapped_addresses_are_ipv4() {
    let (src, dst) = v4();
    let mapped = |a: SocketAddr| match a.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), a.port()),
        IpAddr::V6(_) => a,
    };
    assert_eq!(PathIcrc::new(mapped(src), mapped(dst)), PathIcrc::new(src, dst));
    assert_eq!(PathIcrc::new(src, mapped(dst)), PathIcrc::new(src, dst));
    assert!(PathIcrc::new(src, v6().1).is_v6());
}

#[test]
fn lengths_that_no_packet_has_are_mismatches() {
    let (src, dst) = v4();
    let path = PathIcrc::new(src, dst);
    for len in (0..16).chain([65_508, 65_536, 70_000]) {
        let mut datagram = vec![0x1c; len];
        path.seal(0, FlushIcrc::Rxe, &mut datagram);
        assert_eq!(verify(&path, Some(0), &datagram), Check::Mismatch, "{len}");
        assert_eq!(verify(&path, None, &datagram), Check::Mismatch, "{len}");
    }
    // The largest legal one, and one whose length is no multiple of 4.
    for len in [65_507, 65_504, 17] {
        let mut datagram = vec![0; len];
        path.seal(77, FlushIcrc::Standard, &mut datagram);
        assert_eq!(verify(&path, None, &datagram), Check::SolvedId(77), "{len}");
    }
}

#[test]
fn flush_has_either_of_two_icrcs_and_nothing_else_has() {
    let (src, dst) = v4();
    let path = PathIcrc::new(src, dst);
    for (code, rxe_differs) in [(Opcode::RcFlush as u8, true), (Opcode::RcRdmaReadRequest as u8, false)] {
        for id in [0, 9] {
            let mut standard = vec![0x11; 36];
            standard[0] = code;
            let mut rxe = standard.clone();
            path.seal(id, FlushIcrc::Standard, &mut standard);
            path.seal(id, FlushIcrc::Rxe, &mut rxe);
            assert_eq!(standard != rxe, rxe_differs);
            for datagram in [&standard, &rxe] {
                assert_eq!(verify(&path, Some(id), datagram), Check::Match);
                let expected = if id == 0 { Check::Match } else { Check::SolvedId(id) };
                assert_eq!(verify(&path, None, datagram), expected);
                assert_eq!(verify(&path, Some(id ^ 1), datagram), Check::Mismatch);
            }
        }
    }
}

proptest! {
    #[test]
    fn pieces_and_cached_states_give_the_same(
        mut datagram in proptest::collection::vec(any::<u8>(), 16..600),
        cuts in any::<[prop::sample::Index; 3]>(),
        id in any::<u16>(),
    ) {
        let (src, dst) = v4();
        let path = PathIcrc::new(src, dst);
        let len = datagram.len();
        datagram[0] = 4;
        let covered_len = len - ICRC_LEN;
        let head = 12 + cuts[0].index(covered_len - 11);
        let middle = head + cuts[1].index(covered_len - head + 1);
        let mut icrc = Icrc::from_state(path.start(len, id).state());
        icrc.headers(&datagram[..head]);
        icrc.update(&datagram[head..middle]);
        icrc.update(&datagram[middle..covered_len]);
        path.seal(id, FlushIcrc::Standard, &mut datagram);
        prop_assert_eq!(&icrc.finish()[..], &datagram[covered_len..]);
    }

    #[test]
    fn headers_shorter_than_a_bth_do_not_panic_and_mask_byte_four(len in 0..12usize, byte in any::<u8>()) {
        let path = PathIcrc::new(v4().0, v4().1);
        let mut bytes = vec![byte; len];
        let mut first = path.start(40, 0);
        first.headers(&bytes);
        if len > 4 {
            bytes[4] ^= 0xc0;
        }
        let mut second = path.start(40, 0);
        second.headers(&bytes);
        prop_assert_eq!(first, second);
        if len > 4 {
            bytes[4] = 0xff;
        }
        let mut third = path.start(40, 0);
        third.update(&bytes);
        prop_assert_eq!(first, third);
    }
}
