//! The requester's and completer's rules.

use urxe::ids::{Psn, QKey};
use urxe::time::Instant;
use urxe::verbs::{PostError, QpState, QpType, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus};
use urxe::wire::{NakCode, Opcode};

use crate::bench::{FIRST_PSN as P, MTU, Requester, ack, atomic_response, lines, nak, read_response, rnr};
use crate::harness::{CAPS, MS, SECOND};

const NOTHING: [&str; 0] = [];
const OK: WcStatus = WcStatus::Success;

#[test]
fn a_message_is_cut_into_packets_and_only_its_last_asks_for_an_acknowledgement() {
    let mut q = Requester::rc();
    q.post(1, SendOp::Send, &[q.mem.sge(0, 600)]);
    q.post(2, SendOp::SendImm([1, 2, 3, 4]), &[q.mem.sge(0, 5)]);
    q.post(3, SendOp::Write(q.mem.remote(0)), &[q.mem.sge(0, 512)]);
    q.post(4, SendOp::WriteImm(q.mem.remote(0), [1, 2, 3, 4]), &[q.mem.sge(0, 257)]);
    q.post(5, SendOp::Send, &[]);
    let sent = q.sends();
    assert_eq!(
        lines(&sent),
        [
            "SendFirst 100 [256]",
            "SendMiddle 101 [256]",
            "SendLast 102 ask [88]",
            "SendOnlyWithImmediate 103 imm [01, 02, 03, 04] ask [5]",
            "WriteFirst 104 of 512 [256]",
            "WriteLast 105 ask [256]",
            "WriteFirst 106 of 257 [256]",
            "WriteLastWithImmediate 107 imm [01, 02, 03, 04] ask [1]",
            "SendOnly 108 ask",
        ]
    );
    // Some adapters refuse packets whose migration bit is 0.
    assert!(sent.iter().all(|p| p.headers.bth.mig_req));
    // Pad bytes are zero, and their number is told.
    assert_eq!(sent[7].headers.bth.pad, 3);
    assert_eq!(sent[7].bytes[16 + 1..16 + 4], [0; 3]);
    q.hears(&ack(P + 8));
    assert_eq!(q.done(), [(1, OK), (2, OK), (3, OK), (4, OK), (5, OK)]);
}

#[test]
fn a_coalesced_acknowledgement_completes_all_sends_and_writes_before_it() {
    let mut q = Requester::rc();
    for i in 0..4 {
        q.post(i, SendOp::Send, &[q.mem.sge(0, 4)]);
    }
    q.sends();
    q.hears(&ack(P + 2));
    assert_eq!(q.done(), [(0, OK), (1, OK), (2, OK)]);
    // An old one that was overtaken says nothing new.
    q.hears(&ack(P));
    q.hears(&ack(P - 1));
    assert!(q.done().is_empty());
    q.hears(&ack(P + 3));
    assert_eq!(q.done(), [(3, OK)]);
    // So do acknowledgements of what was never sent.
    q.hears(&ack(P + 4));
    q.hears(&ack(P + 100));
    assert!(q.done().is_empty() && !q.fatal);
}

#[test]
fn an_acknowledgement_beyond_a_read_or_atomic_means_that_its_response_was_lost() {
    // IBA 9.7.5.1.1: it completes what is before the READ, and the READ is asked for again at once.
    let mut q = Requester::rc();
    q.post(1, SendOp::Send, &[q.mem.sge(0, 4)]);
    q.post(2, SendOp::Read(q.mem.remote(0)), &[q.mem.sge(1024, 600)]);
    q.post(3, SendOp::Send, &[q.mem.sge(0, 4)]);
    assert_eq!(q.says(), ["SendOnly 100 ask [4]", "ReadRequest 101 of 600 ask", "SendOnly 104 ask [4]"]);
    q.hears(&ack(P + 4));
    assert_eq!(q.done(), [(1, OK)]);
    assert_eq!(q.says(), ["ReadRequest 101 of 600 ask", "SendOnly 104 ask [4]"]);

    let mut q = Requester::rc();
    q.post(1, SendOp::FetchAdd { remote: q.mem.remote(0), add: 1 }, &[q.mem.sge(8, 8)]);
    q.post(2, SendOp::Send, &[q.mem.sge(0, 4)]);
    assert_eq!(q.says(), ["FetchAdd 100 ask", "SendOnly 101 ask [4]"]);
    q.hears(&ack(P + 1));
    q.hears(&ack(P));
    assert!(q.done().is_empty());
    assert_eq!(q.says(), ["FetchAdd 100 ask", "SendOnly 101 ask [4]"]);
    q.hears(&atomic_response(P, 77));
    q.hears(&ack(P + 1));
    assert_eq!(q.done(), [(1, OK), (2, OK)]);
    assert_eq!(q.mem.word(8), 77);
}

