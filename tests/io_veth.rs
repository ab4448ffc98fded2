//! Real sockets between two network namespaces: what only a path through a device shows.
//!
//! Needs root and the `ip` command; without them each test says so and passes.
#![allow(unsafe_code)]

mod veth;

use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use urxe::io::udp::{Config, Receive, UdpLink};
use urxe::io::wait::{Waker, wait};
use urxe::io::{Limits, Link, Meta, Runs, RxBatch, SendOutcome, Why};
use urxe::wire::batch::{IpId, Path, Piece, Run};
use veth::{A, B, ip, joined, skipped};

fn open(ip: &str, change: impl FnOnce(&mut Config)) -> UdpLink {
    let mut config = Config::new(ip.parse().unwrap());
    change(&mut config);
    UdpLink::open(&config).unwrap()
}

fn path(link: &dyn Link, to: &str) -> Arc<Path> {
    let to = SocketAddr::new(to.parse().unwrap(), 4791);
    let Limits { ip_id, .. } = link.limits(to.ip());
    Arc::new(Path::new(link.local(), to, 0, 0, ip_id))
}

fn send(link: &dyn Link, path: &Arc<Path>, bytes: &[u8], segment: usize) -> SendOutcome {
    let pieces = [Piece { addr: bytes.as_ptr() as usize, len: bytes.len() }];
    let packets = bytes.len().div_ceil(segment);
    let run = Run { path: path.clone(), pieces: 0..1, segment, packets, bytes: bytes.len() };
    link.send_runs(Runs { runs: &[run], pieces: &pieces })
}

fn collect(link: &dyn Link, packets: usize) -> Vec<(Meta, Vec<u8>)> {
    let mut got: Vec<(Meta, Vec<u8>)> = Vec::new();
    let (mut rx, waker) = (RxBatch::new(8), Waker::new().unwrap());
    let start = Instant::now();
    while got.len() < packets && start.elapsed() < Duration::from_secs(2) {
        if link.recv(&mut rx).unwrap() == 0 {
            wait(link, &waker, Some(100_000_000)).unwrap();
        }
        got.extend(
            rx.iter().flat_map(|d| d.packets().map(move |p| (d.meta, p.to_vec())).collect::<Vec<_>>()),
        );
    }
    got
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}

/// Sends one run of 1000-byte packets and one packet from A to B and returns what B sees in raw mode.
fn seen_by_raw(gso: bool, before: &(dyn Fn() + Sync)) -> Vec<(Meta, Vec<u8>)> {
    let opened = &Barrier::new(2);
    let (_, got) = joined(
        || {
            before();
            let link = open(A, |c| c.gso = gso);
            let path = path(&link, B);
            assert_eq!(path.ip_id(), if gso { IpId::Counting } else { IpId::Zero });
            opened.wait();
            let bytes = pattern(10_000);
            assert_eq!(
                send(&link, &path, &bytes[..9_900], 1000),
                SendOutcome { sent_packets: 10, why: Why::Done }
            );
            assert_eq!(send(&link, &path, &bytes[..40], 40), SendOutcome { sent_packets: 1, why: Why::Done });
            Vec::new()
        },
        || {
            let link = open(B, |c| c.receive = Receive::Raw);
            assert!(link.is_raw());
            link.show_headers().unwrap();
            opened.wait();
            let got = collect(&link, 11);
            assert_eq!(link.counters().rx_malformed.value(), 0);
            got
        },
    );
    let bytes = pattern(10_000);
    let payloads: Vec<&[u8]> = got.iter().map(|(_, p)| &p[..]).collect();
    // Merged packets and single ones come from two sockets, so their order may differ.
    let expected: Vec<&[u8]> = bytes[..9_900].chunks(1000).chain([&bytes[..40]]).collect();
    assert_eq!(payloads.len(), 11);
    assert!(expected.iter().all(|p| payloads.contains(p)));
    for (meta, _) in &got {
        assert_eq!(meta.src, SocketAddr::new(A.parse().unwrap(), 4791));
        assert_eq!((meta.dst, meta.hop_limit), (B.parse().unwrap(), 64));
    }
    got
}

#[test]
fn segment_k_has_identification_k_when_the_kernel_segments() {
    if skipped() {
        return;
    }
    // A device that takes one segment at a time makes the kernel segment.
    let got = seen_by_raw(true, &|| ip("link set va gso_max_segs 1"));
    let ids: Vec<Option<u16>> = got.iter().map(|(meta, _)| meta.ip_id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0].map(Some));
}

#[test]
fn packets_sent_one_by_one_have_identification_0() {
    if skipped() {
        return;
    }
    let got = seen_by_raw(false, &|| {});
    assert!(got.iter().all(|(meta, _)| meta.ip_id == Some(0)), "{got:?}");
}

#[test]
fn raw_mode_takes_apart_what_arrives_merged() {
    if skipped() {
        return;
    }
    // A veth pair hands a GSO send over whole.
    let got = seen_by_raw(true, &|| {});
    let (single, merged): (Vec<_>, Vec<_>) = got.iter().partition(|(meta, _)| meta.ip_id.is_some());
    assert_eq!((single.len(), merged.len()), (1, 10));
}

