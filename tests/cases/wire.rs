//! What implementers get wrong in the bytes.

use std::net::SocketAddr;

use urxe::verbs::SendOp;
use urxe::wire::icrc::{Check, verify};
use urxe::wire::{Aeth, NakCode, PathIcrc, Syndrome};

use crate::bench::{Requester, lines};

/// The CRC of Ethernet, bit by bit, as the definition has it.
fn crc32(bytes: &[u8]) -> [u8; 4] {
    let mut state = u32::MAX;
    for &byte in bytes {
        state ^= u32::from(byte);
        for _ in 0..8 {
            state = if state & 1 == 1 { state >> 1 ^ 0xedb8_8320 } else { state >> 1 };
        }
    }
    (!state).to_le_bytes()
}

/// An IPv4 packet as a router may have changed it.
fn ipv4(tos: u8, ttl: u8, id: u16, udp: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, tos];
    ip.extend((20 + 8 + udp.len() as u16).to_be_bytes());
    ip.extend(id.to_be_bytes());
    // Flags, time to live, protocol; a checksum of 0x1234 stands for any.
    ip.extend([0x40, 0, ttl, 17, 0x12, 0x34]);
    ip.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    ip.extend(4791u16.to_be_bytes());
    ip.extend(4791u16.to_be_bytes());
    ip.extend((8 + udp.len() as u16).to_be_bytes());
    ip.extend([0x56, 0x78]);
    ip.extend(udp);
    ip
}

/// The invariant CRC of an IPv4 packet by its definition (IBA A17.3.3): eight bytes of ones in place of the link
/// header; type of service, time to live and both checksums as ones, and of the BTH the byte with FECN and BECN.
fn icrc_v4(packet: &[u8]) -> [u8; 4] {
    let mut all = vec![0xff; 8];
    all.extend(&packet[..packet.len() - 4]);
    for masked in [1, 8, 10, 11, 26, 27, 28 + 4] {
        all[8 + masked] = 0xff;
    }
    crc32(&all)
}

/// The same over IPv6: traffic class, flow label and hop limit.
fn icrc_v6(udp: &[u8], src: [u8; 16], dst: [u8; 16]) -> [u8; 4] {
    let mut all = vec![0xff; 8];
    all.extend([0x6f, 0xff, 0xff, 0xff]);
    all.extend((8 + udp.len() as u16).to_be_bytes());
    all.extend([17, 0xff]);
    all.extend(src);
    all.extend(dst);
    all.extend(4791u16.to_be_bytes());
    all.extend(4791u16.to_be_bytes());
    all.extend((8 + udp.len() as u16).to_be_bytes());
    all.extend([0xff, 0xff]);
    let bth = all.len();
    all.extend(&udp[..udp.len() - 4]);
    all[bth + 4] = 0xff;
    crc32(&all)
}

#[test]
fn the_icrc_is_right_for_every_length_of_payload_and_its_pad() {
    for len in 0..=65 {
        let mut q = Requester::rc();
        q.mem.buf.write(0, &(1..=255).collect::<Vec<u8>>());
        q.post(1, SendOp::Send, &[q.mem.sge(0, len)]);
        let packet = &q.sends()[0];
        let pad = (4 - len % 4) % 4;
        assert_eq!(packet.bytes.len(), 12 + len + pad + 4);
        assert_eq!(usize::from(packet.headers.bth.pad), pad);
        assert_eq!(packet.bytes[12 + len..12 + len + pad], vec![0; pad], "pad bytes are zero");
        let want = icrc_v4(&ipv4(0, 64, 0, &packet.bytes));
        assert_eq!(packet.bytes[packet.bytes.len() - 4..], want, "length {len}");
        assert_eq!(packet.payload.len(), len);
    }
}

