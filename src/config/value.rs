//! The types of values: each is parsed from text, shown as text that parses again, and says what it accepts.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::ids::{Lid, Mtu};
use crate::time::Latency;

pub(super) const KIB: u64 = 1 << 10;
pub(super) const GIB: u64 = 1 << 30;

/// A value of the configuration.
pub(super) trait Value: Sized {
    /// What `Option<Self>` calls `None`.
    const NONE: &'static str = "auto";
    /// The accepted values, in words.
    fn accepted() -> String;
    fn parse(text: &str) -> Option<Self>;
    fn show(&self) -> String;
}

impl<T: Value> Value for Option<T> {
    fn accepted() -> String {
        format!("{}, {}", T::NONE, T::accepted())
    }
    fn parse(text: &str) -> Option<Self> {
        if text == T::NONE { Some(None) } else { T::parse(text).map(Some) }
    }
    fn show(&self) -> String {
        self.as_ref().map_or(T::NONE.into(), T::show)
    }
}

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl Value for $name {
            fn accepted() -> String {
                [$($text),+].join(", ")
            }
            fn parse(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$variant),)+
                    _ => None,
                }
            }
            fn show(&self) -> String {
                match self { $(Self::$variant => $text),+ }.into()
            }
        }
    };
}

choice!(
    /// Link layer that the port reports.
    LinkLayer {
        /// RoCE.
        Ethernet = "ethernet",
        /// InfiniBand: for programs that refuse anything else.
        InfiniBand = "infiniband",
    }
);
choice!(
    /// Who owns the device's address.
    Daemon {
        /// The daemon of the fabric, which is started if it does not run.
        Auto = "auto",
        /// This process alone.
        Off = "off",
    }
);
choice!(
    /// Where protocol tasks run.
    Tasks {
        /// In the thread that posts, polls or receives.
        Inline = "inline",
        /// In workers.
        Workqueue = "workqueue",
        /// Inline what is short, in workers under load.
        Auto = "auto",
    }
);
choice!(
    /// What waits when a page is not present.
    OdpFault {
        /// The queue pair.
        Park = "park",
        /// The peer.
        Rnr = "rnr",
        /// The worker.
        Sleep = "sleep",
    }
);
choice!(
    /// How packets are received.
    Receive {
        /// A UDP socket.
        Udp = "udp",
        /// A raw socket, which sees the IP header.
        Raw = "raw",
    }
);
choice!(
    /// Segmentation offload.
    Gso {
        /// Where the kernel takes it.
        Auto = "auto",
        /// One datagram a call.
        Off = "off",
    }
);
choice!(
    /// What makes copies from and to the program's memory safe.
    Guard {
        /// A handler of SIGSEGV and SIGBUS.
        Signal = "signal",
        /// The kernel copies.
        Kernel = "kernel",
    }
);
choice!(
    /// Which packets are impaired.
    Impair {
        /// Those that are sent.
        Send = "send",
        /// Those that are received.
        Receive = "receive",
        /// All.
        Both = "both",
    }
);
choice!(
    /// Least severe messages that are written.
    LogLevel {
        /// None.
        Off = "off",
        /// Errors.
        Error = "error",
        /// And warnings.
        Warn = "warn",
        /// And what is done seldom.
        Info = "info",
        /// And every control call.
        Debug = "debug",
        /// And every packet.
        Trace = "trace",
    }
);

/// A size between two limits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Bytes<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Bytes<MIN, MAX> {
    /// The size if it is within the limits.
    pub const fn new(bytes: u64) -> Option<Self> {
        if MIN <= bytes && bytes <= MAX { Some(Self(bytes)) } else { None }
    }
    /// For defaults, which are checked when this is compiled.
    pub(super) const fn new_const(bytes: u64) -> Self {
        assert!(MIN <= bytes && bytes <= MAX);
        Self(bytes)
    }
    /// The number of bytes.
    pub const fn bytes(self) -> usize {
        self.0 as usize
    }
}

