//! Every operation meets absent pages at both ends, in virtual time.

use urxe::device::Device;
use urxe::mem::odp::Advice;
use urxe::mem::{Access, AdviseError, HostAddr, PdId, Registered, copy};
use urxe::time::Latency;
use urxe::verbs::{QpType, Remote, SendOp, Sge, WcOpcode, WcStatus};

use crate::harness::{
    ALL_ACCESS, Buf, End, EndInit, MS, Rng, SECOND, US, Wiring, World, config, counter, good, pair, perfect,
    seeds,
};
use crate::memory::{Map, PAGE, has_events};
use crate::traffic::{Fabric, Plan, exchange};

pub(crate) const ODP: Access = Access(ALL_ACCESS.0 | Access::ON_DEMAND.0);

/// A mapping with its keys on a device.
pub(crate) struct Paged {
    pub(crate) map: Map,
    pub(crate) keys: Registered,
}

impl Paged {
    pub(crate) fn new(device: &Device, pd: PdId, map: Map, access: Access) -> Self {
        let keys = device.memory().register(pd, map.addr, map.len as u64, map.addr, access).unwrap();
        Self { map, keys }
    }
    pub(crate) fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.map.addr + at as u64, len: len as u32, lkey: self.keys.lkey }
    }
    pub(crate) fn remote(&self, at: usize) -> Remote {
        Remote { addr: self.map.addr + at as u64, rkey: self.keys.rkey }
    }
    pub(crate) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        copy::read(HostAddr(self.map.addr + at as u64), &mut bytes).unwrap();
        bytes
    }
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        copy::write(HostAddr(self.map.addr + at as u64), bytes).unwrap();
    }
}

/// Lets time pass until `ends` have so many completions.
pub(crate) fn completions(world: &mut World, end: &End, n: usize) -> Vec<urxe::verbs::Wc> {
    let mut all = Vec::new();
    world.run_until("completions", 20 * SECOND, |_| {
        all.extend(end.poll());
        all.len() >= n
    });
    all
}

#[test]
fn every_operation_of_rc_waits_for_its_pages_and_then_is_done_right() {
    for latency in ["none", "300us", "exp:1000us"] {
        let config = config(&[("odp_latency", latency)]);
        let mut world = World::with_config(1, perfect(), 2, &config);
        let (a, b) = pair(&world, &EndInit::default(), &Wiring::default());
        let len = 300_000;
        let local = Paged::new(&world.devices[0], a.pd, Map::shared(len), ODP);
        let remote = Paged::new(&world.devices[1], b.pd, Map::anonymous(2 * len), ODP);
        let data = Rng(5).bytes(len);
        local.write(0, &data);
        // Present for the program, which says nothing about the device.
        b.recv(1, &[remote.sge(0, len)]);
        a.post(2, SendOp::Send, &[local.sge(0, len)]);
        assert_eq!(good(&completions(&mut world, &a, 1)[0]), (2, WcOpcode::Send, len as u32));
        assert_eq!(good(&b.poll()[0]), (1, WcOpcode::Recv, len as u32));
        assert!(remote.read(0, len) == data);

        b.recv(3, &[]);
        a.post(4, SendOp::WriteImm(remote.remote(len), [1, 2, 3, 4]), &[local.sge(0, len)]);
        assert_eq!(good(&completions(&mut world, &a, 1)[0]).0, 4);
        assert_eq!(good(&b.poll()[0]).0, 3);
        assert!(remote.read(len, len) == data);

        let back = Paged::new(&world.devices[0], a.pd, Map::anonymous(len), ODP);
        a.post(5, SendOp::Read(remote.remote(7)), &[back.sge(1, 1000), back.sge(1001, len - 2000)]);
        assert_eq!(good(&completions(&mut world, &a, 1)[0]).0, 5);
        assert!(back.read(1, len - 1000) == data[7..len - 993]);

        let atomics = Paged::new(&world.devices[1], b.pd, Map::anonymous(PAGE), ODP);
        let result = Paged::new(&world.devices[0], a.pd, Map::anonymous(PAGE), ODP);
        let add = SendOp::FetchAdd { remote: atomics.remote(8), add: 5 };
        let swap = SendOp::CompareSwap { remote: atomics.remote(8), compare: 5, swap: 9 };
        a.post(6, add, &[result.sge(0, 8)]);
        a.post(7, swap, &[result.sge(8, 8)]);
        assert_eq!(completions(&mut world, &a, 2).iter().map(|wc| good(wc).0).collect::<Vec<_>>(), [6, 7]);
        assert_eq!(result.read(0, 16), [0_u64.to_ne_bytes(), 5_u64.to_ne_bytes()].concat());
        assert_eq!(atomics.read(8, 8), 9_u64.to_ne_bytes());

        for (device, names) in [
            (0, &["odp_requester_faults", "odp_write_faults", "odp_read_faults"][..]),
            (1, &["odp_responder_faults", "odp_receive_faults", "odp_write_faults"]),
        ] {
            let device = &world.devices[device];
            for name in names {
                assert!(counter(device, name) > 0, "{latency}: {name}");
            }
            assert_eq!(counter(device, "odp_waits"), counter(device, "odp_waits_ended"));
            assert_eq!(counter(device, "odp_failed_faults"), 0);
        }
        if latency == "300us" {
            assert!(counter(&world.devices[1], "odp_resolve_p50_ns") >= 290 * US);
        }
    }
}

