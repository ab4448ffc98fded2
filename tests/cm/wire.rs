//! The codec: every message of the kernel's in tests/data/pcaps says what we think it says and comes out of the emitter
//! byte for byte; every value survives a round trip; no bytes make the parser panic.

use std::net::IpAddr;
use std::path::Path;

use proptest::prelude::*;
use urxe::cm::mad::{MAD_LEN, Malformed};
use urxe::cm::message::{
    About, Drep, Dreq, IpHeader, Message, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq, padded, reason,
};
use urxe::cm::{Ece, PortSpace, Transport};
use urxe::ids::Gid;

/// The management datagrams of a capture: those to QP 1. Ethernet, IPv4, UDP, BTH, DETH, datagram, ICRC.
pub(crate) fn captured(name: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pcaps").join(name);
    let bytes = std::fs::read(path).unwrap();
    let mut rest = &bytes[24..];
    let mut found = Vec::new();
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        let bth = &rest[16 + 14 + 20 + 8..16 + len];
        if bth[5..8] == [0, 0, 1] {
            found.push(bth[20..bth.len() - 4].to_vec());
        }
        rest = &rest[16 + len..];
    }
    found
}

fn parsed(name: &str) -> Vec<Message> {
    captured(name)
        .iter()
        .map(|mad| {
            let (transaction, message) = Message::parse(mad).unwrap();
            assert_eq!(message.emit(transaction)[..], mad[..], "{message:?}");
            message
        })
        .collect()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn the_kernels_connection_of_rping_reads_as_it_was_made() {
    let messages = parsed("cm_rping.pcap");
    let [Message::Req(req), Message::Rep(rep), Message::Rtu(rtu), Message::Dreq(dreq), Message::Drep(drep)] =
        &messages[..]
    else {
        panic!("{messages:?}");
    };
    assert_eq!(req.service_id, PortSpace::Tcp.service_id(7174));
    assert_eq!(req.transport(), Some(Transport::Rc));
    assert_eq!((req.qpn, req.psn), (0x26, 0xe2629e));
    assert_eq!((req.responder_resources, req.initiator_depth), (1, 1));
    assert_eq!((req.local_response_timeout, req.remote_response_timeout, req.max_retries), (20, 20, 15));
    assert_eq!((req.retry_count, req.rnr_retry_count, req.mtu, req.pkey), (7, 7, 3, 0xffff));
    assert_eq!((req.local_lid, req.remote_lid, req.subnet_local), (0xffff, 0xffff, false));
    assert_eq!(req.local_gid, Gid::from_ip(ip("10.77.0.2")));
    assert_eq!(req.remote_gid, Gid::from_ip(ip("10.77.0.3")));
    assert_eq!((req.packet_rate, req.traffic_class, req.hop_limit, req.sl), (0, 0, 64, 0));
    assert_eq!(req.ack_timeout, 17);
    let header = IpHeader::parse(&padded(&req.private_data)).unwrap();
    assert_eq!(header, IpHeader { port: 0xafa3, source: ip("10.77.0.2"), destination: ip("10.77.0.3") },);
    // As the kernel makes it of the ports.
    assert_eq!(req.flow_label, (0xafa3 * 31 + 7174) & 0xfffff);
    assert_eq!(req.private_data[..36], header.emit());

    assert_eq!((rep.remote_id, rep.qpn, rep.psn), (req.local_id, 0x26, 0xb16467));
    assert_eq!((rep.responder_resources, rep.initiator_depth), (1, 1));
    assert_eq!((rep.target_ack_delay, rep.failover, rep.flow_control), (15, 0, false));
    assert_eq!((rep.rnr_retry_count, rep.srq, rep.ca_guid), (7, false, 0x5054_00ff_fe77_0002));
    assert_eq!((rtu.local_id, rtu.remote_id), (req.local_id, rep.local_id));
    assert_eq!((dreq.local_id, dreq.remote_id, dreq.remote_qpn), (req.local_id, rep.local_id, rep.qpn));
    assert_eq!((drep.local_id, drep.remote_id), (rep.local_id, req.local_id));
}

#[test]
fn the_kernels_resolution_of_udaddy_reads_as_it_was_made() {
    let messages = parsed("cm_udaddy.pcap");
    let [Message::SidrReq(req), Message::SidrRep(rep)] = &messages[..] else { panic!("{messages:?}") };
    assert_eq!((req.pkey, req.service_id), (0xffff, PortSpace::Udp.service_id(7174)));
    let header = IpHeader::parse(&padded(&req.private_data)).unwrap();
    assert_eq!(header.port, 0xcd17);
    assert_eq!((rep.request_id, rep.status, rep.service_id), (req.request_id, 0, req.service_id));
    assert_eq!((rep.qpn, rep.qkey), (0x27, 0x0123_4567));
}

#[test]
fn the_kernels_reject_of_a_port_without_listener_has_reason_8() {
    let messages = parsed("cm_reject.pcap");
    let [Message::Req(req), Message::Rej(rej)] = &messages[..] else { panic!("{messages:?}") };
    assert_eq!((rej.local_id, rej.remote_id), (0, req.local_id));
    assert_eq!((rej.about, rej.reason, rej.info_len), (About::Request, reason::INVALID_SERVICE, 0));
}

#[test]
fn options_of_enhanced_connections_stand_where_the_kernel_has_them() {
    let mad = captured("cm_rping.pcap");
    let ece = Ece { vendor_id: 0x112233, options: 0x44556677 };
    let (transaction, message) = Message::parse(&mad[0]).unwrap();
    let Message::Req(mut req) = message else { panic!() };
    req.ece = ece;
    let out = Message::Req(req).emit(transaction);
    assert_eq!((&out[20..24], &out[29..32]), (&[0x44, 0x55, 0x66, 0x77][..], &[0x11, 0x22, 0x33][..]));

    let (transaction, message) = Message::parse(&mad[1]).unwrap();
    let Message::Rep(mut rep) = message else { panic!() };
    rep.ece = ece;
    let out = Message::Rep(rep).emit(transaction);
    assert_eq!((out[24 + 15], out[24 + 19], out[24 + 23]), (0x11, 0x22, 0x33));

    let (transaction, message) = Message::parse(&captured("cm_udaddy.pcap")[1]).unwrap();
    let Message::SidrRep(mut rep) = message else { panic!() };
    rep.ece = ece;
    let out = Message::SidrRep(rep).emit(transaction);
    assert_eq!((out[24 + 6], out[24 + 7], out[24 + 11]), (0x11, 0x22, 0x33));
}

#[test]
fn what_is_not_of_the_class_is_told_apart() {
    let good = captured("cm_rping.pcap").remove(0);
    assert_eq!(Message::parse(&good[..255]).unwrap_err(), Malformed::Length(255));
    for at in 0..4 {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        assert!(matches!(Message::parse(&bad), Err(Malformed::Class(_))), "byte {at}");
    }
    let mut bad = good.clone();
    bad[16] = 1;
    assert_eq!(Message::parse(&bad).unwrap_err(), Malformed::Attribute(0x110));
    let mut lap = good;
    lap[17] = 0x19;
    assert_eq!(Message::parse(&lap).unwrap().1, Message::AlternatePath);
}

#[test]
fn ip_headers_of_another_version_or_family_are_none() {
    for (source, destination) in [("10.0.0.1", "127.0.0.1"), ("fe80::1", "2001:db8::2")] {
        let header = IpHeader { port: 9, source: ip(source), destination: ip(destination) };
        assert_eq!(IpHeader::parse(&header.emit()), Some(header));
        let mut other = header.emit();
        other[0] = 1;
        assert_eq!(IpHeader::parse(&other), None);
        other = header.emit();
        other[1] = 0x50;
        assert_eq!(IpHeader::parse(&other), None);
    }
}

fn data<const N: usize>() -> impl Strategy<Value = [u8; N]> {
    proptest::collection::vec(any::<u8>(), 0..=N).prop_map(|bytes| padded(&bytes))
}

fn ece() -> impl Strategy<Value = Ece> {
    (0..1u32 << 24, any::<u32>()).prop_map(|(vendor_id, options)| Ece { vendor_id, options })
}

fn about() -> impl Strategy<Value = About> {
    prop_oneof![Just(About::Request), Just(About::Reply), Just(About::Other)]
}

fn u24() -> std::ops::Range<u32> {
    0..1 << 24
}

prop_compose! {
    fn req()(
        (local_id, service_id, ca_guid) in any::<(u32, u64, u64)>(),
        ece in ece(),
        (qpn, psn, flow_label) in (u24(), u24(), 0..1u32 << 20),
        (responder_resources, initiator_depth, traffic_class, hop_limit) in any::<(u8, u8, u8, u8)>(),
        (remote_response_timeout, local_response_timeout, ack_timeout) in (0..32u8, 0..32u8, 0..32u8),
        (service_type, extended_type, retry_count, rnr_retry_count) in (0..4u8, 0..8u8, 0..8u8, 0..8u8),
        (mtu, max_retries, sl, packet_rate) in (0..16u8, 0..16u8, 0..16u8, 0..64u8),
        (flow_control, srq, subnet_local) in any::<(bool, bool, bool)>(),
        (pkey, local_lid, remote_lid) in any::<(u16, u16, u16)>(),
        (local_gid, remote_gid) in any::<([u8; 16], [u8; 16])>(),
        private_data in data(),
    ) -> Message {
        Message::Req(Req {
            local_id, ece, service_id, ca_guid, qpn, responder_resources, initiator_depth,
            remote_response_timeout, local_response_timeout, service_type, extended_type, flow_control, psn,
            retry_count, rnr_retry_count, pkey, mtu, max_retries, srq, local_lid, remote_lid,
            local_gid: Gid(local_gid), remote_gid: Gid(remote_gid), flow_label, packet_rate, traffic_class,
            hop_limit, sl, subnet_local, ack_timeout, private_data,
        })
    }
}

prop_compose! {
    fn rep()(
        (local_id, remote_id, ca_guid) in any::<(u32, u32, u64)>(),
        ece in ece(),
        (qpn, eecn, psn) in (u24(), u24(), u24()),
        (responder_resources, initiator_depth, flow_control, srq) in any::<(u8, u8, bool, bool)>(),
        (target_ack_delay, failover, rnr_retry_count) in (0..32u8, 0..4u8, 0..8u8),
        private_data in data(),
    ) -> Message {
        Message::Rep(Rep {
            local_id, remote_id, ece, qpn, eecn, psn, responder_resources, initiator_depth,
            target_ack_delay, failover, flow_control, rnr_retry_count, srq, ca_guid, private_data,
        })
    }
}

/// Any message with any values.
fn message() -> impl Strategy<Value = Message> {
    let ids = || any::<(u32, u32)>();
    prop_oneof![
        req(),
        rep(),
        (ids(), about(), 0..32u8).prop_map(|((local_id, remote_id), about, service_timeout)| {
            Message::Mra(Mra { local_id, remote_id, about, service_timeout })
        }),
        (ids(), about(), any::<u16>(), 0..128u8, data(), data()).prop_map(
            |((local_id, remote_id), about, reason, info_len, info, private_data)| {
                Message::Rej(Rej { local_id, remote_id, about, reason, info, info_len, private_data })
            }
        ),
        (ids(), data()).prop_map(|((local_id, remote_id), private_data)| {
            Message::Rtu(Rtu { local_id, remote_id, private_data })
        }),
        (ids(), u24(), data()).prop_map(|((local_id, remote_id), remote_qpn, private_data)| {
            Message::Dreq(Dreq { local_id, remote_id, remote_qpn, private_data })
        }),
        (ids(), data()).prop_map(|((local_id, remote_id), private_data)| {
            Message::Drep(Drep { local_id, remote_id, private_data })
        }),
        (any::<(u32, u16, u64)>(), data()).prop_map(|((request_id, pkey, service_id), private_data)| {
            Message::SidrReq(SidrReq { request_id, pkey, service_id, private_data })
        }),
        (any::<(u32, u8, u64, u32)>(), ece(), u24(), data()).prop_map(
            |((request_id, status, service_id, qkey), ece, qpn, private_data)| {
                Message::SidrRep(SidrRep { request_id, status, ece, qpn, service_id, qkey, private_data })
            }
        ),
    ]
}

proptest! {
    #[test]
    fn every_message_survives_a_round_trip(message in message(), transaction: u64) {
        let mad = message.emit(transaction);
        prop_assert_eq!(Message::parse(&mad), Ok((transaction, message)));
    }

    #[test]
    fn what_is_parsed_is_emitted_again_but_for_reserved_bits(
        mut mad in proptest::collection::vec(any::<u8>(), MAD_LEN..=MAD_LEN),
        attribute in 0x10..0x1bu8,
    ) {
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[16..18].copy_from_slice(&[0, attribute]);
        let (transaction, message) = Message::parse(&mad).unwrap();
        if message != Message::AlternatePath {
            let again = message.emit(transaction);
            prop_assert_eq!(Message::parse(&again), Ok((transaction, message)));
        }
    }
}