const UNITS: [(&str, u64); 8] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("KB", 1_000),
    ("B", 1),
];

fn show_bytes(bytes: u64) -> String {
    match UNITS.into_iter().take(3).find(|(_, n)| bytes >= *n && bytes.is_multiple_of(*n)) {
        Some((unit, n)) => format!("{}{unit}", bytes / n),
        None => bytes.to_string(),
    }
}

impl<const MIN: u64, const MAX: u64> Value for Bytes<MIN, MAX> {
    fn accepted() -> String {
        format!("a size from {} to {} such as 64KiB or 4MiB", show_bytes(MIN), show_bytes(MAX))
    }
    fn parse(text: &str) -> Option<Self> {
        let (number, unit) = UNITS
            .into_iter()
            .find_map(|(unit, n)| text.strip_suffix(unit).map(|rest| (rest.trim_end(), n)))
            .unwrap_or((text, 1));
        digits(number)?.checked_mul(unit).and_then(Self::new)
    }
    fn show(&self) -> String {
        show_bytes(self.0)
    }
}

/// Decimal digits only: no sign, as `u64::from_str` would take.
fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// A number of microseconds, at most `MAX`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Micros<const MAX: u64>(u64);

impl<const MAX: u64> Micros<MAX> {
    pub(super) const fn new_const(micros: u64) -> Self {
        assert!(micros <= MAX);
        Self(micros)
    }
    /// As a duration.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(self.0)
    }
}

impl<const MAX: u64> Value for Micros<MAX> {
    fn accepted() -> String {
        format!("microseconds from 0 to {MAX}")
    }
    fn parse(text: &str) -> Option<Self> {
        let number = text.strip_suffix("us").map_or(text, str::trim_end);
        digits(number).filter(|n| *n <= MAX).map(Self)
    }
    fn show(&self) -> String {
        format!("{}us", self.0)
    }
}

/// How likely something is.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Probability(f64);

impl Probability {
    pub(super) const NEVER: Self = Self(0.0);
    /// From 0 to 1.
    pub const fn value(self) -> f64 {
        self.0
    }
}

impl Value for Probability {
    fn accepted() -> String {
        "a probability from 0 to 1 such as 0.01 or 1%".into()
    }
    fn parse(text: &str) -> Option<Self> {
        let (number, whole) = text.strip_suffix('%').map_or((text, 1.0), |rest| (rest.trim_end(), 100.0));
        // No sign, and neither infinity nor NaN.
        let plain = number.starts_with(|c: char| c.is_ascii_digit() || c == '.')
            && number.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'-'));
        let part = if plain { number.parse::<f64>().ok()? / whole } else { return None };
        (0.0..=1.0).contains(&part).then_some(Self(part))
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// Bytes per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rate(u64);

impl Rate {
    const LEAST: u64 = 1_000;
    const MOST: u64 = 1_000_000_000_000;
    const UNITS: [(&str, u64); 7] = [
        ("Gbit", 125_000_000),
        ("Mbit", 125_000),
        ("kbit", 125),
        ("GB", 1_000_000_000),
        ("MB", 1_000_000),
        ("kB", 1_000),
        ("B", 1),
    ];

    /// The number of bytes.
    pub const fn bytes_per_second(self) -> u64 {
        self.0
    }
}

impl Value for Rate {
    const NONE: &'static str = "none";
    fn accepted() -> String {
        "a rate from 1kB/s to 1000GB/s such as 1Gbit/s (bits), 100MB/s (bytes) or plain bytes per second"
            .into()
    }
    fn parse(text: &str) -> Option<Self> {
        let amount = text.strip_suffix("/s").unwrap_or(text);
        let (number, unit) = Self::UNITS
            .into_iter()
            .find_map(|(unit, n)| amount.strip_suffix(unit).map(|rest| (rest.trim_end(), n)))
            .unwrap_or((amount, 1));
        let rate = digits(number)?.checked_mul(unit)?;
        (Self::LEAST..=Self::MOST).contains(&rate).then_some(Self(rate))
    }
    fn show(&self) -> String {
        let unit = Self::UNITS.into_iter().skip(3).find(|(_, n)| self.0.is_multiple_of(*n));
        let (unit, n) = unit.unwrap_or(("B", 1));
        format!("{}{unit}/s", self.0 / n)
    }
}

