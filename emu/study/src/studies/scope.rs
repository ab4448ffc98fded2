//! The options of a run that say what is measured.

use std::str::FromStr;

use crate::driver::DeviceFacts;

/// What a run measures, where that is not what its study has by itself.
#[derive(Clone, PartialEq, Debug, Default, clap::Args)]
pub struct Scope {
    /// Repeat the published size; without it a study takes less than two minutes
    #[arg(long)]
    pub full: bool,
    /// How often everything is measured
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repetitions: Option<u32>,
    /// Message sizes, of all studies that have more than one: bytes, `64K`, `1M`, or `1:4M` for all powers of two from one to the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = sizes)]
    sizes: Vec<Range>,
    /// Numbers of queue pairs, of `tasks`
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub queue_pairs: Vec<u32>,
    /// Numbers of threads, of `registration`
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Vec<u32>,
    /// CPUs of the measuring end and of its peer, as `0/1`, or `2-3/4-5`, or `any`; `tasks` compares several
    #[arg(long, value_name = "CPUS/CPUS", value_delimiter = ',')]
    pub pin: Vec<Pin>,
    /// Milliseconds of each measurement whose length is a time
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub milliseconds: Option<u64>,
}

/// A choice that not all studies have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// `--sizes`.
    Sizes,
    /// `--queue-pairs`.
    QueuePairs,
    /// `--threads`.
    Threads,
}

impl Choice {
    const ALL: [Self; 3] = [Self::Sizes, Self::QueuePairs, Self::Threads];

    fn flag(self) -> &'static str {
        match self {
            Self::Sizes => "--sizes",
            Self::QueuePairs => "--queue-pairs",
            Self::Threads => "--threads",
        }
    }

    fn made(self, scope: &Scope) -> bool {
        match self {
            Self::Sizes => scope.has_sizes(),
            Self::QueuePairs => !scope.queue_pairs.is_empty(),
            Self::Threads => !scope.threads.is_empty(),
        }
    }
}

/// From one size to another by powers of two.
type Range = std::ops::RangeInclusive<u64>;

impl Scope {
    /// Message sizes: those asked for, else `usual`.
    pub fn sizes(&self, usual: Range) -> Vec<u64> {
        let usual = [usual];
        let asked = if self.sizes.is_empty() { &usual[..] } else { &self.sizes[..] };
        asked.iter().flat_map(|range| doubled(range.clone())).collect()
    }

    /// Whether sizes were asked for.
    pub fn has_sizes(&self) -> bool {
        !self.sizes.is_empty()
    }

    /// Refuses choices that a study does not have: each takes `--repetitions`, `--milliseconds`, `--full` and one `--pin`,
    /// and what is named here.
    pub fn takes(&self, study: &str, taken: &[Choice]) -> Result<(), String> {
        let refused = Choice::ALL.into_iter().find(|choice| choice.made(self) && !taken.contains(choice));
        let Some(refused) = refused else { return Ok(()) };
        let mut flags: Vec<_> = taken.iter().map(|choice| choice.flag()).collect();
        flags.extend(["--repetitions", "--milliseconds", "--full", "--pin"]);
        Err(format!("study {study} does not take {}; it takes {}", refused.flag(), flags.join(", ")))
    }

    /// What was asked for, else `usual`.
    pub fn or<T: Clone>(asked: &[T], usual: &[T]) -> Vec<T> {
        if asked.is_empty() { usual.to_vec() } else { asked.to_vec() }
    }

    /// `full` of a full run, else `quick`, unless something else was asked for.
    pub fn repetitions(&self, quick: u32, full: u32) -> u32 {
        self.repetitions.unwrap_or(if self.full { full } else { quick })
    }

    /// Length of a measurement in ms.
    pub fn milliseconds(&self, quick: u64, full: u64) -> u64 {
        self.milliseconds.unwrap_or(if self.full { full } else { quick })
    }
}

fn doubled(range: Range) -> impl Iterator<Item = u64> {
    let (first, last) = range.into_inner();
    std::iter::successors(Some(first), |size| size.checked_mul(2)).take_while(move |size| *size <= last)
}

/// Largest message of a job.
const LARGEST: u64 = crate::work::LARGEST;

