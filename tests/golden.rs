//! Every packet that the kernel's rxe sent in tests/data/pcaps parses, has the ICRC that we compute, and comes out of
//! our codecs byte for byte. So do those that urxe and rxe sent each other in tests/data/pcaps-urxe.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use urxe::wire::icrc::{Check, FlushIcrc, PathIcrc, verify};
use urxe::wire::{Headers, ICRC_LEN, MAX_HEADERS, Opcode, Packet, UDP_PORT};

/// Its address in the captures of urxe and rxe.
const URXE: [u8; 4] = [10, 77, 0, 1];

/// One RoCEv2 packet of a capture.
struct Captured {
    file: String,
    /// Counted from 1 as Wireshark does.
    number: usize,
    /// Sent by urxe, not by rxe.
    ours: bool,
    path: PathIcrc,
    /// None on IPv6.
    ip_id: Option<u16>,
    datagram: Vec<u8>,
}

impl Captured {
    fn name(&self) -> String {
        format!("{} packet {}", self.file, self.number)
    }
    fn is_flush(&self) -> bool {
        self.datagram[0] == Opcode::RcFlush as u8
    }
}

fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes(bytes[..2].try_into().unwrap())
}

/// Takes an Ethernet frame apart as far as the UDP payload.
fn decapsulate(file: &str, number: usize, frame: &[u8]) -> Captured {
    let ip = &frame[14..];
    let (path_of, ip_id, udp): (Box<dyn Fn(u16, u16) -> PathIcrc>, _, _) = match be16(&frame[12..]) {
        0x0800 => {
            assert_eq!(ip[0], 0x45, "no IP options");
            assert_eq!(be16(&ip[6..]), 0x4000, "DF and no fragment");
            let address = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
            let (src, dst) = (address(12), address(16));
            let total = usize::from(be16(&ip[2..]));
            (Box::new(move |s, d| PathIcrc::v4(src, dst, s, d)), Some(be16(&ip[4..])), &ip[20..total])
        }
        0x86dd => {
            let address = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap());
            let (src, dst) = (address(8), address(24));
            let total = 40 + usize::from(be16(&ip[4..]));
            (Box::new(move |s, d| PathIcrc::v6(src, dst, s, d)), None, &ip[40..total])
        }
        other => panic!("{file} packet {number}: ethertype {other:#x}"),
    };
    assert_eq!(be16(&udp[2..]), UDP_PORT);
    assert_eq!(usize::from(be16(&udp[4..])), udp.len());
    Captured {
        file: file.to_owned(),
        number,
        ours: ip[12..16] == URXE,
        path: path_of(be16(udp), be16(&udp[2..])),
        ip_id,
        datagram: udp[8..].to_vec(),
    }
}

/// A classic pcap file, little-endian, of Ethernet frames.
fn read(path: &Path) -> Vec<Captured> {
    let bytes = std::fs::read(path).unwrap();
    let le32 = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!((le32(0), le32(20)), (0xa1b2_c3d4, 1), "{}", path.display());
    let file = path.file_stem().unwrap().to_str().unwrap();
    let mut packets = Vec::new();
    let mut at = 24;
    while at < bytes.len() {
        let (captured, original) = (le32(at + 8) as usize, le32(at + 12) as usize);
        assert_eq!(captured, original, "{file} is cut");
        at += 16;
        packets.push(decapsulate(file, packets.len() + 1, &bytes[at..at + captured]));
        at += captured;
    }
    packets
}

fn all() -> Vec<Captured> {
    let (files, packets) = folder("tests/data/pcaps");
    assert_eq!((files, packets.len()), (24, 737), "the captures that README.md lists");
    packets
}

/// Of urxe and rxe with each other.
fn mixed() -> Vec<Captured> {
    let (files, packets) = folder("tests/data/pcaps-urxe");
    assert_eq!((files, packets.len()), (24, 1029), "the captures that README.md lists");
    packets
}

/// All packets of the files of a folder, and how many files there are.
fn folder(name: &str) -> (usize, Vec<Captured>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "pcap"));
    files.sort();
    (files.len(), files.iter().flat_map(|file| read(file)).collect())
}

/// Emits headers, payload, pad and ICRC as a sender would.
fn emit(headers: &Headers, payload: &[u8], path: &PathIcrc, ip_id: u16, flush: FlushIcrc) -> Vec<u8> {
    let mut head = [0; MAX_HEADERS];
    let len = headers.emit(&mut head);
    let mut out = head[..len].to_vec();
    out.extend_from_slice(payload);
    out.resize(out.len() + usize::from(headers.bth.pad) + ICRC_LEN, 0);
    path.seal(ip_id, flush, &mut out);
    out
}

#[test]
fn every_packet_parses_and_is_emitted_byte_for_byte() {
    for captured in all().into_iter().chain(mixed()) {
        let packet = Packet::parse(&captured.datagram).unwrap_or_else(|e| panic!("{}: {e}", captured.name()));
        let again = emit(
            &packet.headers,
            packet.payload,
            &captured.path,
            captured.ip_id.unwrap_or(0),
            FlushIcrc::Rxe,
        );
        assert_eq!(again, captured.datagram, "{} {:?}", captured.name(), packet.headers);
    }
}

