//! The responder's rules.

use urxe::ids::Psn;
use urxe::mem::Access;
use urxe::verbs::{AsyncEvent, QpState, QpType, Remote, WcOpcode, WcStatus};
use urxe::wire::{AtomicEth, Deth, Opcode};

use crate::bench::{FIRST_PSN as P, MTU, Responder, fetch_add, lines, rdma, read_request, request};

const NOTHING: [&str; 0] = [];

#[test]
fn a_repeated_atomic_is_answered_from_its_saved_result_and_not_executed_again() {
    // When the acknowledgement of an atomic is lost, the requester repeats it; executing it twice would be wrong.
    let mut r = Responder::rc();
    r.mem.buf.write(64, &7u64.to_ne_bytes());
    let add = fetch_add(P, r.mem.remote(64), 5);
    assert_eq!(r.answer(&add), ["AtomicAcknowledge 100 msn 1 was 7"]);
    assert_eq!(r.answer(&add), ["AtomicAcknowledge 100 msn 1 was 7"]);
    assert_eq!(r.answer(&add), ["AtomicAcknowledge 100 msn 1 was 7"]);
    assert_eq!(r.mem.word(64), 12);
    // It is still there after other requests, as many as the peer may have outstanding.
    for i in 1..4 {
        let more = fetch_add(P + i, r.mem.remote(64), 1);
        assert_eq!(r.answer(&more), [format!("AtomicAcknowledge {:x} msn {} was {}", P + i, i + 1, 11 + i)]);
    }
    assert_eq!(r.answer(&add), ["AtomicAcknowledge 100 msn 1 was 7"]);
    assert_eq!(r.mem.word(64), 15);
}

#[test]
fn an_atomic_whose_result_is_no_longer_saved_is_dropped() {
    // Only as many results are kept as the peer may have outstanding; anything older cannot be a legal retry.
    let mut r = Responder::rc();
    for i in 0..5 {
        let add = fetch_add(P + i, r.mem.remote(0), 1);
        r.answer(&add);
    }
    let old = fetch_add(P, r.mem.remote(0), 1);
    assert_eq!(r.answer(&old), NOTHING);
    assert_eq!(r.mem.word(0), 5);
    assert!(!r.fatal);
}

#[test]
fn an_illegal_atomic_gets_a_nak_in_a_plain_acknowledge() {
    // A NAK has no result, so it cannot be an Atomic Acknowledge, which has a place for one.
    let mut r = Responder::rc();
    let bad = fetch_add(P, r.mem.nowhere(), 5);
    r.hears(&bad);
    let sent = r.sends();
    assert_eq!(lines(&sent), ["Nak RemoteAccess 100 msn 0"]);
    assert_eq!(sent[0].headers.bth.opcode, Opcode::RcAcknowledge);
}

#[test]
fn an_unaligned_atomic_is_an_invalid_request() {
    let mut r = Responder::rc();
    let bad = fetch_add(P, r.mem.remote(4), 5);
    assert_eq!(r.answer(&bad), ["Nak InvalidRequest 100 msn 0"]);
    assert_eq!(r.events, [AsyncEvent::QpRequestError(crate::bench::OURS)]);
    assert_eq!(r.mem.buf.read(0, 16), [0; 16]);
}

#[test]
fn a_write_out_of_bounds_is_refused_without_a_receive() {
    // No receive is posted and none is needed: a write takes none. The peer must hear a NAK, not time out, and the
    // program here must hear the event.
    let mut r = Responder::rc();
    let beyond = Remote { addr: r.mem.remote(0).addr + r.mem.buf.len() as u64 - 4, ..r.mem.remote(0) };
    let write = rdma(Opcode::RcRdmaWriteOnly, P, beyond, 8, &[1; 8]);
    assert_eq!(r.answer(&write), ["Nak RemoteAccess 100 msn 0"]);
    assert_eq!(r.events, [AsyncEvent::QpAccessError(crate::bench::OURS)]);
    assert!(r.fatal && r.side.state() == QpState::Err);
    assert_eq!(r.mem.buf.read(r.mem.buf.len() - 4, 4), [0; 4]);
}

