use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use proptest::prelude::*;

use super::*;

const RW: Access = Access(1 | 2 | 4 | 8);

/// Memory that stays mapped and writable as long as the process, to be registered in pieces.
fn arena() -> (u64, u64) {
    static ARENA: std::sync::OnceLock<(u64, u64)> = std::sync::OnceLock::new();
    *ARENA.get_or_init(|| {
        let memory = vec![0_u8; 1 << 20].leak();
        (memory.as_ptr() as u64, memory.len() as u64)
    })
}

fn local(registered: Registered) -> Key {
    Key::Local(registered.lkey)
}

fn remote(registered: Registered) -> Key {
    Key::Remote(registered.rkey)
}

#[test]
fn translation_checks_key_pd_access_and_bounds() {
    let (host, _) = arena();
    let table = Table::new().unwrap();
    let pd = PdId(7);
    let mr = table.register(pd, host, 100, 0x1000, Access(1 | 4)).unwrap();
    let go = |key, addr, len, need| table.translate(pd, key, addr, len, need);
    assert_eq!(go(local(mr), 0x1000, 100, Access::LOCAL_WRITE), Ok(HostAddr(host)));
    assert_eq!(go(remote(mr), 0x1063, 1, Access::REMOTE_READ), Ok(HostAddr(host + 99)));
    assert_eq!(go(remote(mr), 0x1064, 0, Access::REMOTE_READ), Ok(HostAddr(host + 100)), "empty, at the end");
    let key = remote(mr);
    let outside = |addr, len| Err(Denial::OutOfBounds { key, addr, len, start: 0x1000, size: 100 }.into());
    for (addr, len) in [(0x1000, 101), (0xfff, 1), (0xfff, 2), (0x1064, 1), (0x1065, 0), (0, 0), (0x1063, 2)]
    {
        assert_eq!(go(key, addr, len, Access::REMOTE_READ), outside(addr, len), "{addr:#x} {len}");
    }
    assert_eq!(
        go(key, 0x1000, 1, Access::REMOTE_WRITE),
        Err(Denial::NoPermission { key, has: Access(5), need: Access::REMOTE_WRITE }.into())
    );
    let other = PdId(8);
    assert_eq!(
        table.translate(other, key, 0x1000, 1, Access::REMOTE_READ),
        Err(Denial::WrongPd { key, has: pd, wanted: other }.into())
    );
    for wrong in [0, u32::MAX, mr.rkey.0 ^ 1, mr.rkey.0 ^ 1 << 31] {
        let key = Key::Remote(RKey(wrong));
        assert_eq!(go(key, 0x1000, 1, Access(0)), Err(Denial::UnknownKey { key }.into()));
    }
    table.deregister(mr.lkey).unwrap();
    assert_eq!(go(key, 0x1000, 1, Access::REMOTE_READ), Err(Denial::UnknownKey { key }.into()));
    assert_eq!(table.deregister(mr.lkey), Err(DeregisterError::UnknownKey(mr.lkey)));
}

#[test]
fn ranges_that_overflow_64_bits_are_refused_everywhere() {
    let (host, size) = arena();
    let table = Table::new().unwrap();
    let pd = PdId(1);
    // The last address that a user can name is 2^64 - 2 here: a region may end right below the top.
    let iova = u64::MAX - size;
    let mr = table.register(pd, host, size, iova, RW).unwrap();
    let key = remote(mr);
    assert_eq!(table.translate(pd, key, iova, size, Access::REMOTE_READ), Ok(HostAddr(host)));
    for (addr, len) in [(iova + 1, u64::MAX), (u64::MAX, 1), (u64::MAX, u64::MAX), (iova, u64::MAX)] {
        assert_eq!(
            table.translate(pd, key, addr, len, Access::REMOTE_READ),
            Err(Denial::Overflow { key, addr, len }.into()),
            "{addr:#x} {len:#x}"
        );
    }
    // In the ordinary region, a length that wraps around to a small end.
    let mr = table.register(pd, host, size, host, RW).unwrap();
    let len = (host + 8).wrapping_neg().wrapping_add(16);
    assert!(matches!(
        table.translate(pd, remote(mr), host + 8, len, Access::REMOTE_READ),
        Err(MemError::Denied(Denial::Overflow { .. }))
    ));
    for (host, len, iova) in
        [(host, u64::MAX, host), (host, size, u64::MAX - size + 1), (0, u64::MAX, 1), (u64::MAX, 1, 0)]
    {
        assert!(
            matches!(table.register(pd, host, len, iova, RW), Err(RegisterError::Overflow { .. })),
            "{host:#x} {len:#x} {iova:#x}"
        );
    }
}