#[test]
fn a_response_acknowledges_the_requests_before_it() {
    let mut q = Requester::rc();
    q.post(1, SendOp::Send, &[q.mem.sge(0, 4)]);
    q.post(2, SendOp::Read(q.mem.remote(0)), &[q.mem.sge(1024, 4)]);
    q.sends();
    q.hears(&read_response(Opcode::RcRdmaReadResponseOnly, P + 1, b"read"));
    assert_eq!(q.done(), [(1, OK), (2, OK)]);
    assert_eq!(q.mem.buf.read(1024, 4), b"read");
}

#[test]
fn a_read_of_which_the_middle_was_lost_is_asked_for_from_there() {
    let mut q = Requester::rc();
    let remote = q.mem.remote(0);
    q.post(1, SendOp::Read(remote), &[q.mem.sge(1024, 1000)]);
    assert_eq!(q.says(), ["ReadRequest 100 of 1000 ask"]);
    q.hears(&read_response(Opcode::RcRdmaReadResponseFirst, P, &[1; MTU]));
    // 101 is lost.
    q.hears(&read_response(Opcode::RcRdmaReadResponseMiddle, P + 2, &[3; MTU]));
    let again = q.sends();
    assert_eq!(lines(&again), ["ReadRequest 101 of 744 ask"]);
    assert_eq!(again[0].headers.reth.unwrap().addr, remote.addr + MTU as u64);
    // The last one arrives late and again: neither counts.
    q.hears(&read_response(Opcode::RcRdmaReadResponseLast, P + 3, &[9; 232]));
    q.hears(&read_response(Opcode::RcRdmaReadResponseFirst, P, &[9; MTU]));
    assert!(q.done().is_empty());
    for (opcode, psn, byte, len) in [
        (Opcode::RcRdmaReadResponseFirst, P + 1, 2, MTU),
        (Opcode::RcRdmaReadResponseMiddle, P + 2, 3, MTU),
        (Opcode::RcRdmaReadResponseLast, P + 3, 4, 232),
    ] {
        q.hears(&read_response(opcode, psn, &vec![byte; len]));
    }
    assert_eq!(q.done(), [(1, OK)]);
    let want = [vec![1; MTU], vec![2; MTU], vec![3; MTU], vec![4; 232]].concat();
    assert_eq!(q.mem.buf.read(1024, 1000), want);
}

#[test]
fn a_read_response_of_another_length_than_asked_for_is_a_bad_response() {
    for payload in [&[0; 4][..], &[0; MTU], &[]] {
        let mut q = Requester::rc();
        q.post(1, SendOp::Read(q.mem.remote(0)), &[q.mem.sge(1024, 8)]);
        q.sends();
        q.hears(&read_response(Opcode::RcRdmaReadResponseOnly, P, payload));
        assert_eq!(q.done(), [(1, WcStatus::BadRespErr)]);
        assert!(q.fatal);
    }
}

#[test]
fn after_an_rnr_nak_nothing_is_sent_before_its_time_whatever_other_timers_say() {
    // Code 20 is 10.24 ms. The ACK timeout here (code 1: 8.2 us) and the tail probe are both shorter.
    let mut q = Requester::new(QpType::Rc, |c| c.timeout = 1);
    q.post(1, SendOp::Send, &[q.mem.sge(0, 4)]);
    q.post(2, SendOp::Send, &[q.mem.sge(0, 4)]);
    q.sends();
    q.wait_until(MS);
    q.hears(&rnr(P, 20));
    assert_eq!(q.says(), NOTHING);
    assert_eq!(q.side.deadline(), Instant(MS + 10_240_000));
    for at in (1..=10).map(|ms| ms * MS) {
        q.wait_until(MS + at);
        assert_eq!(q.says(), NOTHING, "at {at}");
    }
    // What is posted meanwhile waits too, and an older answer or a second NAK changes nothing.
    q.post(3, SendOp::Send, &[q.mem.sge(0, 4)]);
    q.hears(&rnr(P, 1));
    q.hears(&nak(P, NakCode::PsnSequence));
    q.hears(&ack(P - 1));
    q.wait_until(MS + 10_239_999);
    assert_eq!(q.says(), NOTHING);
    q.wait_until(MS + 10_240_000);
    assert_eq!(q.says(), ["SendOnly 100 ask [4]", "SendOnly 101 ask [4]", "SendOnly 102 ask [4]"]);
}