#[test]
fn address_and_length_that_overflow_64_bits_are_an_access_error() {
    let overflowing: [fn(Remote) -> crate::bench::Seen; 3] = [
        |to| rdma(Opcode::RcRdmaWriteOnly, P, to, 8, &[1; 8]),
        |to| read_request(P, to, 0x8000_0000),
        |to| fetch_add(P, to, 1),
    ];
    for make in overflowing {
        let mut r = Responder::rc();
        let to = Remote { addr: u64::MAX - 7, ..r.mem.remote(0) };
        assert_eq!(r.answer(&make(to)), ["Nak RemoteAccess 100 msn 0"]);
    }
    // Also when the sum wraps to an address inside of the region.
    let mut r = Responder::rc();
    let start = r.mem.remote(0);
    let to = Remote { addr: start.addr.wrapping_sub(16), ..start };
    let write = rdma(Opcode::RcRdmaWriteOnly, P, to, 32, &[1; 32]);
    assert_eq!(r.answer(&write), ["Nak RemoteAccess 100 msn 0"]);
    assert_eq!(r.mem.buf.read(0, 32), [0; 32]);
}

#[test]
fn each_access_needs_the_permission_of_the_queue_pair_too() {
    for (denied, opcode) in
        [(Access::REMOTE_WRITE, Opcode::RcRdmaWriteOnly), (Access::REMOTE_READ, Opcode::RcRdmaReadRequest)]
    {
        let mut r = Responder::new(QpType::Rc, |a| a.access = Access(15 & !denied.0));
        let payload: &[u8] = if opcode == Opcode::RcRdmaWriteOnly { &[1; 8] } else { &[] };
        let bad = rdma(opcode, P, r.mem.remote(0), 8, payload);
        assert_eq!(r.answer(&bad), ["Nak RemoteAccess 100 msn 0"], "{opcode:?}");
    }
    let mut r = Responder::new(QpType::Rc, |a| a.access = Access(7));
    let bad = fetch_add(P, r.mem.remote(0), 1);
    assert_eq!(r.answer(&bad), ["Nak RemoteAccess 100 msn 0"]);
}

#[test]
fn a_write_or_read_of_no_bytes_needs_no_valid_key() {
    // IBA C9-88: a zero-length RDMA request is not checked against the memory.
    let mut r = Responder::rc();
    let write = rdma(Opcode::RcRdmaWriteOnly, P, r.mem.nowhere(), 0, &[]);
    assert_eq!(r.answer(&write), ["Ack 100 msn 1"]);
    let read = read_request(P + 1, r.mem.nowhere(), 0);
    assert_eq!(r.answer(&read), ["ReadResponseOnly 101 msn 2"]);
}

#[test]
fn a_read_with_a_depth_of_zero_is_an_invalid_request() {
    // max_dest_rd_atomic 0 says that no READ or atomic is expected at all.
    let mut r = Responder::new(QpType::Rc, |a| a.max_dest_rd_atomic = 0);
    let read = read_request(P, r.mem.remote(0), 8);
    assert_eq!(r.answer(&read), ["Nak InvalidRequest 100 msn 0"]);
    let mut r = Responder::new(QpType::Rc, |a| a.max_dest_rd_atomic = 0);
    let add = fetch_add(P, r.mem.remote(0), 8);
    assert_eq!(r.answer(&add), ["Nak InvalidRequest 100 msn 0"]);
}

#[test]
fn a_repeated_send_is_acknowledged_again_and_takes_no_second_receive() {
    let mut r = Responder::rc();
    r.post(1, &[r.mem.sge(0, 64)]);
    r.post(2, &[r.mem.sge(64, 64)]);
    let send = request(Opcode::RcSendOnly, P, b"once");
    assert_eq!(r.answer(&send), ["Ack 100 msn 1"]);
    assert_eq!(r.answer(&send), ["Ack 100 msn 1"]);
    let next = request(Opcode::RcSendOnly, P + 1, b"next");
    assert_eq!(r.answer(&next), ["Ack 101 msn 2"]);
    // A duplicate is answered with the latest PSN, which acknowledges all.
    assert_eq!(r.answer(&send), ["Ack 101 msn 2"]);
    let ids: Vec<u64> = r.completions().iter().map(|wc| wc.id).collect();
    assert_eq!(ids, [1, 2]);
    assert_eq!(r.mem.buf.read(0, 4), b"once");
}

