use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use super::*;
use crate::mem::guard;
use crate::mem::guard::tests::{Mapping, PAGE};

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8 + 1).collect()
}

/// Lengths at every branch of the routines, and the string instruction's side.
fn lengths() -> impl Iterator<Item = usize> {
    (0..200).chain([255, 256, 257, 500, 1023, 1024, 1025, 1031, 1032, 1040, 2047, 2048, 4095, 4096, 5000])
}

#[test]
fn every_length_and_alignment_is_copied_and_nothing_around_it() {
    guard::ensure();
    let memory = Mapping::new(3);
    let data = pattern(6000);
    for offset in 0..17 {
        for len in lengths() {
            for skew in [0, 1, 5, 8] {
                let data = &data[skew..skew + len];
                let start = PAGE / 2 + offset;
                // SAFETY: inside the mapping.
                unsafe { memory.at.write_bytes(0xee, 3 * PAGE) };
                write(memory.host(start), data).unwrap();
                // SAFETY: nobody writes now.
                let all = unsafe { std::slice::from_raw_parts(memory.at, 3 * PAGE) };
                assert_eq!(&all[start..start + len], data, "offset {offset}, length {len}");
                assert!(all[..start].iter().chain(&all[start + len..]).all(|&b| b == 0xee));

                let mut back = vec![0xdd; len + 32];
                read(memory.host(start), &mut back[16..16 + len]).unwrap();
                assert_eq!(&back[16..16 + len], data, "offset {offset}, length {len}");
                assert!(back[..16].iter().chain(&back[16 + len..]).all(|&b| b == 0xdd));
            }
        }
    }
}

/// The processor decides which loop runs; here all run that can.
#[cfg(target_arch = "x86_64")]
fn ways() -> Vec<(usize, bool)> {
    let mut ways = vec![(usize::MAX, false), (32, false)];
    if std::arch::is_x86_feature_detected!("avx") {
        ways.push((usize::MAX, true));
    }
    ways
}

#[test]
#[cfg(target_arch = "x86_64")]
fn every_loop_copies_the_same() {
    let data = pattern(3000);
    for (string_from, wide) in ways() {
        for len in (60..420).chain([511, 512, 513, 1000, 2047, 2048, 2500]) {
            for offset in [0, 1, 7, 8, 16, 24, 31] {
                let mut there = vec![0_u8; 3000 + 64];
                let mut back = vec![0_u8; 3000];
                let at = (there.as_mut_ptr() as u64).next_multiple_of(32) + offset;
                // SAFETY: both vectors are long enough, and borrowed by nobody.
                let outcomes = unsafe {
                    [
                        signal::urxe_mem_copy_out(at, data.as_ptr(), len, string_from, wide),
                        signal::urxe_mem_copy_in(back.as_mut_ptr(), at, len, string_from, wide),
                    ]
                };
                assert!(outcomes.iter().all(|o| o.fault == 0));
                assert_eq!(back[..len], data[..len], "length {len}, offset {offset}, {string_from} {wide}");
                assert!(back[len..].iter().all(|&b| b == 0));
                assert_eq!(there.iter().filter(|&&b| b != 0).count(), len);
            }
        }
    }
}

#[test]
fn pieces_shown_are_the_range_in_order() {
    guard::ensure();
    let memory = Mapping::new(4);
    let data = pattern(3 * PAGE);
    write(memory.host(7), &data).unwrap();
    for len in [0, 1, 100, CHUNK, CHUNK + 1, 3 * PAGE] {
        let mut seen = Vec::new();
        with_bytes(memory.host(7), len as u64, |piece| {
            assert!(!piece.is_empty() && piece.len() <= CHUNK);
            seen.extend_from_slice(piece);
        })
        .unwrap();
        assert_eq!(seen, data[..len]);
    }
    memory.protect(3, libc::PROT_NONE);
    let mut seen = 0;
    let fault = with_bytes(memory.host(0), 4 * PAGE as u64, |piece| seen += piece.len());
    assert_eq!(fault, Err(Fault { addr: memory.host(3 * PAGE).0 }));
    assert_eq!(seen, 3 * PAGE);
    assert!(with_bytes(HostAddr(u64::MAX - 5), u64::MAX, |_| {}).is_err());
}

#[test]
fn atomics_return_the_old_value_and_wrap() {
    guard::ensure();
    let memory = Mapping::new(1);
    let at = memory.host(16);
    assert_eq!(fetch_add(at, u64::MAX), Ok(0));
    assert_eq!(fetch_add(at, 2), Ok(u64::MAX));
    assert_eq!(compare_swap(at, 7, 8), Ok(1), "differs: unchanged");
    assert_eq!(compare_swap(at, 1, 8), Ok(1));
    assert_eq!(compare_swap(at, 8, 9), Ok(8));
    for unaligned in 1..8 {
        let at = at.plus(unaligned);
        assert_eq!(fetch_add(at, 1), Err(Fault { addr: at.0 }));
        assert_eq!(compare_swap(at, 0, 1), Err(Fault { addr: at.0 }));
    }
    let mut word = [0; 8];
    read(at, &mut word).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 9, "host byte order");
}

