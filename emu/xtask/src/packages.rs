//! Programs and headers that come with the system's package manager.

use std::path::{Path, PathBuf};

use crate::{Result, is_root, run, succeeds};

/// Something that a package brings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Package {
    Perftest,
    IbverbsUtils,
    RdmacmUtils,
    UcxUtils,
    Pyverbs,
    IbverbsHeaders,
    RdmacmHeaders,
    Compiler,
    Iproute2,
    Qperf,
    OpenMpi,
    OpenMpiHeaders,
    Mpich,
    MpichHeaders,
    NetpipeOpenMpi,
    Fio,
    LibfabricUtils,
    Cmake,
    Libclang,
}

/// What the tests use, but for what building [`crate::sideway`] needs.
pub(crate) const ALL: &[Package] = &[
    Package::Perftest,
    Package::IbverbsUtils,
    Package::RdmacmUtils,
    Package::UcxUtils,
    Package::Pyverbs,
    Package::IbverbsHeaders,
    Package::RdmacmHeaders,
    Package::Compiler,
    Package::Iproute2,
    Package::Qperf,
    Package::OpenMpi,
    Package::OpenMpiHeaders,
    Package::Mpich,
    Package::MpichHeaders,
    Package::NetpipeOpenMpi,
    Package::Fio,
    Package::LibfabricUtils,
];

impl Package {
    /// The file that shows that it is installed: a program, or an absolute path.
    fn proof(self) -> &'static str {
        match self {
            Self::Perftest => "ib_send_lat",
            Self::IbverbsUtils => "ibv_rc_pingpong",
            Self::RdmacmUtils => "rping",
            Self::UcxUtils => "ucx_perftest",
            Self::Pyverbs => "/usr/share/doc/rdma-core/tests/run_tests.py",
            Self::IbverbsHeaders => "/usr/include/infiniband/verbs.h",
            Self::RdmacmHeaders => "/usr/include/rdma/rdma_cma.h",
            Self::Compiler => "cc",
            Self::Iproute2 => "ip",
            Self::Qperf => "qperf",
            Self::OpenMpi => "mpirun.openmpi",
            Self::OpenMpiHeaders => "mpicc.openmpi",
            Self::Mpich => "mpiexec.hydra",
            Self::MpichHeaders => "mpicc.mpich",
            Self::NetpipeOpenMpi => "NPopenmpi",
            Self::Fio => "fio",
            Self::LibfabricUtils => "fi_pingpong",
            Self::Cmake => "cmake",
            Self::Libclang => "libclang.so",
        }
    }

    fn is_installed(self) -> bool {
        let proof = self.proof();
        if self == Self::Libclang {
            return library_folders().any(|folder| folder.join(proof).exists());
        }
        if proof.starts_with('/') {
            return Path::new(proof).exists();
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        // sbin is not in every user's PATH.
        std::env::split_paths(&path)
            .chain(["/usr/sbin".into(), "/sbin".into()])
            .any(|folder| folder.join(proof).is_file())
    }

    fn name(self, manager: &Manager) -> &'static str {
        let [apt, dnf, zypper, pacman, apk] = match self {
            Self::Perftest => ["perftest"; 5],
            Self::IbverbsUtils => {
                ["ibverbs-utils", "libibverbs-utils", "libibverbs-utils", "rdma-core", "rdma-core"]
            }
            Self::RdmacmUtils => {
                ["rdmacm-utils", "librdmacm-utils", "librdmacm-utils", "rdma-core", "rdma-core"]
            }
            Self::UcxUtils => ["ucx-utils", "ucx", "openucx-tools", "openucx", "ucx"],
            Self::Pyverbs => {
                ["python3-pyverbs", "python3-pyverbs", "python3-pyverbs", "rdma-core", "py3-pyverbs"]
            }
            Self::IbverbsHeaders => {
                ["libibverbs-dev", "rdma-core-devel", "rdma-core-devel", "rdma-core", "rdma-core-dev"]
            }
            Self::RdmacmHeaders => {
                ["librdmacm-dev", "rdma-core-devel", "rdma-core-devel", "rdma-core", "rdma-core-dev"]
            }
            Self::Compiler => ["gcc libc6-dev", "gcc", "gcc", "gcc", "gcc musl-dev"],
            Self::Iproute2 => ["iproute2", "iproute", "iproute2", "iproute2", "iproute2"],
            Self::Qperf => ["qperf"; 5],
            // The names of the programs and their folders are Debian's; others need links to theirs.
            Self::OpenMpi => ["openmpi-bin", "openmpi", "openmpi4", "openmpi", "openmpi"],
            Self::OpenMpiHeaders => {
                ["libopenmpi-dev", "openmpi-devel", "openmpi4-devel", "openmpi", "openmpi-dev"]
            }
            Self::Mpich => ["mpich", "mpich", "mpich", "mpich", "mpich"],
            Self::MpichHeaders => ["libmpich-dev", "mpich-devel", "mpich-devel", "mpich", "mpich-dev"],
            Self::NetpipeOpenMpi => ["netpipe-openmpi"; 5],
            Self::Fio => ["fio"; 5],
            Self::LibfabricUtils => ["libfabric-bin", "libfabric", "libfabric", "libfabric", "libfabric"],
            Self::Cmake => ["cmake"; 5],
            Self::Libclang => ["libclang-dev", "clang-devel", "clang-devel", "clang", "clang-dev"],
        };
        match manager.program {
            "apt-get" => apt,
            "dnf" => dnf,
            "zypper" => zypper,
            "pacman" => pacman,
            _ => apk,
        }
    }
}