#[test]
fn rnr_code_0_is_the_longest_wait() {
    let mut q = Requester::rc();
    q.post(1, SendOp::Send, &[q.mem.sge(0, 4)]);
    q.sends();
    q.hears(&rnr(P, 0));
    assert_eq!(q.side.deadline(), Instant(655_360_000));
    let mut q = Requester::rc();
    q.post(1, SendOp::Send, &[q.mem.sge(0, 4)]);
    q.sends();
    q.hears(&rnr(P, 1));
    assert_eq!(q.side.deadline(), Instant(10_000));
}

/// Answers "not ready" until the requester gives up; how often that was.
fn rnr_naks_until_failure(rnr_retry: u8, most: u32) -> u32 {
    let mut q = Requester::new(QpType::Rc, |c| c.rnr_retry = rnr_retry);
    q.post(1, SendOp::Send, &[q.mem.sge(0, 4)]);
    for n in 0..most {
        assert_eq!(q.says(), ["SendOnly 100 ask [4]"]);
        q.hears(&rnr(P, 1));
        if let [done] = q.done()[..] {
            assert_eq!(done, (1, WcStatus::RnrRetryExcErr));
            return n + 1;
        }
        q.wait_until(q.side.deadline().0);
    }
    most
}

#[test]
fn rnr_retry_7_is_forever_and_less_is_a_count() {
    assert_eq!(rnr_naks_until_failure(0, 1000), 1);
    assert_eq!(rnr_naks_until_failure(3, 1000), 4);
    assert_eq!(rnr_naks_until_failure(6, 1000), 7);
    assert_eq!(rnr_naks_until_failure(7, 1000), 1000);
}

/// Hears nothing; when the requester gives up, at most `limit` ns on.
fn time_of_failure(timeout: u8, retry_cnt: u8, limit: u64) -> Option<u64> {
    let mut q = Requester::new(QpType::Rc, |c| (c.timeout, c.retry_cnt) = (timeout, retry_cnt));
    q.post(1, SendOp::Send, &[q.mem.sge(0, 4)]);
    q.sends();
    while q.side.deadline() < Instant(limit) {
        let at = q.side.deadline();
        assert!(at > q.now);
        q.wait_until(at.0);
        if let [done] = q.done()[..] {
            assert_eq!(done, (1, WcStatus::RetryExcErr));
            return Some(q.now.0);
        }
        assert_eq!(q.says(), ["SendOnly 100 ask [4]"]);
    }
    None
}

#[test]
fn a_local_ack_timeout_of_0_never_ends_and_others_end_after_their_retries() {
    assert_eq!(time_of_failure(0, 0, 3600 * SECOND), None);
    // Code 19 is 2.147 s. The first try and one retry: two timeouts.
    assert_eq!(time_of_failure(19, 0, 3600 * SECOND), Some(4096 << 19));
    assert_eq!(time_of_failure(19, 1, 3600 * SECOND), Some(2 * (4096 << 19)));
    assert_eq!(time_of_failure(19, 7, 3600 * SECOND), Some(8 * (4096 << 19)));
}

#[test]
fn a_lost_packet_is_sent_again_long_before_the_ack_timeout() {
    let mut q = Requester::rc();
    q.window.sample_rtt(MS);
    q.post(1, SendOp::Send, &[q.mem.sge(0, 600)]);
    q.sends();
    assert_eq!(q.side.deadline(), Instant(4 * MS));
    // The last packet alone first: the peer says what it misses.
    q.wait_until(q.side.deadline().0);
    assert_eq!(q.says(), ["SendLast 102 ask [88]"]);
    q.hears(&nak(P + 1, NakCode::PsnSequence));
    assert_eq!(q.says(), ["SendMiddle 101 [256]", "SendLast 102 ask [88]"]);
    q.hears(&ack(P + 2));
    assert_eq!(q.done(), [(1, OK)]);
    assert_eq!(q.side.deadline(), Instant::NEVER);
}