#[test]
fn atomics_of_the_device_and_the_program_count_together() {
    guard::ensure();
    let memory = Arc::new(Mapping::new(1));
    let threads: Vec<_> = (0..4)
        .map(|i| {
            let memory = memory.clone();
            std::thread::spawn(move || {
                // SAFETY: an aligned word of a mapping that lives on; used only as an atomic.
                let word = unsafe { AtomicU64::from_ptr(memory.at.cast()) };
                for _ in 0..20_000 {
                    match i {
                        0 => _ = word.fetch_add(1, Ordering::Relaxed),
                        1 | 2 => _ = fetch_add(memory.host(0), 1).unwrap(),
                        _ => {
                            let mut seen = word.load(Ordering::Relaxed);
                            loop {
                                let old = compare_swap(memory.host(0), seen, seen + 1).unwrap();
                                if old == seen {
                                    break;
                                }
                                seen = old;
                            }
                        }
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(fetch_add(memory.host(0), 0), Ok(80_000));
}

#[test]
fn whoever_sees_the_last_byte_sees_the_rest() {
    guard::ensure();
    let memory = Arc::new(Mapping::new(3));
    let deadline = Instant::now() + Duration::from_millis(400);
    for (len, offset) in
        [(2, 0), (8, 0), (12, 4), (64, 0), (100, 3), (1500, 8), (4096, 0), (8000, 5)].iter().cycle()
    {
        let (len, offset) = (*len, *offset);
        if Instant::now() > deadline {
            break;
        }
        // SAFETY: inside the mapping; the poller is not running.
        unsafe { memory.at.write_bytes(0, 3 * PAGE) };
        let poller = {
            let memory = memory.clone();
            std::thread::spawn(move || {
                let give_up = Instant::now() + Duration::from_secs(10);
                // SAFETY: inside the mapping.
                unsafe {
                    let last = memory.at.add(offset + len - 1);
                    while last.read_volatile() == 0 {
                        assert!(Instant::now() < give_up);
                    }
                    std::sync::atomic::fence(Ordering::Acquire);
                    (0..len).filter(|i| memory.at.add(offset + i).read_volatile() != 0x55).count()
                }
            })
        };
        std::thread::yield_now();
        write(memory.host(offset), &vec![0x55; len]).unwrap();
        assert_eq!(poller.join().unwrap(), 0, "bytes that came after the last one, of {len}");
    }
}

/// Runs a write in a child under the debugger interface, instruction by instruction, and takes each byte away again
/// as soon as it appears: so a second store of a byte shows, and the order does.
#[cfg(target_arch = "x86_64")]
fn stores_of(
    to: *mut u8,
    window: usize,
    offset: usize,
    len: usize,
    way: (usize, bool),
) -> Option<Vec<Vec<usize>>> {
    let data = vec![0x77_u8; len + 16];
    let mut stores = Vec::new();
    // SAFETY: the child runs one routine on its copy of the mapping and stops or ends; this process only looks at it.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
                libc::_exit(42);
            }
            libc::raise(libc::SIGSTOP);
            signal::urxe_mem_copy_out(to as u64 + offset as u64, data.as_ptr(), len, way.0, way.1);
            libc::raise(libc::SIGSTOP);
            libc::_exit(0);
        }
        let mut status = 0;
        libc::waitpid(child, &raw mut status, 0);
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 42 {
            return None;
        }
        assert!(libc::WIFSTOPPED(status), "{status:#x}");
        let clean = vec![0_u8; window];
        let mut now = vec![0_u8; window];
        loop {
            libc::ptrace(libc::PTRACE_SINGLESTEP, child, 0, 0);
            libc::waitpid(child, &raw mut status, 0);
            assert!(libc::WIFSTOPPED(status), "{status:#x}");
            if libc::WSTOPSIG(status) == libc::SIGSTOP {
                break;
            }
            let remote = libc::iovec { iov_base: to.cast(), iov_len: window };
            let local = libc::iovec { iov_base: now.as_mut_ptr().cast(), iov_len: window };
            assert_eq!(libc::process_vm_readv(child, &local, 1, &remote, 1, 0), window as isize);
            let stored: Vec<usize> = (0..window).filter(|&i| now[i] != 0).collect();
            if !stored.is_empty() {
                let local = libc::iovec { iov_base: clean.as_ptr().cast_mut().cast(), iov_len: window };
                assert_eq!(libc::process_vm_writev(child, &local, 1, &remote, 1, 0), window as isize);
                stores.push(stored);
            }
        }
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, &raw mut status, 0);
    }
    Some(stores)
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_write_stores_each_byte_once_in_aligned_pieces_and_the_last_word_last() {
    let memory = Mapping::new(1);
    let window = 512;
    let plain = (usize::MAX, false);
    let short = (0..=8).flat_map(|offset| (1..=17).map(move |len| (offset, len, plain)));
    let long = [(0, 64), (1, 64), (4, 92), (9, 127), (8, 160), (13, 200), (16, 300), (7, 455), (40, 415)];
    let ways = ways();
    let long = long.iter().flat_map(|&(offset, len)| ways.iter().map(move |&way| (offset, len, way)));
    for (offset, len, way) in short.chain(long) {
        let Some(stores) = stores_of(memory.at, window, offset, len, way) else {
            eprintln!("skipped: ptrace is not permitted here");
            return;
        };
        let case = format!("offset {offset}, length {len}: {stores:?}");
        let all: Vec<usize> = stores.iter().flatten().copied().collect();
        assert_eq!(all, (offset..offset + len).collect::<Vec<_>>(), "once, ascending: {case}");
        for store in &stores {
            assert!(store.len().is_power_of_two() && store.len() <= 32, "{case}");
            assert!(store[0].is_multiple_of(store.len()), "aligned: {case}");
        }
        // The last word is not stored together with what comes before it.
        let word = ((offset + len - 1) & !7).max(offset);
        assert!(stores.iter().any(|store| store[0] == word), "{case}");
        if (offset + len).is_multiple_of(8) && len >= 8 {
            assert_eq!(stores.last().map(Vec::len), Some(8), "a whole word in one store: {case}");
        }
    }
}

/// `cargo test --release mem::copy -- --ignored --nocapture`
#[test]
#[ignore = "prints timings"]
fn timings() {
    guard::ensure();
    let memory = Mapping::new(1025);
    let mut ours = vec![1_u8; 4 << 20];
    // SAFETY: inside the mapping.
    unsafe { memory.at.write_bytes(1, 1025 * PAGE) };
    // The best of many short batches: other programs disturb only some of them.
    let measure = |bytes: usize, run: &mut dyn FnMut()| {
        let n = (1 << 18) / (bytes + 64) + 1;
        let batch = |_| {
            let started = Instant::now();
            (0..n).for_each(|_| run());
            started.elapsed().as_nanos() as f64 / n as f64
        };
        (0..300).map(batch).fold(f64::MAX, f64::min)
    };
    println!("   bytes: memcpy, read, read by SSE, AVX, string, write, write by SSE, AVX, string (ns)");
    for len in [1, 8, 16, 64, 100, 256, 512, 1024, 2048, 4096, 16_384, 65_536, 1 << 20] {
        for skew in [0, 1] {
            let len = if skew == 0 { len } else { len - 1 };
            let host = memory.host(skew * 3);
            let to = ours.as_mut_ptr();
            let mut times = Vec::new();
            // SAFETY: both sides are valid for `len` bytes, and nobody else uses them.
            times.push(measure(len, &mut || unsafe {
                std::ptr::copy_nonoverlapping(std::hint::black_box(host.0 as *const u8), to, len);
            }));
            times.push(measure(len, &mut || read(host, &mut ours[..len]).unwrap()));
            let ways = [(usize::MAX, false), (usize::MAX, true), (65, false)];
            #[cfg(target_arch = "x86_64")]
            for (string_from, wide) in ways {
                times.push(measure(len, &mut || {
                    // SAFETY: as above.
                    _ = unsafe { signal::urxe_mem_copy_in(to, host.0, len, string_from, wide) };
                }));
            }
            times.push(measure(len, &mut || write(host, &ours[..len]).unwrap()));
            #[cfg(target_arch = "x86_64")]
            for (string_from, wide) in ways {
                times.push(measure(len, &mut || {
                    // SAFETY: as above.
                    _ = unsafe { signal::urxe_mem_copy_out(host.0, to, len, string_from, wide) };
                }));
            }
            print!("{len:>8}:");
            times.iter().for_each(|t| print!(" {t:>8.1}"));
            println!();
        }
    }
    for len in [256_usize, 1024, 4096, 65_536] {
        let direct = measure(len, &mut || _ = std::hint::black_box(crc32fast::hash(&ours[..len])));
        let through = measure(len, &mut || {
            let mut crc = crc32fast::Hasher::new();
            with_bytes(memory.host(0), len as u64, |piece| crc.update(piece)).unwrap();
            std::hint::black_box(crc.finalize());
        });
        println!("crc of {len}: {direct:.1} ns of a slice, {through:.1} ns through with_bytes");
    }
    println!("fetch_add: {:.1} ns", measure(8, &mut || _ = fetch_add(memory.host(0), 1)));
    println!(
        "kernel read of 64: {:.1} ns",
        measure(4096, &mut || kernel::read(memory.host(0), &mut ours[..64]).unwrap())
    );
    let fault = measure(65_536, &mut || _ = read(HostAddr(8), &mut [0; 8]));
    println!("a fault: {fault:.0} ns");
}