#[test]
fn a_page_that_is_present_is_not_faulted_again_until_the_program_takes_it_away() {
    let mut world = World::new(2, perfect(), 2);
    let (a, b) = pair(&world, &EndInit::default(), &Wiring::default());
    let target = Paged::new(&world.devices[1], b.pd, Map::shared(16 * PAGE), ODP);
    let device = |world: &World| counter(&world.devices[1], "page_faults");
    let write = |world: &mut World, id| {
        a.post(id, SendOp::Write(target.remote(0)), &[a.sge(0, 16 * PAGE)]);
        assert_eq!(good(&completions(world, &a, 1)[0]).0, id);
    };
    write(&mut world, 1);
    let first = device(&world);
    assert_eq!(first, 1, "the first packet's fault is for the whole message");
    write(&mut world, 2);
    assert_eq!(device(&world), first);
    if has_events() {
        let before = counter(&world.devices[1], "page_invalidations");
        target.map.advise(4 * PAGE, 2 * PAGE, libc::MADV_DONTNEED);
        // The event has been read when the call returns, and is counted a moment later.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while counter(&world.devices[1], "page_invalidations") == before {
            assert!(std::time::Instant::now() < end, "no event");
            std::thread::yield_now();
        }
        assert_eq!(counter(&world.devices[1], "odp_invalidated_pages"), 2);
        write(&mut world, 3);
        assert_eq!(device(&world), first + 1);
    }
}

#[test]
fn unreliable_messages_wait_for_pages_at_both_ends() {
    for kind in [QpType::Uc, QpType::Ud] {
        let config = config(&[("odp_latency", "200us")]);
        let mut world = World::with_config(3, perfect(), 2, &config);
        let (a, b) = pair(&world, &EndInit { kind, ..EndInit::default() }, &Wiring::default());
        let (len, grh) = if kind == QpType::Ud { (1000, 40) } else { (100_000, 0) };
        let source = Paged::new(&world.devices[0], a.pd, Map::anonymous(32 * len), ODP);
        let target = Paged::new(&world.devices[1], b.pd, Map::anonymous(32 * (len + grh)), ODP);
        let data = Rng(9).bytes(32 * len);
        source.write(0, &data);
        for i in 0..32 {
            b.recv(i as u64, &[target.sge(i * (len + grh), len + grh)]);
        }
        let ud = (kind == QpType::Ud).then(|| urxe::verbs::UdDest {
            path: world.devices[0].resolve(&crate::harness::vector(b.ip)).unwrap(),
            qpn: b.qp.number(),
            qkey: urxe::ids::QKey(0x1111),
        });
        for i in 0..32 {
            let sges = [source.sge(i * len, len)];
            let flags = urxe::verbs::SendFlags::default();
            let wr =
                urxe::verbs::SendWr { id: i as u64, op: SendOp::Send, flags, sges: &sges, ud: ud.clone() };
            a.qp.post_send([wr]).unwrap();
        }
        let received = completions(&mut world, &b, 32);
        for (i, wc) in received.iter().enumerate() {
            assert_eq!(good(wc).0, i as u64, "{kind:?}");
            let have = target.read(i * (len + grh) + grh, len);
            assert!(have == data[i * len..(i + 1) * len], "{kind:?} message {i}");
        }
        assert_eq!(a.poll().len(), 32);
        assert!(counter(&world.devices[1], "odp_receive_faults") > 0);
        assert!(counter(&world.devices[0], "odp_requester_faults") > 0);
    }
}