#[test]
fn probes_wait_longer_until_a_round_trip_is_measured_that_no_probe_disturbed() {
    // Otherwise packets to a distant peer would be sent again before they can be answered, and how far it is would
    // never be known.
    let mut q = Requester::rc();
    q.window.sample_rtt(MS);
    q.post(1, SendOp::Send, &[q.mem.sge(0, 4)]);
    q.sends();
    for at in [4, 4 + 8, 4 + 8 + 16] {
        assert_eq!(q.side.deadline(), Instant(at * MS));
        q.wait_until(at * MS);
        assert_eq!(q.says(), ["SendOnly 100 ask [4]"]);
    }
    // The answer is to one of four packets, nobody knows which.
    q.hears(&ack(P));
    assert_eq!(q.window.measured_rtt(), Some(MS));
    let start = q.now.0;
    q.post(2, SendOp::Send, &[q.mem.sge(0, 4)]);
    q.sends();
    assert_eq!(q.side.deadline(), Instant(start + 32 * MS));
    q.wait_until(start + 25 * MS);
    q.hears(&ack(P + 1));
    let measured = q.window.measured_rtt().unwrap();
    assert!((3 * MS..5 * MS).contains(&measured), "{measured}");
    q.post(3, SendOp::Send, &[q.mem.sge(0, 4)]);
    q.sends();
    // Twice the round trip, and four times how far it varies.
    let patience = q.window.patience().unwrap();
    assert!(patience > 2 * measured, "{patience}");
    assert_eq!(q.side.deadline(), Instant(q.now.0 + patience));
}

#[test]
fn retries_are_counted_anew_after_progress() {
    let mut q = Requester::new(QpType::Rc, |c| (c.timeout, c.retry_cnt) = (18, 1));
    for round in 0..5 {
        q.post(round, SendOp::Send, &[q.mem.sge(0, 4)]);
        q.sends();
        let start = q.now.0;
        while q.now.0 < start + (4096 << 18) {
            q.wait_until(q.side.deadline().0);
            q.sends();
        }
        q.hears(&ack(P + round as u32));
        assert_eq!(q.done(), [(round, OK)]);
    }
}

#[test]
fn a_nak_fails_its_request_and_flushes_the_later_ones() {
    for (code, status) in [
        (NakCode::InvalidRequest, WcStatus::RemInvReqErr),
        (NakCode::RemoteAccess, WcStatus::RemAccessErr),
        (NakCode::RemoteOperational, WcStatus::RemOpErr),
    ] {
        let mut q = Requester::rc();
        for i in 0..3 {
            q.post(i, SendOp::Send, &[q.mem.sge(0, 4)]);
        }
        q.sends();
        q.hears(&nak(P + 1, code));
        // What is before the refused request was executed.
        assert_eq!(q.done(), [(0, OK), (1, status), (2, WcStatus::WrFlushErr)]);
        assert!(q.fatal && q.side.state() == QpState::Err);
        assert_eq!(q.window.room(), u64::from(q.window.limit()), "nothing is in flight any more");
    }
}

#[test]
fn an_error_completion_names_the_request_the_queue_pair_and_the_check() {
    let mut q = Requester::rc();
    q.post(0xabc, SendOp::Read(q.mem.remote(0)), &[q.mem.sge(0, 4)]);
    q.sends();
    q.hears(&nak(P, NakCode::RemoteAccess));
    let wc = q.completions()[0];
    assert_eq!((wc.id, wc.status, wc.qpn), (0xabc, WcStatus::RemAccessErr, crate::bench::OURS));
    assert_ne!(wc.vendor_error, 0);
    assert!(q.failures[0].cause.to_string().contains("remote access"), "{:?}", q.failures);
}

#[test]
fn a_sequence_nak_goes_back_to_the_missing_packet() {
    let mut q = Requester::rc();
    q.post(1, SendOp::Send, &[q.mem.sge(0, 1000)]);
    q.post(2, SendOp::Send, &[q.mem.sge(0, 4)]);
    q.sends();
    q.hears(&nak(P + 2, NakCode::PsnSequence));
    assert_eq!(q.says(), ["SendMiddle 102 [256]", "SendLast 103 ask [232]", "SendOnly 104 ask [4]"]);
    // The same NAK again within a round trip is of the same loss.
    q.hears(&nak(P + 2, NakCode::PsnSequence));
    assert_eq!(q.says(), NOTHING);
    q.hears(&ack(P + 4));
    assert_eq!(q.done(), [(1, OK), (2, OK)]);
}