fn sizes(text: &str) -> Result<Range, String> {
    let one = |text: &str| {
        let (digits, factor) = match text.chars().last() {
            Some('K' | 'k') => (&text[..text.len() - 1], 1 << 10),
            Some('M' | 'm') => (&text[..text.len() - 1], 1 << 20),
            Some('G' | 'g') => (&text[..text.len() - 1], 1 << 30),
            _ => (text, 1),
        };
        let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(factor));
        bytes.filter(|bytes| (1..=LARGEST).contains(bytes))
    };
    let range = match text.split_once(':') {
        Some((first, last)) => one(first).zip(one(last)),
        None => one(text).map(|size| (size, size)),
    };
    range.filter(|(first, last)| first <= last).map(|(first, last)| first..=last).ok_or_else(|| {
        "expected sizes from 1 to 1G, as 8, 64K or 1:4M (all powers of two from one to the other)".to_owned()
    })
}

/// Where the two ends run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pin {
    /// CPUs of the end that measures; all if empty.
    pub initiator: Vec<usize>,
    /// CPUs of the other end; all if empty.
    pub target: Vec<usize>,
}

impl Pin {
    /// Each end on a CPU of its own, if there are two: whether two programs that poll share one makes more of a difference
    /// than most of what studies ask.
    pub fn apart() -> Self {
        let allowed = rustix::thread::sched_getaffinity(None);
        let cpus: Vec<_> = (0..rustix::thread::CpuSet::MAX_CPU)
            .filter(|&cpu| allowed.as_ref().is_ok_and(|set| set.is_set(cpu)))
            .take(2)
            .collect();
        match cpus[..] {
            [first, second] => Self { initiator: vec![first], target: vec![second] },
            _ => Self::default(),
        }
    }

    /// Where ends that have one thread each run on a device, unless somebody asks for something else. Only of urxe it is
    /// known that all CPUs are as good.
    pub(super) fn usual(device: &DeviceFacts) -> Self {
        if device.is_urxe() { Self::apart() } else { Self::default() }
    }
}

impl FromStr for Pin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "any" {
            return Ok(Self::default());
        }
        let ends = text.split_once('/').and_then(|(a, b)| Some((cpus(a)?, cpus(b)?)));
        ends.map(|(initiator, target)| Self { initiator, target })
            .ok_or_else(|| "expected CPUs of both ends, as 0/1 or 0-1/2-3, or `any`".to_owned())
    }
}

impl std::fmt::Display for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |cpus: &[usize]| cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join("+");
        match (self.initiator.is_empty(), self.target.is_empty()) {
            (true, true) => f.write_str("any"),
            _ => write!(f, "{}/{}", list(&self.initiator), list(&self.target)),
        }
    }
}

/// `2`, or `2-5`, or `2+4`.
fn cpus(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.split('+') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if first > last || last >= 4096 {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_with_binary_units_or_ranges_of_powers_of_two() {
        assert_eq!(sizes("8"), Ok(8..=8));
        assert_eq!(sizes("64K"), Ok(65_536..=65_536));
        let scope = Scope { sizes: vec![sizes("1:8").unwrap(), sizes("1M").unwrap()], ..Scope::default() };
        assert_eq!(scope.sizes(1..=2), [1, 2, 4, 8, 1 << 20]);
        assert_eq!(Scope::default().sizes(2..=4), [2, 4]);
        for bad in ["", "0", "x", "8:4", "2G", "1:", "K", "-1"] {
            assert!(sizes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_choice_that_a_study_does_not_have_is_refused_by_name() {
        let scope = Scope { threads: vec![4], sizes: vec![8..=8], ..Scope::default() };
        assert_eq!(scope.takes("x", &[Choice::Threads, Choice::Sizes]), Ok(()));
        let refused = scope.takes("x", &[Choice::Sizes]).unwrap_err();
        assert!(refused.starts_with("study x does not take --threads; it takes --sizes, "), "{refused}");
    }

    #[test]
    fn a_pin_names_the_cpus_of_both_ends() {
        let pin: Pin = "0-1/2+4".parse().unwrap();
        assert_eq!(pin, Pin { initiator: vec![0, 1], target: vec![2, 4] });
        assert_eq!(pin.to_string(), "0+1/2+4");
        assert_eq!("any".parse::<Pin>().unwrap(), Pin::default());
        for bad in ["", "0", "1-0/2", "a/b", "0/99999"] {
            assert!(bad.parse::<Pin>().is_err(), "{bad}");
        }
    }
}