/// Longest latency, in microseconds.
const LONGEST: u64 = 10_000_000;

impl Value for Latency {
    fn accepted() -> String {
        format!(
            "none, microseconds from 0 to {LONGEST} such as 50us or 2ms, a range such as 10us-200us (all equally \
             likely), or exp:50us (exponentially distributed with that mean)"
        )
    }
    fn parse(text: &str) -> Option<Self> {
        let micros = |text: &str| match text.strip_suffix("ms") {
            Some(millis) => digits(millis.trim_end())?.checked_mul(1000).filter(|n| *n <= LONGEST),
            None => Micros::<LONGEST>::parse(text).map(|micros| micros.0),
        };
        let ns = |text: &str| micros(text).map(|micros| micros * 1000);
        if text == "none" {
            return Some(Self::None);
        }
        if let Some(mean) = text.strip_prefix("exp:") {
            return ns(mean).map(Self::Exponential);
        }
        match text.split_once('-') {
            Some((low, high)) => {
                let (low, high) = (ns(low)?, ns(high)?);
                (low <= high).then_some(Self::Uniform(low, high))
            }
            None => ns(text).map(|ns| if ns == 0 { Self::None } else { Self::Fixed(ns) }),
        }
    }
    fn show(&self) -> String {
        match self {
            Self::None => "none".into(),
            Self::Fixed(ns) => format!("{}us", ns / 1000),
            Self::Uniform(low, high) => format!("{}us-{}us", low / 1000, high / 1000),
            Self::Exponential(ns) => format!("exp:{}us", ns / 1000),
        }
    }
}

/// A CPU number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cpu(pub usize);

impl Value for Cpu {
    const NONE: &'static str = "none";
    fn accepted() -> String {
        "a CPU number from 0 to 1023".into()
    }
    fn parse(text: &str) -> Option<Self> {
        digits(text).filter(|n| *n < 1024).map(|n| Self(n as usize))
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// CPU numbers, in order and each once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuList(Vec<usize>);

impl CpuList {
    /// The numbers.
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }
}

impl Value for CpuList {
    const NONE: &'static str = "none";
    fn accepted() -> String {
        "a list of CPU numbers from 0 to 1023 such as 0,2-3".into()
    }
    fn parse(text: &str) -> Option<Self> {
        let mut cpus = std::collections::BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (Cpu::parse(first.trim())?, Cpu::parse(last.trim())?);
            if first.0 > last.0 {
                return None;
            }
            cpus.extend(first.0..=last.0);
        }
        Some(Self(cpus.into_iter().collect()))
    }
    fn show(&self) -> String {
        crate::task::affinity::show(&self.0)
    }
}

/// A whole number between two limits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Number<const MIN: u32, const MAX: u32>(u32);