#[test]
fn a_message_goes_on_at_the_right_byte_where_the_system_stopped_taking_packets() {
    // 1, 4096 and 7 bytes from three places make one message, and every send call takes two packets only.
    let mut q = Requester::rc();
    let bytes: Vec<u8> = (0..8192).map(|i| (i % 239) as u8).collect();
    q.mem.buf.write(0, &bytes);
    let sges = [q.mem.sge(5, 1), q.mem.sge(1000, 4096), q.mem.sge(7000, 7)];
    let want = [&bytes[5..6], &bytes[1000..5096], &bytes[7000..7007]].concat();
    q.post(1, SendOp::Send, &sges);
    let mut got = Vec::new();
    for room in [2, 1, 0, 2, 3, 0, 1, 99] {
        got.extend(q.sends_at_most(room));
    }
    let psns: Vec<u32> = got.iter().map(|p| p.headers.bth.psn.value()).collect();
    assert_eq!(psns, (P..P + 17).collect::<Vec<_>>());
    assert_eq!(got.iter().flat_map(|p| p.payload.clone()).collect::<Vec<_>>(), want);
    q.hears(&ack(P + 16));
    assert_eq!(q.done(), [(1, OK)]);
}

#[test]
fn a_fenced_request_waits_for_earlier_reads_and_atomics_and_for_nothing_else() {
    let mut q = Requester::rc();
    q.post(1, SendOp::Send, &[q.mem.sge(0, 4)]);
    q.post_with(2, SendOp::Send, SendFlags::FENCE, &[q.mem.sge(0, 4)]);
    q.post(3, SendOp::Read(q.mem.remote(0)), &[q.mem.sge(8, 4)]);
    q.post_with(4, SendOp::Send, SendFlags::FENCE, &[q.mem.sge(0, 4)]);
    assert_eq!(q.says(), ["SendOnly 100 ask [4]", "SendOnly 101 ask [4]", "ReadRequest 102 of 4 ask"]);
    q.hears(&ack(P + 1));
    assert_eq!(q.says(), NOTHING);
    q.hears(&read_response(Opcode::RcRdmaReadResponseOnly, P + 2, b"read"));
    assert_eq!(q.says(), ["SendOnly 103 ask [4]"]);
}

#[test]
fn no_more_reads_and_atomics_are_outstanding_than_the_peer_allows() {
    let mut q = Requester::new(QpType::Rc, |c| c.max_rd_atomic = 2);
    for i in 0..3 {
        q.post(i, SendOp::Read(q.mem.remote(0)), &[q.mem.sge(8, 4)]);
    }
    q.post(3, SendOp::Send, &[q.mem.sge(8, 4)]);
    assert_eq!(q.says(), ["ReadRequest 100 of 4 ask", "ReadRequest 101 of 4 ask"]);
    q.hears(&read_response(Opcode::RcRdmaReadResponseOnly, P, b"read"));
    assert_eq!(q.says(), ["ReadRequest 102 of 4 ask", "SendOnly 103 ask [4]"]);
}

#[test]
fn posting_more_than_fits_fails_at_the_first_that_does_not_and_the_others_run() {
    let mut q = Requester::rc();
    for i in 0..u64::from(CAPS.max_send_wr) {
        q.post(i, SendOp::Send, &[]);
    }
    let wr = SendWr { id: 999, op: SendOp::Send, flags: SendFlags::default(), sges: &[], ud: None };
    assert_eq!(q.side.post(&wr), Err(PostError::Full(CAPS.max_send_wr)));
    assert_eq!(q.sends().len(), CAPS.max_send_wr as usize);
    q.hears(&ack(P + CAPS.max_send_wr - 1));
    // A slot is free when its completion was polled, so that a completion queue as large as the queue suffices.
    q.side.deliver();
    assert_eq!(q.side.post(&wr), Err(PostError::Full(CAPS.max_send_wr)));
    assert_eq!(q.done().len(), CAPS.max_send_wr as usize);
    assert_eq!(q.side.post(&wr), Ok(()));
}