#[test]
fn a_shared_receive_queue_keeps_its_receives_while_pages_are_fetched() {
    let mut world = World::with_config(4, perfect(), 2, &config(&[("odp_latency", "150us")]));
    let device = &world.devices[1];
    let pd = device.alloc_pd();
    let srq = device.create_srq(pd, urxe::srq::SrqAttr { max_wr: 64, max_sge: 1, limit: 0 });
    let target = Paged::new(device, pd, Map::anonymous(64 * PAGE), ODP);
    let init = EndInit { srq: Some((pd, srq.clone())), ..EndInit::default() };
    let pairs: Vec<_> = (0..4)
        .map(|_| {
            let a = End::new(&world.devices[0], EndInit::default());
            let b = End::new(device, init.clone());
            crate::harness::connect(&a.qp, (b.ip, &b.qp), &Wiring::default());
            crate::harness::connect(&b.qp, (a.ip, &a.qp), &Wiring::default());
            (a, b)
        })
        .collect();
    for i in 0..64 {
        srq.post(&urxe::verbs::RecvWr { id: i, sges: &[target.sge(i as usize * PAGE, PAGE)] }).unwrap();
    }
    for (n, (a, _)) in pairs.iter().enumerate() {
        for i in 0..16 {
            a.buf.write(i * PAGE, &[(n * 16 + i) as u8; PAGE]);
            a.post(i as u64, SendOp::Send, &[a.sge(i * PAGE, PAGE)]);
        }
    }
    let mut seen = Vec::new();
    world.run_until("64 messages", SECOND, |_| {
        for (n, (_, b)) in pairs.iter().enumerate() {
            for wc in b.poll() {
                let id = good(&wc).0 as usize;
                let bytes = target.read(id * PAGE, PAGE);
                assert!(bytes.iter().all(|x| *x == bytes[0]) && usize::from(bytes[0]) / 16 == n);
                seen.push(bytes[0]);
            }
        }
        seen.len() == 64
    });
    seen.sort_unstable();
    assert_eq!(seen, (0..64).collect::<Vec<u8>>());
}

#[test]
fn an_implicit_region_is_all_memory_and_costs_what_is_touched() {
    let mut world = World::new(5, perfect(), 2);
    let (a, b) = pair(&world, &EndInit::default(), &Wiring::default());
    let register = |device: &Device, pd| device.memory().register(pd, 0, u64::MAX, 0, ODP).unwrap();
    let (ours, theirs) = (register(&world.devices[0], a.pd), register(&world.devices[1], b.pd));
    let (source, target) = (Map::anonymous(64 * PAGE), Map::anonymous(1024 * PAGE));
    let data = Rng(1).bytes(64 * PAGE);
    copy::write(HostAddr(source.addr), &data).unwrap();
    let sge = Sge { addr: source.addr, len: 64 * PAGE as u32, lkey: ours.lkey };
    a.post(1, SendOp::Write(Remote { addr: target.addr, rkey: theirs.rkey }), &[sge]);
    assert_eq!(good(&completions(&mut world, &a, 1)[0]).0, 1);
    let mut have = vec![0; 64 * PAGE];
    copy::read(HostAddr(target.addr), &mut have).unwrap();
    assert!(have == data);
    assert_eq!(target.resident(), 64);
    // The stack and the heap are memory too.
    let (stack, heap) = ([7_u8; 64], vec![9_u8; 64]);
    let sges = [stack.as_ptr(), heap.as_ptr()].map(|at| Sge { addr: at as u64, len: 64, lkey: ours.lkey });
    a.post(2, SendOp::Write(Remote { addr: target.addr, rkey: theirs.rkey }), &sges);
    assert_eq!(good(&completions(&mut world, &a, 1)[0]).0, 2);
    copy::read(HostAddr(target.addr), &mut have[..128]).unwrap();
    assert!(have[..64] == stack && have[64..128] == heap[..]);
    for (addr, status) in [
        (8, WcStatus::LocProtErr),
        (u64::MAX - 8, WcStatus::LocProtErr),
        (0xffff_ffff_ff60_0000, WcStatus::LocProtErr),
        (1 << 56, WcStatus::LocProtErr),
    ] {
        let (a, b) = pair(&world, &EndInit::default(), &Wiring::default());
        let ours = register(&world.devices[0], a.pd);
        b.recv(1, &[b.sge(0, 64)]);
        a.post(3, SendOp::Send, &[Sge { addr, len: 8, lkey: ours.lkey }]);
        assert_eq!(completions(&mut world, &a, 1)[0].status, status, "{addr:#x}");
    }
}