#[test]
fn registration_refuses_what_the_kernel_refuses() {
    let (host, size) = arena();
    let table = Table::new().unwrap();
    let register = |host, len, access| table.register(PdId(1), host, len, host, Access(access)).map(drop);
    assert_eq!(register(host, 0, 1), Err(RegisterError::Empty));
    for (access, error) in [
        (2, RegisterError::NeedsLocalWrite(Access::REMOTE_WRITE)),
        (8 | 4, RegisterError::NeedsLocalWrite(Access::REMOTE_ATOMIC)),
        (1 << 10, RegisterError::UnknownAccess(1 << 10)),
        (1 | 1 << 31, RegisterError::UnknownAccess(1 << 31)),
        (1 | 512, RegisterError::Unsupported(Access::FLUSH_PERSISTENT)),
    ] {
        assert_eq!(register(host, size, access), Err(error));
    }
    assert_eq!(register(host, size, 1 | 1 << 20 | 1 << 25), Ok(()), "optional bits are ignored");
    assert_eq!(register(16, 8, 0), Err(RegisterError::NotMapped(16)));

    // Code is readable but not writable.
    let code = Table::new as *const () as u64;
    assert_eq!(register(code, 16, 0), Ok(()));
    assert_eq!(register(code, 16, 4), Ok(()));
    for access in [1, 1 | 2, 16] {
        assert!(matches!(register(code, 16, access), Err(RegisterError::Protected { write: true, .. })));
    }
}

#[test]
fn reregistration_changes_in_place_or_not_at_all() {
    let (host, _) = arena();
    let table = Table::new().unwrap();
    let (a, b) = (PdId(1), PdId(2));
    let mr = table.register(a, host, 100, host, Access(1)).unwrap();
    let change = Change { pd: Some(b), ..Change::default() };
    assert_eq!(table.reregister(mr.lkey, change), Ok(mr));
    assert!(!table.is_pd_in_use(a) && table.is_pd_in_use(b));
    let change = Change { range: Some((host + 500, 50, 0)), access: Some(Access(1 | 2)), pd: None };
    assert_eq!(table.reregister(mr.lkey, change), Ok(mr));
    assert_eq!(table.translate(b, remote(mr), 10, 40, Access::REMOTE_WRITE), Ok(HostAddr(host + 510)));
    let before = table.regions();
    for bad in [
        Change { access: Some(Access(2)), ..Change::default() },
        Change { range: Some((16, 8, 0)), pd: Some(a), access: None },
        Change { range: Some((host, 0, 0)), pd: Some(a), access: None },
    ] {
        assert!(table.reregister(mr.lkey, bad).is_err());
    }
    assert_eq!(table.regions(), before);
    assert_eq!(before.len(), 1);
    table.deregister(mr.lkey).unwrap();
    assert_eq!(table.reregister(mr.lkey, Change::default()), Err(RegisterError::UnknownKey(mr.lkey)));
    assert!(!table.is_pd_in_use(b) && table.is_empty());
}