#[test]
fn every_icrc_verifies_and_the_hidden_identification_is_found() {
    for captured in all() {
        let verify = |id| verify(&captured.path, id, &captured.datagram);
        let name = captured.name();
        match captured.ip_id {
            Some(id) => {
                assert_ne!(id, 0, "{name}: rxe counts from 1");
                assert_eq!(verify(Some(id)), Check::Match, "{name}");
                assert_eq!(verify(None), Check::SolvedId(id), "{name}");
                assert_eq!(verify(Some(id ^ 0x0100)), Check::Mismatch, "{name}");
            }
            None => assert_eq!(verify(None), Check::Match, "{name}"),
        }
    }
}

#[test]
fn only_flush_deviates_from_the_standard_icrc() {
    let mut flushes = 0;
    for captured in all() {
        let mut standard = captured.datagram.clone();
        captured.path.seal(captured.ip_id.unwrap_or(0), FlushIcrc::Standard, &mut standard);
        assert_eq!(standard != captured.datagram, captured.is_flush(), "{}", captured.name());
        if captured.is_flush() {
            flushes += 1;
            // We accept what a device that follows the standard would have sent, too.
            assert_eq!(verify(&captured.path, captured.ip_id, &standard), Check::Match);
            assert_eq!(verify(&captured.path, None, &standard), Check::SolvedId(captured.ip_id.unwrap()));
        }
    }
    assert_eq!(flushes, 2);
}

#[test]
fn no_flipped_bit_goes_unnoticed() {
    // One packet of each opcode and length below 100 bytes, and one full packet.
    let mut kinds = BTreeMap::new();
    for captured in all() {
        let len = captured.datagram.len();
        if len < 100 || len == 1040 {
            kinds.insert((captured.datagram[0], len, captured.ip_id.is_some()), captured);
        }
    }
    assert!(kinds.len() > 40, "{}", kinds.len());
    for captured in kinds.values() {
        let mut bytes = captured.datagram.clone();
        for bit in 0..8 * bytes.len() {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let check = verify(&captured.path, captured.ip_id, &bytes);
            let solved = verify(&captured.path, None, &bytes);
            // Byte 4 of the BTH is for switches to change; rxe's second round over a FLUSH has it unmasked.
            if bit / 8 == 4 && !captured.is_flush() {
                assert_eq!(check, Check::Match, "{} bit {bit}", captured.name());
            } else {
                assert_eq!(check, Check::Mismatch, "{} bit {bit}", captured.name());
                assert_ne!(solved, Check::Match, "{} bit {bit}", captured.name());
                assert!(captured.ip_id.is_none_or(|id| solved != Check::SolvedId(id)));
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn addresses_and_ports_are_covered() {
    let (a, b) = (Ipv4Addr::new(10, 77, 0, 2), Ipv4Addr::new(10, 77, 0, 3));
    let captured = all().into_iter().find(|c| c.file == "rc_send").unwrap();
    let port = (1..=u16::MAX)
        .find(|&port| {
            verify(&PathIcrc::v4(a, b, port, UDP_PORT), captured.ip_id, &captured.datagram) == Check::Match
        })
        .expect("the source port of the capture");
    for path in [
        PathIcrc::v4(b, a, port, UDP_PORT),
        PathIcrc::v4(a, a, port, UDP_PORT),
        PathIcrc::v4(a, b, port ^ 1, UDP_PORT),
        PathIcrc::v4(a, b, port, UDP_PORT ^ 1),
        PathIcrc::v6(a.to_ipv6_mapped(), b.to_ipv6_mapped(), port, UDP_PORT),
    ] {
        assert_eq!(verify(&path, captured.ip_id, &captured.datagram), Check::Mismatch);
    }
}

#[test]
fn urxe_and_rxe_compute_the_icrc_with_the_identification_on_the_wire() {
    for captured in mixed() {
        let id = captured.ip_id.unwrap();
        let name = captured.name();
        assert_eq!(verify(&captured.path, Some(id), &captured.datagram), Check::Match, "{name}");
        let unseen = if id == 0 { Check::Match } else { Check::SolvedId(id) };
        assert_eq!(verify(&captured.path, None, &captured.datagram), unseen, "{name}");
        assert!(captured.ours || id != 0, "{name}: rxe counts from 1");
    }
}

#[test]
fn urxe_counts_from_zero_in_each_run_that_the_kernel_segments() {
    let mut longest = 0;
    let mut before: Option<(String, u16)> = None;
    for captured in mixed().into_iter().filter(|c| c.ours) {
        let id = captured.ip_id.unwrap();
        if id != 0 {
            // The packets of a run leave together, so the one before it in the capture is the one before it in the run.
            assert_eq!(before, Some((captured.file.clone(), id - 1)), "{}", captured.name());
        }
        longest = longest.max(id);
        before = Some((captured.file, id));
    }
    assert!(longest >= 10, "a run of 12 full packets is in rc_large: {longest}");
}

#[test]
fn in_each_capture_of_a_connection_both_sides_are_heard() {
    let mut heard = BTreeMap::<String, [usize; 2]>::new();
    for captured in mixed() {
        heard.entry(captured.file).or_default()[usize::from(captured.ours)] += 1;
    }
    for (file, [theirs, ours]) in heard {
        let reliable = file.starts_with("rc_");
        let (requester, responder) = if file.ends_with(".out") { (ours, theirs) } else { (theirs, ours) };
        assert!(requester > 0, "{file}");
        assert_eq!(responder > 0, reliable, "{file}");
    }
}