#[test]
fn requests_that_cannot_be_are_refused_when_they_are_posted() {
    let wr = |op, flags, sges: &'static [Sge]| SendWr { id: 1, op, flags, sges, ud: None };
    let none = SendFlags::default();
    let mut q = Requester::rc();
    let remote = q.mem.remote(0);
    let unsupported = |r: Result<(), PostError>| matches!(r, Err(PostError::Unsupported(..)));
    assert!(unsupported(q.side.post(&wr(SendOp::Send, SendFlags(0x8000), &[]))));
    assert!(unsupported(q.side.post(&wr(SendOp::Read(remote), SendFlags::INLINE, &[]))));
    assert!(unsupported(q.side.post(&wr(SendOp::FetchAdd { remote, add: 1 }, none, &[]))));
    let mut q = Requester::new(QpType::Uc, |_| {});
    assert!(unsupported(q.side.post(&wr(SendOp::Read(remote), none, &[]))));
    assert!(unsupported(q.side.post(&wr(SendOp::FetchAdd { remote, add: 1 }, none, &[]))));
    let mut q = Requester::new(QpType::Ud, |_| {});
    assert!(unsupported(q.side.post(&wr(SendOp::Write(remote), none, &[]))));
    assert_eq!(q.side.post(&wr(SendOp::Send, none, &[])), Err(PostError::NoAddress));
    assert!(q.sends().is_empty());
}

#[test]
fn inline_data_longer_than_the_queue_pair_was_made_for_is_refused() {
    let mut q = Requester::rc();
    let max = CAPS.max_inline_data as usize;
    let sges = [q.mem.sge(0, max / 2), q.mem.sge(0, max / 2), q.mem.sge(0, 1)];
    let wr = SendWr { id: 1, op: SendOp::Send, flags: SendFlags::INLINE, sges: &sges, ud: None };
    let want = PostError::InlineTooLong { have: max as u64 + 1, max: max as u32 };
    assert_eq!(q.side.post(&wr), Err(want));
    assert_eq!(q.side.post(&SendWr { sges: &sges[..2], ..wr }), Ok(()));
    assert_eq!(q.says(), ["SendFirst 100 [256]", "SendLast 101 ask [256]"]);
}

#[test]
fn inline_data_is_copied_when_it_is_posted_and_its_keys_are_not_looked_at() {
    let mut q = Requester::rc();
    q.mem.buf.write(0, b"before");
    let sge = Sge { lkey: urxe::ids::LKey(0x4242), ..q.mem.sge(0, 6) };
    q.post_with(1, SendOp::Send, SendFlags::INLINE, &[sge]);
    q.mem.buf.write(0, b"after!");
    assert_eq!(q.sends()[0].payload, b"before");
}

#[test]
fn memory_that_is_not_ours_fails_the_request_when_its_turn_comes() {
    let bad = |q: &Requester| {
        [
            Sge { lkey: urxe::ids::LKey(0x4242), ..q.mem.sge(0, 8) },
            // Past the end, and past the end of all addresses.
            Sge { addr: q.mem.sge(0, 0).addr + q.mem.buf.len() as u64 - 4, ..q.mem.sge(0, 8) },
            Sge { addr: u64::MAX - 3, ..q.mem.sge(0, 8) },
        ]
    };
    for i in 0..3 {
        let mut q = Requester::rc();
        q.post(1, SendOp::Send, &[q.mem.sge(0, 4)]);
        let sges = [q.mem.sge(0, 8), bad(&q)[i]];
        q.post(2, SendOp::Send, &sges);
        q.post(3, SendOp::Send, &[q.mem.sge(0, 4)]);
        assert_eq!(q.says(), ["SendOnly 100 ask [4]"]);
        assert!(q.done().is_empty(), "the one before it is not done yet");
        q.hears(&ack(P));
        assert_eq!(q.done(), [(1, OK), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)]);
    }
    // An empty element is not looked at.
    let mut q = Requester::rc();
    q.post(1, SendOp::Send, &[Sge { addr: 3, len: 0, lkey: urxe::ids::LKey(7) }, q.mem.sge(0, 4)]);
    assert_eq!(q.says(), ["SendOnly 100 ask [4]"]);
}