#[test]
fn keys_do_not_come_back_when_slots_are_reused() {
    let (host, _) = arena();
    let table = Table::new().unwrap();
    let mut seen = HashSet::new();
    for _ in 0..20_000 {
        let mr = table.register(PdId(1), host, 8, host, Access(1)).unwrap();
        assert!(seen.insert(mr.rkey), "a key came back");
        assert!(!RESERVED.contains(&mr.rkey.0));
        table.deregister(mr.lkey).unwrap();
    }
    let indices: HashSet<u32> = seen.iter().map(|k| table.keys.index(k.0)).collect();
    assert_eq!(indices.len(), MIN_FREE, "memory does not grow with the number of registrations");
}

#[test]
fn a_guessed_key_opens_nothing() {
    let (host, _) = arena();
    let table = Table::with_seed(1);
    let live: Vec<_> =
        (0..1000).map(|_| table.register(PdId(1), host, 8, host, RW).unwrap()).map(|mr| mr.rkey.0).collect();
    // Neighbours of known keys in every simple sense.
    let mut hits = 0;
    for &key in &live {
        for bit in 0..32 {
            for guess in
                [key ^ 1 << bit, key.wrapping_add(1 << bit), key.rotate_left(bit), bit << 8 | key & 0xff]
            {
                let opened = table.translate(PdId(1), Key::Remote(RKey(guess)), host, 8, Access(0)).is_ok();
                hits += usize::from(opened && guess != key && !live.contains(&guess));
            }
        }
    }
    assert_eq!(hits, 0);
    let stepped =
        live.windows(2).filter(|w| live.contains(&w[1].wrapping_add(w[1].wrapping_sub(w[0])))).count();
    assert_eq!(stepped, 0, "keys are no arithmetic sequence");
}

