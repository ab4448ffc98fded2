//! What the parser accepts comes out of the emitter again, and no datagram makes the ICRC code panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::net::Ipv4Addr;
use urxe::wire::icrc::{Check, FlushIcrc, PathIcrc, verify};
use urxe::wire::{MAX_HEADERS, Packet};

fuzz_target!(|datagram: &[u8]| {
    let path = PathIcrc::v4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, 0xc000, 4791);
    verify(&path, None, datagram);
    let Ok(packet) = Packet::parse(datagram) else { return };

    let mut headers = [0; MAX_HEADERS];
    let len = packet.headers.emit(&mut headers);
    let mut again = [&headers[..len], packet.payload].concat();
    again.resize(again.len() + usize::from(packet.headers.bth.pad), 0);
    again.extend(packet.icrc);
    assert_eq!(Packet::parse(&again), Ok(packet));
    // Reserved bits and the pad are cleared; nothing else may change.
    assert_eq!(again.len(), datagram.len());
    assert!(again.iter().zip(datagram).all(|(new, old)| new & old == *new));

    let id = u16::from_le_bytes([packet.icrc[0], packet.icrc[1]]);
    path.seal(id, FlushIcrc::Rxe, &mut again);
    if again.len() <= 65_507 {
        assert_eq!(verify(&path, Some(id), &again), Check::Match);
        let unknown = verify(&path, None, &again);
        assert!(unknown == Check::SolvedId(id) || id == 0 && unknown == Check::Match || again[0] == 0x1c);
    }
});