#[test]
fn the_icrc_does_not_cover_what_routers_change() {
    let mut q = Requester::rc();
    q.post(1, SendOp::Send, &[q.mem.sge(0, 7)]);
    let mut udp = q.sends()[0].bytes.clone();
    let icrc = icrc_v4(&ipv4(0, 64, 0, &udp));
    for (tos, ttl) in [(0xff, 1), (0x02, 255)] {
        assert_eq!(icrc_v4(&ipv4(tos, ttl, 0, &udp)), icrc);
    }
    // Forward and backward congestion bits and the reserved bits beside them.
    let path = PathIcrc::new("10.0.0.1:4791".parse().unwrap(), "10.0.0.2:4791".parse().unwrap());
    udp[4] = 0xc5;
    assert_eq!(verify(&path, Some(0), &udp), Check::Match);
    // The identification is covered; a receiver that cannot see it can find it.
    let id = 0x4711;
    let end = udp.len() - 4;
    let sealed = icrc_v4(&ipv4(0, 64, id, &udp));
    udp[end..].copy_from_slice(&sealed);
    assert_eq!(verify(&path, Some(id), &udp), Check::Match);
    assert_eq!(verify(&path, None, &udp), Check::SolvedId(id));
    assert_eq!(verify(&path, Some(0), &udp), Check::Mismatch);
}

#[test]
fn every_wrong_bit_that_is_covered_is_found() {
    let mut q = Requester::rc();
    q.post(1, SendOp::Send, &[q.mem.sge(0, 7)]);
    let udp = q.sends()[0].bytes.clone();
    let path = PathIcrc::new("10.0.0.1:4791".parse().unwrap(), "10.0.0.2:4791".parse().unwrap());
    for bit in 0..udp.len() * 8 {
        let mut wrong = udp.clone();
        wrong[bit / 8] ^= 1 << (bit % 8);
        let want = if bit / 8 == 4 { Check::Match } else { Check::Mismatch };
        assert_eq!(verify(&path, Some(0), &wrong), want, "bit {bit}");
    }
}

#[test]
fn over_ipv6_the_icrc_leaves_out_traffic_class_flow_label_and_hop_limit() {
    let src: SocketAddr = "[2001:db8::1]:4791".parse().unwrap();
    let dst: SocketAddr = "[2001:db8::2]:4791".parse().unwrap();
    let octets = |a: SocketAddr| urxe::ids::Gid::from_ip(a.ip()).0;
    let mut q = Requester::rc();
    q.post(1, SendOp::Send, &[q.mem.sge(0, 7)]);
    let mut udp = q.sends()[0].bytes.clone();
    let end = udp.len() - 4;
    let sealed = icrc_v6(&udp, octets(src), octets(dst));
    udp[end..].copy_from_slice(&sealed);
    assert_eq!(verify(&PathIcrc::new(src, dst), None, &udp), Check::Match);
}

#[test]
fn the_top_bits_of_a_syndrome_tell_its_kind() {
    // 00 acknowledged and credits, 01 receiver not ready, 11 refused; 10 and bit 7 are reserved.
    let syndrome = |byte: u8| Aeth::parse(&[byte, 0, 0, 7]).syndrome;
    assert_eq!(syndrome(0x1f), Syndrome::Ack { credits: 31 });
    assert_eq!(syndrome(0x00), Syndrome::Ack { credits: 0 });
    assert_eq!(syndrome(0x20 | 12), Syndrome::Rnr { timer: 12 });
    assert_eq!(syndrome(0x60), Syndrome::Nak(NakCode::PsnSequence));
    assert_eq!(syndrome(0x61), Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!(syndrome(0x62), Syndrome::Nak(NakCode::RemoteAccess));
    assert_eq!(syndrome(0x63), Syndrome::Nak(NakCode::RemoteOperational));
    assert!(matches!(syndrome(0x40), Syndrome::Reserved(_)));
    assert!(matches!(syndrome(0x80), Syndrome::Reserved(_)));
}

#[test]
fn credits_of_an_acknowledgement_do_not_stop_the_requester() {
    // 31 means that there is no limit; other codes are for adapters that count receives, and the RNR NAK is there for
    // those that run out.
    let mut q = Requester::rc();
    q.post(1, SendOp::Send, &[q.mem.sge(0, 4)]);
    q.sends();
    let mut ack = crate::bench::ack(crate::bench::FIRST_PSN);
    if let Some(aeth) = &mut ack.headers.aeth {
        aeth.syndrome = Syndrome::Ack { credits: 0 };
    }
    q.hears(&ack);
    assert_eq!(q.done().len(), 1);
    q.post(2, SendOp::Send, &[q.mem.sge(0, 4)]);
    q.post(3, SendOp::Send, &[q.mem.sge(0, 4)]);
    assert_eq!(lines(&q.sends()).len(), 2);
}