#[test]
fn a_repeated_write_does_not_write_again() {
    let mut r = Responder::rc();
    let write = rdma(Opcode::RcRdmaWriteOnly, P, r.mem.remote(0), 4, b"data");
    assert_eq!(r.answer(&write), ["Ack 100 msn 1"]);
    r.mem.buf.write(0, b"mine");
    assert_eq!(r.answer(&write), ["Ack 100 msn 1"]);
    assert_eq!(r.mem.buf.read(0, 4), b"mine");
}

#[test]
fn half_of_the_psn_space_behind_is_duplicate_and_half_ahead_is_a_gap() {
    let mut r = Responder::rc();
    let at = |psn: u32| rdma(Opcode::RcRdmaWriteOnly, psn, Remote::default(), 0, &[]);
    let half = 0x80_0000;
    assert_eq!(r.answer(&at(P.wrapping_sub(1))), ["Ack ff msn 0"]);
    assert_eq!(r.answer(&at(P.wrapping_sub(half))), ["Ack ff msn 0"]);
    assert_eq!(r.answer(&at(P + half - 1)), ["Nak PsnSequence 100 msn 0"]);
}

#[test]
fn a_repeated_read_is_executed_again_also_in_part() {
    let mut r = Responder::rc();
    let bytes: Vec<u8> = (0..1000).map(|i| (i % 251) as u8).collect();
    r.mem.buf.write(0, &bytes);
    let read = read_request(P, r.mem.remote(0), 1000);
    let whole = [
        "ReadResponseFirst 100 msn 1 [256]",
        "ReadResponseMiddle 101 [256]",
        "ReadResponseMiddle 102 [256]",
        "ReadResponseLast 103 msn 1 [232]",
    ];
    assert_eq!(r.answer(&read), whole);
    assert_eq!(r.answer(&read), whole);
    // A requester that misses the end asks for that only, and gets what is there now.
    r.mem.buf.write(512, &[0xaa; 256]);
    let part = read_request(P + 2, r.mem.remote(512), 488);
    r.hears(&part);
    let sent = r.sends();
    assert_eq!(lines(&sent), ["ReadResponseFirst 102 msn 1 [256]", "ReadResponseLast 103 msn 1 [232]"]);
    assert_eq!(sent[0].payload, [0xaa; 256]);
    assert_eq!(sent[1].payload, bytes[768..]);
    // The PSN that is expected next is that after the response, which takes a PSN for each packet.
    assert_eq!(r.side.rq_psn(), Psn::new(P + 4));
}

#[test]
fn a_repeated_read_is_checked_against_the_memory_again() {
    let mut r = Responder::rc();
    let read = read_request(P, r.mem.remote(0), 8);
    assert_eq!(r.answer(&read).len(), 1);
    let other = read_request(P, r.mem.nowhere(), 8);
    assert_eq!(r.answer(&other), NOTHING);
    r.mem.table.deregister(r.mem.keys.lkey).unwrap();
    assert_eq!(r.answer(&read), NOTHING);
}

#[test]
fn a_repeated_read_must_not_ask_for_more_than_was_executed() {
    let mut r = Responder::rc();
    let read = read_request(P, r.mem.remote(0), 512);
    assert_eq!(r.answer(&read).len(), 2);
    let longer = read_request(P + 1, r.mem.remote(256), 512);
    assert_eq!(r.answer(&longer), NOTHING);
    assert_eq!(r.side.rq_psn(), Psn::new(P + 2));
}

#[test]
fn one_sequence_nak_is_sent_for_a_gap() {
    // IBA 9.7.5.2.8: a second one would make the requester go back twice for the same loss.
    let mut r = Responder::rc();
    r.post(1, &[r.mem.sge(0, 64)]);
    for psn in [P + 1, P + 2, P + 3] {
        let expected: &[&str] = if psn == P + 1 { &["Nak PsnSequence 100 msn 0"] } else { &[] };
        assert_eq!(r.answer(&request(Opcode::RcSendOnly, psn, b"x")), expected);
    }
    // The gap closes; the next one is another.
    assert_eq!(r.answer(&request(Opcode::RcSendOnly, P, b"x")), ["Ack 100 msn 1"]);
    assert_eq!(r.answer(&request(Opcode::RcSendOnly, P + 9, b"x")), ["Nak PsnSequence 101 msn 1"]);
}

