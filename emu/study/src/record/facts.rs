//! Facts about the machine, without which figures mean little.

use std::fs;
use std::path::Path;

/// What a fact is where it cannot be read.
const UNKNOWN: &str = "unknown";

/// The facts of this machine and process, in the order in which they are shown; "unknown" where one cannot be read.
pub fn facts() -> Vec<(String, String)> {
    facts_in(Path::new("/"))
}

/// The same from the files below another root.
pub fn facts_in(root: &Path) -> Vec<(String, String)> {
    let machine = Machine { root };
    [
        ("urxe", Some(env!("CARGO_PKG_VERSION").to_string())),
        ("CPU", machine.cpu_model()),
        ("CPUs", machine.read("sys/devices/system/cpu/online")),
        ("allowed CPUs", machine.status("Cpus_allowed_list")),
        ("governor", machine.read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        ("hyper-threading", machine.read("sys/devices/system/cpu/smt/control")),
        ("memory", machine.memory()),
        ("transparent huge pages", machine.huge_pages()),
        ("kernel", machine.kernel()),
        ("virtualisation", machine.virtualisation()),
        ("load average", machine.load()),
    ]
    .map(|(name, value)| (name.to_string(), value.unwrap_or_else(|| UNKNOWN.into())))
    .into()
}

/// The files that tell of a machine.
struct Machine<'a> {
    root: &'a Path,
}

impl Machine<'_> {
    /// Content of a file without the white space around it; `None` if there is nothing.
    fn read(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.root.join(path)).ok()?;
        Some(text.trim()).filter(|text| !text.is_empty()).map(Into::into)
    }

    /// The first value of `name` in a file of lines `name : value`.
    fn value(&self, path: &str, name: &str) -> Option<String> {
        let text = self.read(path)?;
        let (_, value) =
            text.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name)?;
        Some(value.trim().into())
    }

    /// Of this process.
    fn status(&self, name: &str) -> Option<String> {
        self.value("proc/self/status", name)
    }

    /// x86 calls it a model; some ARM kernels have only numbers of the implementer and the part.
    fn cpu_model(&self) -> Option<String> {
        let part = || {
            let number = |name| self.value("proc/cpuinfo", name);
            Some(format!("implementer {}, part {}", number("CPU implementer")?, number("CPU part")?))
        };
        self.value("proc/cpuinfo", "model name").or_else(part)
    }

    fn memory(&self) -> Option<String> {
        let total = self.value("proc/meminfo", "MemTotal")?;
        let kibibytes: u64 = total.strip_suffix(" kB")?.parse().ok()?;
        Some(format!("{:.1} GiB", kibibytes as f64 / f64::from(1 << 20)))
    }

    /// The choice in brackets: `always [madvise] never`.
    fn huge_pages(&self) -> Option<String> {
        let choices = self.read("sys/kernel/mm/transparent_hugepage/enabled")?;
        let (_, rest) = choices.split_once('[')?;
        rest.split_once(']').map(|(choice, _)| choice.into())
    }

    fn kernel(&self) -> Option<String> {
        let part = |name: &str| self.read(&format!("proc/sys/kernel/{name}"));
        Some(format!("{} {} ({})", part("ostype")?, part("osrelease")?, std::env::consts::ARCH))
    }

    /// Says "none" only of a CPU that would tell.
    fn virtualisation(&self) -> Option<String> {
        let vendor = || {
            let part = |name: &str| self.read(&format!("sys/class/dmi/id/{name}"));
            Some(format!("{} {}", part("sys_vendor")?, part("product_name")?))
        };
        let flags = self.value("proc/cpuinfo", "flags")?;
        if !flags.split_whitespace().any(|flag| flag == "hypervisor") {
            return Some("none".into());
        }
        let kind = self.read("sys/hypervisor/type").or_else(vendor);
        Some(kind.unwrap_or_else(|| "a virtual machine".into()))
    }

    /// Of the last 1, 5 and 15 minutes.
    fn load(&self) -> Option<String> {
        let load = self.read("proc/loadavg")?;
        Some(load.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
    }
}
