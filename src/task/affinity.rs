//! CPUs: which a thread may run on, and on which it is.
#![allow(unsafe_code)]

/// The CPUs that the calling thread may run on, in order.
pub(crate) fn allowed() -> Vec<usize> {
    // SAFETY: the set is ours and zero is a valid one; CPU_ISSET is given numbers below its bound.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of_val(&set), &mut set) != 0 {
            return Vec::new();
        }
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
    }
}

/// Pins the calling thread to a CPU. If that fails it stays where it may run.
pub(crate) fn pin(cpu: usize) {
    // SAFETY: the set is ours and zero is a valid one; CPU_SET checks its bound.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if cpu < libc::CPU_SETSIZE as usize {
            libc::CPU_SET(cpu, &mut set);
            libc::sched_setaffinity(0, size_of_val(&set), &set);
        }
    }
}

/// Lets the calling thread wake up when it asked for, not up to 50 us later, which spares the system timers.
pub(crate) fn punctual() {
    // SAFETY: it takes a number and changes nothing but the thread's timers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong, 0, 0, 0) };
}

/// The calling thread's number in the system.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: it takes no arguments and always succeeds.
    unsafe { libc::gettid() as u32 }
}

/// The CPU on which a thread of this process last ran.
pub(crate) fn last_cpu(thread: u32) -> Option<usize> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    // proc_pid_stat(5): the CPU is field 39, and the name, field 2, may have anything between its parentheses.
    stat.rsplit_once(')')?.1.split_whitespace().nth(36)?.parse().ok()
}

/// CPU numbers as people write them: `0,2-3`.
pub(crate) fn show(cpus: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => parts.push((cpu, cpu)),
        }
    }
    let show = |&(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    parts.iter().map(show).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_is_where_it_was_pinned() {
        let cpu = *allowed().last().unwrap();
        let on = std::thread::spawn(move || {
            pin(cpu);
            std::thread::yield_now();
            (allowed(), last_cpu(thread_id()))
        });
        assert_eq!(on.join().unwrap(), (vec![cpu], Some(cpu)));
        assert_eq!(show(&[0, 2, 3, 4, 7]), "0,2-4,7");
    }
}