#[test]
fn the_msn_counts_messages_and_not_packets() {
    let mut r = Responder::rc();
    r.post(1, &[r.mem.sge(0, 1024)]);
    assert_eq!(r.answer(&request(Opcode::RcSendFirst, P, &[1; MTU])), NOTHING);
    assert_eq!(r.answer(&request(Opcode::RcSendMiddle, P + 1, &[2; MTU])), NOTHING);
    assert_eq!(r.answer(&request(Opcode::RcSendLast, P + 2, &[3; 5])), ["Ack 102 msn 1"]);
    let read = read_request(P + 3, r.mem.remote(0), 600);
    assert_eq!(r.answer(&read)[0], "ReadResponseFirst 103 msn 2 [256]");
    assert_eq!(r.completions()[0].byte_len, 517);
}

#[test]
fn an_ack_request_in_the_middle_of_a_message_is_answered() {
    let mut r = Responder::rc();
    r.post(1, &[r.mem.sge(0, 1024)]);
    let mut first = request(Opcode::RcSendFirst, P, &[1; MTU]);
    first.headers.bth.ack_request = true;
    assert_eq!(r.answer(&first), ["Ack 100 msn 0"]);
}

#[test]
fn without_a_receive_the_sender_is_told_to_wait_and_nothing_is_executed() {
    let mut r = Responder::rc();
    let send = request(Opcode::RcSendOnly, P, b"data");
    assert_eq!(r.answer(&send), ["Rnr 12 100 msn 0"]);
    // What follows is out of sequence, but was told already.
    assert_eq!(r.answer(&request(Opcode::RcSendOnly, P + 1, b"more")), NOTHING);
    r.post(1, &[r.mem.sge(0, 64)]);
    assert_eq!(r.answer(&send), ["Ack 100 msn 1"]);
    // The same for the last packet of a write with immediate data: its data must not be acknowledged.
    let mut write = rdma(Opcode::RcRdmaWriteOnlyWithImmediate, P + 1, r.mem.remote(0), 4, b"imm!");
    write.headers.immediate = Some([1, 2, 3, 4]);
    assert_eq!(r.answer(&write), ["Rnr 12 101 msn 1"]);
    assert_eq!(r.side.rq_psn(), Psn::new(P + 1));
}

#[test]
fn a_write_with_immediate_reports_the_length_of_the_whole_write() {
    // Immediate data is four bytes, not a number: it is reported in the order of the wire.
    let mut r = Responder::rc();
    r.post(9, &[]);
    let to = r.mem.remote(0);
    assert_eq!(r.answer(&rdma(Opcode::RcRdmaWriteFirst, P, to, 600, &[1; MTU])), NOTHING);
    assert_eq!(r.answer(&request(Opcode::RcRdmaWriteMiddle, P + 1, &[2; MTU])), NOTHING);
    let mut last = request(Opcode::RcRdmaWriteLastWithImmediate, P + 2, &[3; 88]);
    last.headers.immediate = Some([0xde, 0xad, 0xbe, 0xef]);
    assert_eq!(r.answer(&last), ["Ack 102 msn 1"]);
    let wc = r.completions()[0];
    assert_eq!((wc.id, wc.opcode, wc.byte_len), (9, WcOpcode::RecvRdmaWithImm, 600));
    assert_eq!(wc.immediate, Some([0xde, 0xad, 0xbe, 0xef]));
}

#[test]
fn a_message_longer_than_its_receive_fails_on_both_sides() {
    let mut r = Responder::rc();
    r.post(1, &[r.mem.sge(0, 300)]);
    assert_eq!(r.answer(&request(Opcode::RcSendFirst, P, &[1; MTU])), NOTHING);
    assert_eq!(r.answer(&request(Opcode::RcSendLast, P + 1, &[1; MTU])), ["Nak InvalidRequest 101 msn 0"]);
    let wc = r.completions()[0];
    assert_eq!((wc.id, wc.status), (1, WcStatus::LocLenErr));
    assert_ne!(wc.vendor_error, 0);
}