#[test]
fn memory_that_may_only_be_read_is_read_and_never_written() {
    let content = Rng(3).bytes(10 * PAGE);
    let mut world = World::new(6, perfect(), 2);
    let (a, b) = pair(&world, &EndInit::default(), &Wiring::default());
    let ours = Paged::new(&world.devices[0], a.pd, Map::read_only(&content), ODP);
    let theirs = Paged::new(&world.devices[1], b.pd, Map::read_only(&content), ODP);
    b.recv(1, &[b.sge(0, 10 * PAGE)]);
    a.post(2, SendOp::Send, &[ours.sge(0, 10 * PAGE)]);
    a.post(3, SendOp::Read(theirs.remote(0)), &[a.sge(0, 10 * PAGE)]);
    for wc in completions(&mut world, &a, 2) {
        good(&wc);
    }
    assert!(b.buf.read(0, 10 * PAGE) == content && a.buf.read(0, 10 * PAGE) == content);
    a.post(4, SendOp::Write(theirs.remote(PAGE)), &[a.sge(0, 8)]);
    assert_eq!(completions(&mut world, &a, 1)[0].status, WcStatus::RemAccessErr);
    assert!(theirs.read(0, 10 * PAGE) == content);
    let events = b.events.take();
    assert!(events.contains(&urxe::verbs::AsyncEvent::QpAccessError(b.qp.number())), "{events:?}");

    let (a, b) = pair(&world, &EndInit::default(), &Wiring::default());
    let ours = Paged::new(&world.devices[0], a.pd, Map::read_only(&content), ODP);
    a.post(5, SendOp::Read(b.remote(0)), &[ours.sge(0, 8)]);
    assert_eq!(completions(&mut world, &a, 1)[0].status, WcStatus::LocProtErr);
}