/// Where distributions put libclang.
fn library_folders() -> impl Iterator<Item = PathBuf> {
    let subfolders =
        |folder: &str| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
    ["/usr/lib", "/usr/lib64"].into_iter().flat_map(move |folder| {
        let below = subfolders(folder).flat_map(|path| [path.join("lib"), path]);
        below.chain([folder.into()])
    })
}

struct Manager {
    program: &'static str,
    install: &'static [&'static str],
    refresh: &'static [&'static str],
}

const MANAGERS: [Manager; 5] = [
    Manager {
        program: "apt-get",
        install: &["install", "-y", "-q", "--no-install-recommends"],
        refresh: &["update", "-q"],
    },
    Manager { program: "dnf", install: &["install", "-y"], refresh: &["makecache"] },
    Manager { program: "zypper", install: &["--non-interactive", "install"], refresh: &["refresh"] },
    Manager { program: "pacman", install: &["-S", "--noconfirm", "--needed"], refresh: &["-Sy"] },
    Manager { program: "apk", install: &["add"], refresh: &["update"] },
];

/// Installs what is missing of `wanted`, or says how it could be.
pub(crate) fn install(wanted: &[Package]) -> Result {
    let missing: Vec<Package> = wanted.iter().copied().filter(|p| !p.is_installed()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let proofs = |packages: &[Package]| packages.iter().map(|p| p.proof()).collect::<Vec<_>>().join(", ");
    let Some(manager) = MANAGERS.iter().find(|m| succeeds(m.program, &["--version"])) else {
        return Err(format!(
            "missing: {}; no package manager that I know (apt-get, dnf, zypper, pacman, apk): install the packages \
             of perftest, rdma-core and UCX that have them",
            proofs(&missing)
        ));
    };
    let mut names: Vec<&str> = missing.iter().flat_map(|p| p.name(manager).split(' ')).collect();
    names.sort_unstable();
    names.dedup();
    let by_hand = format!("as root: {} {} {}", manager.program, manager.install.join(" "), names.join(" "));
    if !is_root() && !succeeds("sudo", &["-n", "true"]) {
        return Err(format!(
            "missing: {}; not root and sudo asks for a password; {by_hand}",
            proofs(&missing)
        ));
    }
    let as_root = |arguments: &[&str]| {
        let line = [&["DEBIAN_FRONTEND=noninteractive", manager.program], arguments].concat();
        if is_root() { run("env", &line) } else { run("sudo", &[&["-n", "env"], &line[..]].concat()) }
    };
    let install = [manager.install, &names].concat();
    // The first may fail because the lists of packages are absent or old.
    let result = as_root(&install).or_else(|_| as_root(manager.refresh).and_then(|()| as_root(&install)));
    let still: Vec<Package> = missing.into_iter().filter(|p| !p.is_installed()).collect();
    if still.is_empty() {
        return Ok(());
    }
    let why = result.err().unwrap_or("the packages do not have them".into());
    Err(format!("missing: {}; {why}; {by_hand}", proofs(&still)))
}