#[test]
fn packets_of_a_message_that_do_not_belong_together_are_an_invalid_request() {
    // IBA 9.7.4.1: a first or only packet inside of a message, a middle or last one outside, another operation.
    for packets in [
        vec![request(Opcode::RcSendMiddle, P, &[0; MTU])],
        vec![request(Opcode::RcSendLast, P, &[0; 8])],
        vec![request(Opcode::RcSendFirst, P, &[0; MTU]), request(Opcode::RcSendFirst, P + 1, &[0; MTU])],
        vec![request(Opcode::RcSendFirst, P, &[0; MTU]), request(Opcode::RcRdmaWriteLast, P + 1, &[0; 8])],
        vec![request(Opcode::RcSendFirst, P, &[0; MTU]), fetch_add(P + 1, Remote::default(), 1)],
        // Wrong lengths: a first packet that is not full, an empty last one, an only one that is too long.
        vec![request(Opcode::RcSendFirst, P, &[0; MTU - 4])],
        vec![request(Opcode::RcSendFirst, P, &[0; MTU]), request(Opcode::RcSendLast, P + 1, &[])],
        vec![request(Opcode::RcSendOnly, P, &[0; MTU + 4])],
    ] {
        let mut r = Responder::rc();
        r.post(1, &[r.mem.sge(0, 4096)]);
        let mut last = Vec::new();
        for packet in &packets {
            last = r.answer(packet);
        }
        let psn = P as usize + packets.len() - 1;
        assert_eq!(last, [format!("Nak InvalidRequest {psn:x} msn 0")], "{:?}", lines(&packets));
        // The receive of the message that broke off is flushed, and nothing is received any more.
        assert_eq!(r.completions().iter().map(|wc| wc.id).collect::<Vec<_>>(), [1]);
        assert_eq!(r.answer(&request(Opcode::RcSendOnly, P + 9, &[])), NOTHING);
    }
}

#[test]
fn a_write_whose_packets_do_not_add_up_is_an_invalid_request() {
    for (len, last) in [(600, 80), (600, 96), (MTU as u32, 8)] {
        let mut r = Responder::rc();
        let to = r.mem.remote(0);
        r.answer(&rdma(Opcode::RcRdmaWriteFirst, P, to, len, &[1; MTU]));
        let reply = r.answer(&request(Opcode::RcRdmaWriteLast, P + 1, &vec![1; last]));
        assert_eq!(reply, ["Nak InvalidRequest 101 msn 0"]);
    }
}

#[test]
fn a_message_of_more_than_two_gigabytes_is_an_invalid_request() {
    let mut r = Responder::rc();
    let read = read_request(P, r.mem.remote(0), 0x8000_0001);
    assert_eq!(r.answer(&read), ["Nak InvalidRequest 100 msn 0"]);
}

#[test]
fn both_values_of_the_migration_bit_are_accepted() {
    // Adapters send 1, the kernel's rxe sends 0, and some adapters refuse 0.
    let mut r = Responder::rc();
    for (i, mig_req) in [true, false].into_iter().enumerate() {
        r.post(i as u64, &[r.mem.sge(0, 8)]);
        let mut send = request(Opcode::RcSendOnly, P + i as u32, b"x");
        send.headers.bth.mig_req = mig_req;
        r.hears(&send);
        let sent = r.sends();
        assert_eq!(lines(&sent).len(), 1);
        assert!(sent[0].headers.bth.mig_req, "what we send has it set");
    }
}

#[test]
fn acknowledgements_of_several_messages_become_one() {
    let mut r = Responder::rc();
    for i in 0..5 {
        r.post(i, &[r.mem.sge(0, 8)]);
    }
    for i in 0..5 {
        r.hears(&request(Opcode::RcSendOnly, P + i, b"x"));
    }
    assert_eq!(lines(&r.sends()), ["Ack 104 msn 5"]);
}

#[test]
fn replies_leave_in_the_order_of_their_requests() {
    let mut r = Responder::rc();
    r.post(1, &[r.mem.sge(0, 8)]);
    let (to, word) = (r.mem.remote(256), r.mem.remote(0));
    r.hears(&rdma(Opcode::RcRdmaWriteOnly, P, to, 4, b"data"));
    r.hears(&read_request(P + 1, to, 300));
    r.hears(&request(Opcode::RcSendOnly, P + 3, b"x"));
    r.hears(&fetch_add(P + 4, word, 1));
    r.hears(&rdma(Opcode::RcRdmaWriteOnly, P + 5, to, 4, b"data"));
    let sent = lines(&r.sends());
    let order: Vec<&str> = sent.iter().map(|l| l.split(' ').nth(1).unwrap()).collect();
    assert_eq!(order, ["100", "101", "102", "103", "104", "105"], "{sent:?}");
}