#[derive(Clone, Debug)]
enum Step {
    Register { pd: u32, offset: u64, len: u64, iova: u64, access: u32 },
    Deregister { which: usize },
    Reregister { which: usize, pd: Option<u32>, access: Option<u32> },
    Translate { pd: u32, which: usize, stale: bool, from: i64, len: u64, need: u32 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let access = prop_oneof![Just(0_u32), Just(1), Just(7), Just(15), Just(4), Just(2), Just(1 << 12)];
    let need = prop_oneof![Just(0_u32), Just(1), Just(2), Just(4), Just(8)];
    let step = prop_oneof![
        4 => (0..3_u32, 0..2000_u64, 0..600_u64, prop_oneof![Just(0), Just(1 << 40), Just(u64::MAX - 300)], access.clone())
            .prop_map(|(pd, offset, len, iova, access)| Step::Register { pd, offset, len, iova, access }),
        2 => any::<usize>().prop_map(|which| Step::Deregister { which }),
        1 => (any::<usize>(), proptest::option::of(0..3_u32), proptest::option::of(access))
            .prop_map(|(which, pd, access)| Step::Reregister { which, pd, access }),
        8 => (0..3_u32, any::<usize>(), any::<bool>(), -20..620_i64, prop_oneof![0..700_u64, Just(u64::MAX)], need)
            .prop_map(|(pd, which, stale, from, len, need)| Step::Translate { pd, which, stale, from, len, need }),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// The table against a list of regions that is searched from end to end.
    #[test]
    fn table_behaves_as_a_list_of_regions(seed: u64, steps in steps()) {
        let (base, _) = arena();
        let table = Table::with_seed(seed);
        let mut model: Vec<Region> = Vec::new();
        let mut dead: Vec<u32> = Vec::new();
        for step in steps {
            match step {
                Step::Register { pd, offset, len, iova, access } => {
                    let legal = len > 0
                        && iova.checked_add(len).is_some()
                        && access & !0x3ff == 0
                        && (access & (2 | 8) == 0 || access & 1 != 0);
                    let result = table.register(PdId(pd), base + offset, len, iova, Access(access));
                    prop_assert_eq!(result.is_ok(), legal);
                    if let Ok(mr) = result {
                        prop_assert!(model.iter().all(|r| r.key != mr.rkey.0) && !dead.contains(&mr.rkey.0));
                        let (pd, access) = (PdId(pd), Access(access));
                        model.push(Region { key: mr.rkey.0, pd, access, host: base + offset, len, iova });
                    }
                }
                Step::Deregister { which } if !model.is_empty() => {
                    let region = model.swap_remove(which % model.len());
                    prop_assert_eq!(table.deregister(LKey(region.key)), Ok(()));
                    dead.push(region.key);
                }
                Step::Reregister { which, pd, access } if !model.is_empty() => {
                    let which = which % model.len();
                    let region = &mut model[which];
                    let (pd, access) = (pd.map(PdId), access.map(Access));
                    let result = table.reregister(LKey(region.key), Change { pd, access, range: None });
                    let wanted = access.unwrap_or(region.access).0;
                    let legal = wanted & !0x3ff == 0 && (wanted & (2 | 8) == 0 || wanted & 1 != 0);
                    prop_assert_eq!(result.is_ok(), legal);
                    if legal {
                        region.pd = pd.unwrap_or(region.pd);
                        region.access = Access(wanted);
                    }
                }
                Step::Translate { pd, which, stale, from, len, need } => {
                    let keys: Vec<u32> =
                        if stale { dead.clone() } else { model.iter().map(|r| r.key).collect() };
                    let Some(&key) = keys.get(which.checked_rem(keys.len()).unwrap_or(0)) else { continue };
                    let region = model.iter().find(|r| r.key == key);
                    let addr = region.map_or(0, |r| r.iova).wrapping_add_signed(from);
                    let end = u128::from(addr) + u128::from(len);
                    let expected = region.filter(|r| {
                        r.pd == PdId(pd)
                            && r.access.contains(Access(need))
                            && addr >= r.iova
                            && end <= u128::from(r.iova) + u128::from(r.len)
                    });
                    let result = table.translate(PdId(pd), Key::Remote(RKey(key)), addr, len, Access(need));
                    prop_assert_eq!(result.ok(), expected.map(|r| HostAddr(r.host + (addr - r.iova))));
                }
                _ => {}
            }
            prop_assert_eq!(table.len(), model.len());
        }
        for pd in 0..3 {
            prop_assert_eq!(table.is_pd_in_use(PdId(pd)), model.iter().any(|r| r.pd == PdId(pd)));
        }
        let mut listed = table.regions();
        listed.sort_by_key(|r| r.key);
        model.sort_by_key(|r| r.key);
        prop_assert_eq!(listed, model);
    }
}

#[test]
fn translations_race_with_changes_and_get_one_state_or_the_other() {
    let (host, _) = arena();
    let table = Arc::new(Table::new().unwrap());
    let mr = table.register(PdId(0), host, 64, 0, RW).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (table, stop) = (table.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut granted = [0_u64; 2];
                while !stop.load(Ordering::Relaxed) {
                    for pd in 0..2_u64 {
                        // State n belongs to PD n and lies at host + n * 4096, addressed from n << 40.
                        let iova = pd << 40;
                        match table.translate(PdId(pd as u32), remote(mr), iova + 8, 8, Access::REMOTE_READ) {
                            Ok(at) => {
                                assert_eq!(at, HostAddr(host + pd * 4096 + 8));
                                granted[pd as usize] += 1;
                            }
                            Err(MemError::Denied(Denial::WrongPd { has, .. })) => {
                                assert_eq!(u64::from(has.0), 1 - pd)
                            }
                            Err(MemError::Denied(Denial::UnknownKey { .. })) => {}
                            Err(other) => panic!("a mixture of states: {other}"),
                        }
                    }
                }
                granted
            })
        })
        .collect();
    let started = Instant::now();
    let mut n = 0_u64;
    while started.elapsed().as_millis() < 300 {
        n += 1;
        let state = n & 1;
        let change = Change {
            pd: Some(PdId(state as u32)),
            range: Some((host + state * 4096, 64, state << 40)),
            access: None,
        };
        table.reregister(mr.lkey, change).unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        let granted = reader.join().unwrap();
        assert!(granted.iter().all(|&n| n > 0), "both states were met: {granted:?}");
    }
}