impl<const MIN: u32, const MAX: u32> Number<MIN, MAX> {
    /// For defaults, which are checked when this is compiled.
    pub(super) const fn new_const(number: u32) -> Self {
        assert!(MIN <= number && number <= MAX);
        Self(number)
    }
    /// The number.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl<const MIN: u32, const MAX: u32> Value for Number<MIN, MAX> {
    fn accepted() -> String {
        format!("a number from {MIN} to {MAX}")
    }
    fn parse(text: &str) -> Option<Self> {
        let number = u32::try_from(digits(text)?).ok()?;
        (MIN..=MAX).contains(&number).then_some(Self(number))
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// The name of a network interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface(String);

impl Interface {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Value for Interface {
    const NONE: &'static str = "none";
    fn accepted() -> String {
        "the name of a network interface such as eth0".into()
    }
    fn parse(text: &str) -> Option<Self> {
        // What the kernel takes for a name: less than IFNAMSIZ bytes, and a file in /sys/class/net.
        let ok = (1..16).contains(&text.len())
            && !matches!(text, "." | "..")
            && text.bytes().all(|b| b.is_ascii_graphic() && b != b'/' && b != b':');
        ok.then(|| Self(text.into()))
    }
    fn show(&self) -> String {
        self.0.clone()
    }
}

/// The name of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name(std::borrow::Cow<'static, str>);

impl Name {
    pub(super) const fn new_const(name: &'static str) -> Self {
        Self(std::borrow::Cow::Borrowed(name))
    }
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Value for Name {
    fn accepted() -> String {
        "1 to 63 letters, digits, '_' or '-', a letter first".into()
    }
    fn parse(text: &str) -> Option<Self> {
        // It becomes a file name, and 64 bytes with the NUL is what `struct ibv_device` holds.
        let ok = (1..=63).contains(&text.len())
            && text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        ok.then(|| Self(text.to_owned().into()))
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// Addresses of LIDs, beside the rule that a LID is the low 16 bits of an IPv4 address.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LidTable(BTreeMap<u16, IpAddr>);

impl LidTable {
    pub(super) const fn new() -> Self {
        Self(BTreeMap::new())
    }
    /// The address of a LID, if the table has it.
    pub fn address(&self, lid: Lid) -> Option<IpAddr> {
        self.0.get(&lid.0).copied()
    }
}

impl Value for LidTable {
    fn accepted() -> String {
        "none, or LID=ADDRESS pairs with commas between, such as 7=10.0.0.3,0x8=10.0.1.4; in the file a table"
            .into()
    }
    fn parse(text: &str) -> Option<Self> {
        if text == "none" || text.is_empty() {
            return Some(Self::default());
        }
        let mut table = BTreeMap::new();
        for pair in text.split(',') {
            let (lid, address) = pair.split_once('=')?;
            let previous = table.insert(Lid::parse(lid.trim())?.0, address.trim().parse().ok()?);
            if previous.is_some() {
                return None;
            }
        }
        Some(Self(table))
    }
    fn show(&self) -> String {
        match self.0.is_empty() {
            true => "none".into(),
            false => self.0.iter().map(|(lid, ip)| format!("{lid:#06x}={ip}")).collect::<Vec<_>>().join(","),
        }
    }
}

impl Value for Lid {
    fn accepted() -> String {
        "a unicast LID from 0x0001 to 0xbfff".into()
    }
    fn parse(text: &str) -> Option<Self> {
        let number = match text.strip_prefix("0x") {
            Some(hex) if !hex.starts_with('+') => u16::from_str_radix(hex, 16).ok()?,
            _ => u16::try_from(digits(text)?).ok()?,
        };
        // IBA 4.1.1: 0 is reserved, from 0xC000 on a LID is multicast or permissive.
        (1..0xc000).contains(&number).then_some(Self(number))
    }
    fn show(&self) -> String {
        format!("{:#06x}", self.0)
    }
}

impl Value for Mtu {
    fn accepted() -> String {
        Self::ALL.map(|m| m.bytes().to_string()).join(", ")
    }
    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.bytes().to_string() == text)
    }
    fn show(&self) -> String {
        self.bytes().to_string()
    }
}

impl Value for IpAddr {
    fn accepted() -> String {
        "an IP address of this host".into()
    }
    fn parse(text: &str) -> Option<Self> {
        // No packet can be sent from, or answered to, these.
        text.parse::<Self>().ok().filter(|ip| !ip.is_unspecified() && !ip.is_multicast())
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for PathBuf {
    const NONE: &'static str = "none";
    fn accepted() -> String {
        "the path of a file".into()
    }
    fn parse(text: &str) -> Option<Self> {
        (!text.is_empty() && !text.contains('\0')).then(|| text.into())
    }
    fn show(&self) -> String {
        self.display().to_string()
    }
}