#[test]
fn a_send_with_invalidate_is_refused() {
    // It may name only the key of a type 2 window, which this device does not have: never a region's.
    let mut r = Responder::rc();
    r.post(1, &[r.mem.sge(0, 64)]);
    let mut send = request(Opcode::RcSendOnlyWithInvalidate, P, b"x");
    send.headers.invalidate = Some(r.mem.keys.rkey);
    assert_eq!(r.answer(&send), ["Nak InvalidRequest 100 msn 0"]);
    assert_eq!(r.mem.table.len(), 1);
}

#[test]
fn an_operation_that_is_not_offered_is_an_invalid_request() {
    for opcode in [Opcode::RcFlush, Opcode::RcAtomicWrite] {
        let mut r = Responder::rc();
        let packet = rdma(opcode, P, r.mem.remote(0), 8, &[0; 8]);
        assert_eq!(r.answer(&packet), ["Nak InvalidRequest 100 msn 0"], "{opcode:?}");
    }
}

#[test]
fn a_receive_in_memory_that_is_gone_fails_on_both_sides() {
    let mut r = Responder::rc();
    r.post(1, &[r.mem.sge(0, 64)]);
    r.mem.table.deregister(r.mem.keys.lkey).unwrap();
    assert_eq!(r.answer(&request(Opcode::RcSendOnly, P, b"x")), ["Nak RemoteOperational 100 msn 0"]);
    let wc = r.completions()[0];
    assert_eq!((wc.id, wc.status), (1, WcStatus::LocProtErr));
}

#[test]
fn compare_and_swap_swaps_only_what_is_equal() {
    let mut r = Responder::rc();
    r.mem.buf.write(0, &7u64.to_ne_bytes());
    let mut swap = |psn, compare, to| {
        let mut packet = request(Opcode::RcCompareSwap, psn, &[]);
        let Remote { addr, rkey } = r.mem.remote(0);
        packet.headers.atomic = Some(AtomicEth { addr, rkey, swap_add: to, compare });
        r.answer(&packet)
    };
    assert_eq!(swap(P, 8, 1), ["AtomicAcknowledge 100 msn 1 was 7"]);
    assert_eq!(swap(P + 1, 7, 1), ["AtomicAcknowledge 101 msn 2 was 7"]);
    assert_eq!(swap(P + 2, 7, 2), ["AtomicAcknowledge 102 msn 3 was 1"]);
    assert_eq!(r.mem.word(0), 1);
}

/// A datagram.
fn datagram(qkey: u32, payload: &[u8]) -> crate::bench::Seen {
    let mut packet = request(Opcode::UdSendOnly, 7, payload);
    packet.headers.deth = Some(Deth { qkey: urxe::ids::QKey(qkey), src_qpn: crate::bench::THEIRS });
    packet
}

#[test]
fn a_datagram_that_does_not_fit_its_receive_is_dropped_and_the_receive_stays() {
    let mut r = Responder::new(QpType::Ud, |_| {});
    r.post(1, &[r.mem.sge(0, 40 + 8)]);
    assert_eq!(r.answer(&datagram(0x1234, &[1; 9])), NOTHING);
    assert!(r.completions().is_empty() && !r.fatal);
    assert_eq!(r.side.drops().too_long, 1);
    r.answer(&datagram(0x1234, &[2; 8]));
    let wc = r.completions()[0];
    assert_eq!((wc.id, wc.status, wc.byte_len, wc.grh), (1, WcStatus::Success, 48, true));
    assert_eq!(wc.src_qpn, crate::bench::THEIRS);
    assert_eq!(r.mem.buf.read(40, 8), [2; 8]);
    // The IPv4 header is in the second half of the 40 bytes.
    assert_eq!(r.mem.buf.read(0, 21), [[0; 20].as_slice(), &[0x45]].concat());
    assert_eq!(r.mem.buf.read(32, 8), [10, 0, 0, 2, 10, 0, 0, 1]);
}

#[test]
fn a_datagram_with_another_qkey_is_dropped() {
    let mut r = Responder::new(QpType::Ud, |_| {});
    r.post(1, &[r.mem.sge(0, 100)]);
    assert_eq!(r.answer(&datagram(0x1235, &[1; 8])), NOTHING);
    assert!(r.completions().is_empty());
    assert_eq!(r.side.drops().qkey, 1);
}