#[test]
fn threads_register_and_deregister_at_once() {
    let (host, _) = arena();
    let table = Arc::new(Table::new().unwrap());
    let threads: Vec<_> = (0..4)
        .map(|pd| {
            let table = table.clone();
            std::thread::spawn(move || {
                let mut mine = VecDeque::new();
                for i in 0..3000_u64 {
                    let mr = table.register(PdId(pd), host, 8 + i, i << 20, RW).unwrap();
                    mine.push_back((mr, i));
                    if mine.len() > 300 {
                        let (mr, i) = mine.pop_front().unwrap();
                        let at = table.translate(PdId(pd), remote(mr), (i << 20) + i, 8, Access::REMOTE_READ);
                        assert_eq!(at, Ok(HostAddr(host + i)));
                        table.deregister(mr.lkey).unwrap();
                        assert!(table.translate(PdId(pd), remote(mr), i << 20, 8, Access(0)).is_err());
                    }
                }
                mine.len()
            })
        })
        .collect();
    let left: usize = threads.into_iter().map(|t| t.join().unwrap()).sum();
    assert_eq!(table.len(), left);
    assert_eq!(table.regions().len(), left);
}

#[test]
fn a_hundred_thousand_regions_fit() {
    let (host, _) = arena();
    let table = Table::with_seed(9);
    let all: Vec<_> =
        (0..100_000_u64).map(|i| table.register(PdId(1), host, 16, i * 16, RW).unwrap()).collect();
    assert_eq!(all.iter().map(|mr| mr.rkey).collect::<HashSet<_>>().len(), all.len());
    for (i, mr) in all.iter().enumerate() {
        let at = table.translate(PdId(1), remote(*mr), i as u64 * 16 + 1, 15, Access::REMOTE_WRITE);
        assert_eq!(at, Ok(HostAddr(host + 1)));
    }
    drop(all);
}

#[test]
fn two_tables_give_different_keys() {
    let (host, _) = arena();
    let keys = || {
        let table = Table::new().unwrap();
        (0..100).map(|_| table.register(PdId(1), host, 8, host, RW).unwrap().rkey).collect::<HashSet<_>>()
    };
    assert!(keys().is_disjoint(&keys()));
}

/// `cargo test --release mem::table -- --ignored --nocapture`
#[test]
#[ignore = "prints timings"]
fn timings() {
    let (host, _) = arena();
    let table = Table::new().unwrap();
    let all: Vec<_> = (0..1024).map(|_| table.register(PdId(1), host, 4096, host, RW).unwrap()).collect();
    for count in [1, 1024] {
        let mut best = f64::MAX;
        let mut sum = 0_u64;
        for _ in 0..300 {
            let n = 5000;
            let started = Instant::now();
            for i in 0..n {
                // The next key depends on the last answer: latency, not throughput.
                let key = remote(all[(i + (sum & 1) as usize) & (count - 1)]);
                sum += table.translate(PdId(1), key, host, 64, Access::REMOTE_WRITE).map_or(0, |at| at.0 & 1);
            }
            best = best.min(started.elapsed().as_nanos() as f64 / n as f64);
        }
        println!("translate, {count} regions: {best:.1} ns");
        std::hint::black_box(sum);
    }
    let n = 10_000;
    let started = Instant::now();
    for _ in 0..n {
        let mr = table.register(PdId(1), host, 4096, host, RW).unwrap();
        table.deregister(mr.lkey).unwrap();
    }
    println!("register + deregister: {:.0} ns", started.elapsed().as_nanos() as f64 / f64::from(n));
}