#[test]
fn holes_are_errors_only_for_who_touches_them() {
    let mut world = World::new(7, perfect(), 2);
    let map = Map::anonymous(8 * PAGE);
    map.unmap(3 * PAGE, PAGE);
    let pd = world.devices[1].alloc_pd();
    let target = Paged::new(&world.devices[1], pd, map, ODP);
    let srq = |world: &World| {
        world.devices[1].create_srq(pd, urxe::srq::SrqAttr { max_wr: 4, max_sge: 1, limit: 0 })
    };
    let connected = |world: &World| {
        let init = EndInit { srq: Some((pd, srq(world))), ..EndInit::default() };
        let a = End::new(&world.devices[0], EndInit::default());
        let b = End::new(&world.devices[1], init);
        crate::harness::connect(&a.qp, (b.ip, &b.qp), &Wiring::default());
        crate::harness::connect(&b.qp, (a.ip, &a.qp), &Wiring::default());
        (a, b)
    };
    let (a, _b) = connected(&world);
    for (id, at) in [(1, 0), (2, 4 * PAGE)] {
        a.post(id, SendOp::Write(target.remote(at)), &[a.sge(0, 3 * PAGE)]);
        assert_eq!(good(&completions(&mut world, &a, 1)[0]).0, id);
    }
    a.post(3, SendOp::Write(target.remote(2 * PAGE)), &[a.sge(0, 2 * PAGE)]);
    assert_eq!(completions(&mut world, &a, 1)[0].status, WcStatus::RemAccessErr);
    let (a, _b) = connected(&world);
    a.post(4, SendOp::Read(target.remote(2 * PAGE)), &[a.sge(0, 2 * PAGE)]);
    assert_eq!(completions(&mut world, &a, 1)[0].status, WcStatus::RemAccessErr);
    // What was a hole is memory when something is mapped there.
    let (a, _b) = connected(&world);
    target.map.renew(3 * PAGE, PAGE);
    a.post(5, SendOp::Write(target.remote(2 * PAGE)), &[a.sge(0, 2 * PAGE)]);
    assert_eq!(good(&completions(&mut world, &a, 1)[0]).0, 5);
    assert!(target.read(3 * PAGE, PAGE) == a.buf.read(PAGE, PAGE));
    // Present once, then protected: found by the access itself.
    target.map.protect(3 * PAGE, PAGE, libc::PROT_READ);
    a.post(6, SendOp::Write(target.remote(3 * PAGE)), &[a.sge(0, 8)]);
    assert_eq!(completions(&mut world, &a, 1)[0].status, WcStatus::RemAccessErr);
}

#[test]
fn ranges_that_overflow_are_access_errors_in_paged_regions_too() {
    let mut world = World::new(8, perfect(), 2);
    for (addr, len) in [(u64::MAX - 7, 8), (u64::MAX - 3, 8), (u64::MAX, 100)] {
        let (a, b) = pair(&world, &EndInit::default(), &Wiring::default());
        let keys = world.devices[1].memory().register(b.pd, 0, u64::MAX, 0, ODP).unwrap();
        a.post(1, SendOp::Write(Remote { addr, rkey: keys.rkey }), &[a.sge(0, len)]);
        assert_eq!(completions(&mut world, &a, 1)[0].status, WcStatus::RemAccessErr, "{addr:#x}");
    }
}

#[test]
fn advice_makes_pages_present_and_says_what_is_wrong() {
    let world = World::new(9, perfect(), 1);
    let device = &world.devices[0];
    let pd = device.alloc_pd();
    let region = Paged::new(device, pd, Map::anonymous(100 * PAGE), ODP);
    let (addr, lkey) = (region.map.addr, region.keys.lkey);
    let advise = |at: usize, len: usize, advice, wait| {
        device.advise(pd, lkey, (addr + at as u64, len as u64), advice, wait)
    };
    let has = |at: usize, len: usize, need| {
        use urxe::mem::{Key, Memory};
        device.memory().translate(pd, Key::Local(lkey), addr + at as u64, len as u64, need).is_ok()
    };
    assert_eq!(advise(0, 10 * PAGE, Advice::Read, true), Ok(()));
    assert!(has(0, 10 * PAGE, Access::LOCAL_READ) && !has(0, 1, Access::LOCAL_WRITE));
    assert_eq!(advise(5 * PAGE, 10 * PAGE, Advice::Write, true), Ok(()));
    assert!(has(5 * PAGE, 10 * PAGE, Access::LOCAL_WRITE) && has(0, 15 * PAGE, Access::LOCAL_READ));
    assert!(!has(15 * PAGE, 1, Access::LOCAL_READ));
    region.write(50 * PAGE, &[1; PAGE]);
    let before = region.map.resident();
    assert_eq!(advise(20 * PAGE, 80 * PAGE, Advice::Resident, true), Ok(()));
    assert!(has(50 * PAGE, PAGE, Access::LOCAL_READ) && !has(51 * PAGE, 1, Access::LOCAL_READ));
    assert_eq!(region.map.resident(), before, "nothing is faulted in");
    // The other kind goes on later.
    assert_eq!(advise(60 * PAGE, 40 * PAGE, Advice::Write, false), Ok(()));
    assert!(!has(60 * PAGE, 1, Access::LOCAL_READ));
    device.run();
    assert!(has(60 * PAGE, 40 * PAGE, Access::LOCAL_WRITE));
    assert_eq!(counter(device, "page_prefetch"), 4);
    assert!(counter(device, "odp_prefetched_pages") >= 10 + 10 + 1 + 40);

    let out = AdviseError::OutOfBounds { addr: addr + 8, len: 100 * PAGE as u64 };
    assert_eq!(advise(8, 100 * PAGE, Advice::Read, false), Err(out));
    region.map.unmap(70 * PAGE, PAGE);
    let hole = advise(69 * PAGE, 3 * PAGE, Advice::Write, true);
    assert!(matches!(hole, Err(AdviseError::NotMapped(_))), "{hole:?}");
    assert_eq!(advise(69 * PAGE, 3 * PAGE, Advice::Write, false), Ok(()), "nobody waits for it");
    device.run();
    let pinned = Buf::new(PAGE);
    let keys = pinned.register(device, pd, ALL_ACCESS);
    let range = (pinned.addr(), 8);
    assert_eq!(
        device.advise(pd, keys.lkey, range, Advice::Read, true),
        Err(AdviseError::UnknownKey(keys.lkey))
    );
    let other = device.alloc_pd();
    assert_eq!(device.advise(other, lkey, (addr, 8), Advice::Read, true), Err(AdviseError::NotAllowed(lkey)));
    let read_only = Paged::new(device, pd, Map::anonymous(PAGE), Access::REMOTE_READ | Access::ON_DEMAND);
    let lkey = read_only.keys.lkey;
    let range = (read_only.map.addr, 8);
    assert_eq!(device.advise(pd, lkey, range, Advice::Write, true), Err(AdviseError::NotAllowed(lkey)));
}