#[test]
fn an_unreliable_message_with_a_hole_is_dropped_whole_and_its_receive_is_used_for_the_next() {
    let mut r = Responder::new(QpType::Uc, |_| {});
    r.post(1, &[r.mem.sge(0, 1024)]);
    r.post(2, &[r.mem.sge(1024, 1024)]);
    r.hears(&request(Opcode::UcSendFirst, P, &[1; MTU]));
    r.hears(&request(Opcode::UcSendLast, P + 2, &[1; 8]));
    assert!(r.completions().is_empty());
    r.hears(&request(Opcode::UcSendFirst, P + 3, &[2; MTU]));
    r.hears(&request(Opcode::UcSendLast, P + 4, &[2; 8]));
    let done = r.completions();
    assert_eq!(done.iter().map(|wc| (wc.id, wc.byte_len)).collect::<Vec<_>>(), [(1, 264)]);
    assert_eq!(r.mem.buf.read(0, 264), [2; 264]);
    // The first packet of a message may be the one that is lost.
    r.hears(&request(Opcode::UcSendMiddle, P + 6, &[3; MTU]));
    r.hears(&request(Opcode::UcSendLast, P + 7, &[3; 8]));
    r.hears(&request(Opcode::UcSendOnly, P + 8, &[4; 4]));
    let done = r.completions();
    assert_eq!(done.iter().map(|wc| (wc.id, wc.byte_len)).collect::<Vec<_>>(), [(2, 4)]);
    assert!(r.sends().is_empty() && !r.fatal);
}

#[test]
fn an_unreliable_message_with_an_illegal_packet_keeps_its_receive_for_the_next() {
    let mut r = Responder::new(QpType::Uc, |_| {});
    r.post(1, &[r.mem.sge(0, 1024)]);
    r.hears(&request(Opcode::UcSendFirst, P, &[1; MTU]));
    r.hears(&request(Opcode::UcSendMiddle, P + 1, &[1; 8]));
    r.hears(&request(Opcode::UcSendOnly, P + 2, &[2; 8]));
    let done = r.completions();
    assert_eq!(done.iter().map(|wc| (wc.id, wc.byte_len)).collect::<Vec<_>>(), [(1, 8)]);
}

#[test]
fn an_unreliable_request_without_access_is_dropped_without_an_answer() {
    let mut r = Responder::new(QpType::Uc, |_| {});
    r.hears(&rdma(Opcode::UcRdmaWriteOnly, P, r.mem.nowhere(), 4, b"data"));
    assert!(r.sends().is_empty() && !r.fatal);
    let to = r.mem.remote(0);
    r.hears(&rdma(Opcode::UcRdmaWriteOnly, P + 1, to, 4, b"data"));
    assert_eq!(r.mem.buf.read(0, 4), b"data");
}

#[test]
fn packets_of_another_service_are_dropped() {
    let mut r = Responder::rc();
    r.post(1, &[r.mem.sge(0, 100)]);
    assert_eq!(r.answer(&request(Opcode::UcSendOnly, P, b"x")), NOTHING);
    assert_eq!(r.answer(&datagram(0x1234, b"x")), NOTHING);
    assert!(r.completions().is_empty() && !r.fatal);
    assert_eq!(r.side.drops().state, 2);
}

#[test]
fn a_read_goes_on_where_the_system_stopped_taking_packets() {
    let mut r = Responder::rc();
    let bytes: Vec<u8> = (0..2000).map(|i| (i % 241) as u8).collect();
    r.mem.buf.write(0, &bytes);
    r.hears(&read_request(P, r.mem.remote(0), 2000));
    let mut got = Vec::new();
    for taken in [3, 1, 0, 2, 99] {
        let mut batch = urxe::wire::TxBatch::new();
        r.side.poll_transmit(r.now, &r.mem.table, &mut batch, &mut Default::default());
        let taken = taken.min(batch.packets());
        let all = crate::bench::drain(&batch);
        r.side.handle_sent(taken);
        got.extend(all.into_iter().take(taken).map(|p| (p.headers.bth.psn.value(), p.payload)));
    }
    assert_eq!(got.iter().map(|g| g.0).collect::<Vec<_>>(), (P..P + 8).collect::<Vec<_>>());
    assert_eq!(got.concat_payloads(), bytes);
}

trait ConcatPayloads {
    fn concat_payloads(&self) -> Vec<u8>;
}
impl ConcatPayloads for Vec<(u32, Vec<u8>)> {
    fn concat_payloads(&self) -> Vec<u8> {
        self.iter().flat_map(|(_, p)| p.iter().copied()).collect()
    }
}