#[test]
fn a_qkey_with_its_top_bit_set_means_the_queue_pairs_own() {
    // IBA 10.2.5: so that a program without privilege cannot choose a privileged key.
    let mut q = Requester::new(QpType::Ud, |c| c.qkey = QKey(0x8765_4321));
    q.post_to(1, 0x8000_0000, &[q.mem.sge(0, 4)]);
    q.post_to(2, 0x1111_1111, &[q.mem.sge(0, 4)]);
    let keys: Vec<u32> = q.sends().iter().map(|p| p.headers.deth.unwrap().qkey.0).collect();
    assert_eq!(keys, [0x8765_4321, 0x1111_1111]);
    assert_eq!(q.done(), [(1, OK), (2, OK)]);
}

#[test]
fn unreliable_requests_are_done_when_they_have_left() {
    let mut q = Requester::new(QpType::Uc, |_| {});
    q.post(1, SendOp::Send, &[q.mem.sge(0, 300)]);
    q.post(2, SendOp::Send, &[q.mem.sge(0, 4)]);
    assert_eq!(lines(&q.sends_at_most(1)), ["SendFirst 100 [256]"]);
    assert!(q.done().is_empty());
    assert_eq!(q.says(), ["SendLast 101 [44]", "SendOnly 102 [4]"]);
    assert_eq!(q.done(), [(1, OK), (2, OK)]);
    assert_eq!(q.side.deadline(), Instant::NEVER);
}

#[test]
fn unsignaled_requests_complete_in_silence_but_not_in_error() {
    let mut q = Requester::rc();
    // The bench's queue pair signals all; a second one does not.
    let side = urxe::qp::send::SendSide::new(
        QpType::Rc,
        crate::bench::OURS,
        urxe::mem::PdId(1),
        CAPS,
        false,
        q.cq.clone(),
    );
    let conn = q.side.connection().unwrap().clone();
    q.side = side;
    q.side.connect(conn);
    q.side.start(Psn::new(P));
    q.side.set_state(QpState::Rts, false);
    q.post(1, SendOp::Send, &[]);
    q.post_with(2, SendOp::Send, SendFlags::SIGNALED, &[]);
    q.post(3, SendOp::Send, &[]);
    q.post(4, SendOp::Send, &[]);
    q.sends();
    q.hears(&ack(P + 2));
    assert_eq!(q.done(), [(2, OK)]);
    q.hears(&nak(P + 3, NakCode::RemoteAccess));
    assert_eq!(q.done(), [(4, WcStatus::RemAccessErr)]);
}

#[test]
fn in_sqd_what_has_begun_ends_and_nothing_else_begins() {
    let mut q = Requester::rc();
    q.post(1, SendOp::Send, &[q.mem.sge(0, 600)]);
    assert_eq!(lines(&q.sends_at_most(1)), ["SendFirst 100 [256]"]);
    q.post(2, SendOp::Send, &[q.mem.sge(0, 4)]);
    q.side.set_state(QpState::Sqd, true);
    assert_eq!(q.says(), ["SendMiddle 101 [256]", "SendLast 102 ask [88]"]);
    q.hears(&ack(P + 2));
    assert_eq!(q.done(), [(1, OK)]);
    assert_eq!(q.says(), NOTHING);
    q.side.set_state(QpState::Rts, false);
    assert_eq!(q.says(), ["SendOnly 103 ask [4]"]);
}

#[test]
fn a_completion_says_what_was_done() {
    let mut q = Requester::rc();
    let remote = q.mem.remote(0);
    q.post(1, SendOp::Write(remote), &[q.mem.sge(0, 4)]);
    q.post(2, SendOp::Read(remote), &[q.mem.sge(8, 4)]);
    q.post(3, SendOp::CompareSwap { remote, compare: 1, swap: 2 }, &[q.mem.sge(16, 3), q.mem.sge(32, 5)]);
    q.sends();
    q.hears(&ack(P));
    q.hears(&read_response(Opcode::RcRdmaReadResponseOnly, P + 1, b"read"));
    q.hears(&atomic_response(P + 2, 0x0807_0605_0403_0201));
    let done: Vec<_> = q.completions().iter().map(|wc| (wc.id, wc.opcode, wc.byte_len)).collect();
    assert_eq!(done, [(1, WcOpcode::RdmaWrite, 4), (2, WcOpcode::RdmaRead, 4), (3, WcOpcode::CompSwap, 8)]);
    // In the byte order of the host, and scattered.
    let word = 0x0807_0605_0403_0201_u64.to_ne_bytes();
    assert_eq!(q.mem.buf.read(16, 3), word[..3]);
    assert_eq!(q.mem.buf.read(32, 5), word[3..]);
}