#[test]
fn a_full_send_queue_counts_exactly_what_left() {
    if skipped() {
        return;
    }
    for packets in [1, 8] {
        let (opened, full) = (&Barrier::new(2), &Barrier::new(2));
        let (sent, got) = joined(
            || {
                let link = open(A, |c| c.send_buffer = 1);
                let path = path(&link, B);
                opened.wait();
                // B answers no ARP, so what is sent stays in the queue.
                let bytes = pattern(100 * packets);
                let mut sent = 0;
                let last = loop {
                    let outcome = send(&link, &path, &bytes, 100);
                    sent += outcome.sent_packets;
                    if outcome.why != Why::Done || sent > 10_000 {
                        break outcome;
                    }
                };
                assert_eq!(last, SendOutcome { sent_packets: 0, why: Why::WouldBlock });
                assert!(sent > 0 && link.counters().tx_blocked.value() == 1);
                ip(&format!("neighbor replace {B} lladdr 02:00:00:00:91:02 nud permanent dev va"));
                full.wait();
                sent
            },
            || {
                ip("link set vb down");
                ip("link set vb address 02:00:00:00:91:02 arp off");
                ip("link set vb up");
                let link = open(B, |_| {});
                opened.wait();
                full.wait();
                collect(&link, 100_000).len()
            },
        );
        assert_eq!(sent, got);
    }
}

#[test]
fn a_packet_over_the_mtu_fails_alone_and_the_next_one_leaves() {
    if skipped() {
        return;
    }
    let opened = &Barrier::new(2);
    let (_, got) = joined(
        || {
            let link = open(A, |_| {});
            assert_eq!((link.mtu(), link.interface().name.as_str()), (1500, "va"));
            let path = path(&link, B);
            opened.wait();
            let bytes = pattern(4 * 1500);
            for packets in [1, 4] {
                let sent = send(&link, &path, &bytes[..1500 * packets], 1500);
                assert_eq!(sent, SendOutcome { sent_packets: 0, why: Why::Failed(libc::EMSGSIZE) });
            }
            assert_eq!(send(&link, &path, &bytes[..4 * 1472], 1472).sent_packets, 4);
            assert_eq!(link.counters().gso_fallbacks.value(), 0);
            0
        },
        || {
            let link = open(B, |_| {});
            opened.wait();
            collect(&link, 4).len()
        },
    );
    assert_eq!(got, 4);
}

/// Gives up capabilities of the calling thread, by their numbers.
fn drop_capabilities(numbers: &[usize]) {
    // Version 3, this thread; then effective, permitted and inheritable for capabilities 0 to 31 and 32 to 63.
    let header = [0x2008_0522_u32, 0];
    let mut sets = [0u32; 6];
    // SAFETY: both are as long as version 3 says.
    unsafe { assert_eq!(libc::syscall(libc::SYS_capget, &header, &mut sets), 0) };
    for number in numbers {
        sets[number / 32 * 3] &= !(1 << (number % 32));
    }
    // SAFETY: as above.
    unsafe { assert_eq!(libc::syscall(libc::SYS_capset, &header, &sets), 0) };
}
const CAP_NET_RAW: usize = 13;
const CAP_SYS_ADMIN: usize = 21;
const CAP_BPF: usize = 39;

#[test]
fn raw_mode_without_cap_bpf_takes_apart_what_is_longer_than_a_packet() {
    if skipped() {
        return;
    }
    let opened = &Barrier::new(2);
    let (_, got) = joined(
        || {
            ip("link set va mtu 9000");
            let link = open(A, |_| {});
            let path = path(&link, B);
            opened.wait();
            let bytes = pattern(15 * 4124);
            assert_eq!(send(&link, &path, &bytes, 4124).sent_packets, 15);
            assert_eq!(send(&link, &path, &bytes[..1040], 1040).sent_packets, 1);
            Vec::new()
        },
        || {
            ip("link set vb mtu 9000");
            drop_capabilities(&[CAP_SYS_ADMIN, CAP_BPF]);
            let link = open(B, |c| c.receive = Receive::Raw);
            opened.wait();
            collect(&link, 16)
        },
    );
    assert_eq!(got.len(), 16);
    for (meta, bytes) in got {
        match bytes.len() {
            4124 => assert_eq!(meta.ip_id, None),
            len => assert_eq!((len, meta.ip_id), (1040, Some(0))),
        }
    }
}

#[test]
fn raw_mode_without_cap_net_raw_is_refused_with_a_reason() {
    if skipped() {
        return;
    }
    let error = std::thread::spawn(|| {
        drop_capabilities(&[CAP_NET_RAW]);
        let mut config = Config::new("127.0.0.1".parse().unwrap());
        config.addr.set_port(0);
        config.receive = Receive::Raw;
        UdpLink::open(&config).unwrap_err()
    });
    let error = error.join().unwrap().to_string();
    assert!(error.contains("CAP_NET_RAW") && error.contains("127.0.0.1"), "{error}");
}