#[test]
fn a_fault_costs_its_own_queue_pair_time_and_others_none() {
    let mut world = World::with_config(10, perfect(), 2, &config(&[("odp_latency", "100000us")]));
    let (a, b) = pair(&world, &EndInit::default(), &Wiring::default());
    let (c, d) = pair(&world, &EndInit::default(), &Wiring::default());
    let slow = Paged::new(&world.devices[1], b.pd, Map::anonymous(PAGE), ODP);
    a.post(1, SendOp::Write(slow.remote(0)), &[a.sge(0, 64)]);
    c.post(2, SendOp::Write(d.remote(0)), &[c.sge(0, 64)]);
    let start = world.now().0;
    completions(&mut world, &c, 1);
    assert!(world.now().0 - start < MS);
    assert_eq!(counter(&world.devices[1], "odp_waits") - counter(&world.devices[1], "odp_waits_ended"), 1);
    completions(&mut world, &a, 1);
    assert!(world.now().0 - start >= 100 * MS);
}

#[test]
fn queue_pairs_are_reset_and_destroyed_while_they_wait() {
    let mut world = World::with_config(11, perfect(), 2, &config(&[("odp_latency", "1000us")]));
    for destroy in [false, true] {
        let (a, b) = pair(&world, &EndInit::default(), &Wiring::default());
        let far = Paged::new(&world.devices[1], b.pd, Map::anonymous(64 * PAGE), ODP);
        let near = Paged::new(&world.devices[0], a.pd, Map::anonymous(64 * PAGE), ODP);
        b.recv(1, &[far.sge(0, PAGE)]);
        a.post(1, SendOp::Send, &[a.sge(0, PAGE)]);
        a.post(2, SendOp::Send, &[near.sge(0, PAGE)]);
        world.pass(200 * US);
        let waits = |i: usize| {
            counter(&world.devices[i], "odp_waits") - counter(&world.devices[i], "odp_waits_ended")
        };
        assert_eq!((waits(0), waits(1)), (1, 1));
        if destroy {
            drop((a.qp, b.qp));
        } else {
            crate::harness::set_state(&b.qp, urxe::verbs::QpState::Err);
            crate::harness::set_state(&a.qp, urxe::verbs::QpState::Err);
            let status = |end: &End| end.poll().iter().map(|wc| (wc.id, wc.status)).collect::<Vec<_>>();
            let flushed = WcStatus::WrFlushErr;
            assert_eq!(status(&b), [(1, flushed)], "the receive that the packet had taken");
            assert_eq!(status(&a), [(1, flushed), (2, flushed)]);
        }
        world.pass(5 * MS);
        for device in &world.devices {
            assert_eq!(counter(device, "odp_waits"), counter(device, "odp_waits_ended"));
        }
        world.quiesce(20 * SECOND);
    }
}

#[test]
fn a_region_that_is_deregistered_while_it_is_waited_for_is_an_access_error() {
    let mut world = World::with_config(12, perfect(), 2, &config(&[("odp_latency", "1000us")]));
    let (a, b) = pair(&world, &EndInit::default(), &Wiring::default());
    let far = Paged::new(&world.devices[1], b.pd, Map::anonymous(PAGE), ODP);
    a.post(1, SendOp::Write(far.remote(0)), &[a.sge(0, 64)]);
    world.pass(500 * US);
    world.devices[1].deregister(far.keys.lkey).unwrap();
    assert_eq!(completions(&mut world, &a, 1)[0].status, WcStatus::RemAccessErr);
    assert_eq!(far.map.resident(), 0, "nothing was touched");
}

/// A network with faults, devices without pages, and a program that takes away what was fetched.
struct Shifting {
    world: World,
    rng: Rng,
    end: urxe::time::Instant,
}

impl Fabric for Shifting {
    fn device(&self, end: usize) -> &Device {
        &self.world.devices[end]
    }
    fn buffer(&self, len: usize) -> Buf {
        let map = Map::shared(len);
        Buf::of(map.addr, map.len, Box::new(map))
    }
    fn access(&self) -> Access {
        ODP
    }
    fn progress(&mut self) {
        if self.rng.percent(10) {
            let regions = self.world.devices[self.rng.below(2) as usize].memory().regions();
            let region = regions[self.rng.below(regions.len() as u64) as usize];
            let pages = region.len / PAGE as u64;
            let (first, count) = (self.rng.below(pages), 1 + self.rng.below(64));
            // What is taken from the address space is still in the file.
            let map = std::mem::ManuallyDrop::new(Map { addr: region.host, len: region.len as usize });
            map.advise(first as usize * PAGE, count.min(pages - first) as usize * PAGE, libc::MADV_DONTNEED);
        }
        if !self.world.step(0) {
            self.world.advance_to(self.world.now().plus(MS));
        }
    }
    fn check_time(&self, state: &dyn Fn() -> String) {
        assert!(self.world.now() < self.end, "stalled in virtual time:\n{}", state());
    }
}

#[test]
fn random_traffic_through_pages_that_come_and_go_is_right_to_the_byte() {
    let bad = urxe::io::impair::Impairments {
        loss: 0.02,
        duplicate: 0.02,
        reorder: 0.02,
        delay: Latency::Uniform(US, 50 * US),
        ..perfect()
    };
    for first in seeds(&[2000]) {
        let cases = if std::env::var_os(crate::harness::SEED_VARIABLE).is_some() { 1 } else { 10 };
        for seed in (0..cases).map(|i| first.wrapping_add(i)) {
            eprintln!("seed {seed}");
            let mut rng = Rng(seed);
            let policy = ["park", "rnr"][rng.below(2) as usize];
            let latency = ["none", "100us", "10us-2000us", "exp:200us"][rng.below(4) as usize];
            let config = config(&[("odp_fault", policy), ("odp_latency", latency)]);
            let impairments = if rng.percent(50) { bad } else { perfect() };
            let world = World::with_config(seed, impairments, 2, &config);
            let plan = Plan {
                messages: 200,
                connections: 1 + rng.below(3) as usize,
                max_len: [4, 64, 400][rng.below(3) as usize] << 10,
                large_percent: rng.below(20),
            };
            let end = urxe::time::Instant(300 * SECOND);
            let mut fabric = Shifting { world, rng, end };
            exchange(&mut fabric, seed, &plan);
            for device in &fabric.world.devices {
                assert!(counter(device, "page_faults") > 0);
            }
        }
    }
}
