//! Open MPI and MPICH, whose ranks reach each other by the device alone: no shared memory, no TCP.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cases::{Case, Check, Env, Kind};
use crate::harness::{self, PATIENCE, repository, urxe};
use crate::paging::UCX_PAGED;
use crate::report;

const EVERY_BYTE: &str = "every_byte";
const LONG_MESSAGES: &str = "long_messages";
/// In the arguments of a case these stand for the compiled tests/mpi/*.c.
pub(crate) const PROGRAMS: [&str; 2] = [EVERY_BYTE, LONG_MESSAGES];

/// Not shown in the documents: what a superuser's machine with few processors needs, that mpirun's own traffic stays on
/// this host, and no warning that the device is not in a list.
pub(crate) const ENVIRONMENT: &[(&str, &str)] = &[
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("OMPI_MCA_oob_tcp_if_include", "lo"),
    ("OMPI_MCA_btl_openib_warn_no_device_params_found", "0"),
];

const OPEN_MPI: &str = "openmpi-bin";
const MPICH: &str = "mpich";

/// rc_v is rc_verbs with ud_verbs to set up connections; without it UCX cannot find the peer's queue pair.
const RC: &[(&str, &str)] = &[("UCX_TLS", "rc_v,self"), ("UCX_NET_DEVICES", "urxe0:1")];
const UD: &[(&str, &str)] = &[("UCX_TLS", "ud_v,self"), ("UCX_NET_DEVICES", "urxe0:1")];
/// The BTL openib sets up its connections itself (udcm), by LID, which it only does on InfiniBand. Open MPI 4 uses such
/// ports only when told to.
const INFINIBAND: &[(&str, &str)] = &[("URXE_LINK_LAYER", "infiniband")];
const OPENIB: &str =
    "--mca pml ob1 --mca btl openib,self --mca btl_openib_allow_ib 1 --mca btl_openib_if_include urxe0";

pub(crate) fn cases() -> Vec<Case> {
    let case = |package, program, arguments: String, env: &[(&'static str, &'static str)], check| Case {
        package,
        program,
        arguments,
        env: env.to_vec(),
        kind: Kind::Single,
        check,
    };
    let every_byte = || Check::Says(&["4 ranks, ", " bytes checked, 0 wrong"]);
    let mut cases = Vec::new();
    for env in [RC, UD] {
        let line = format!("-n 4 --mca pml ucx --mca osc ucx {EVERY_BYTE}");
        cases.push(case(OPEN_MPI, "mpirun.openmpi", line, env, every_byte()));
    }
    // Without compare-and-swap (c): osc rdma passes openib no registration for it and crashes; osc pt2pt waits for ever in
    // a send that it does while it holds the lock that the next request needs.
    let line = format!("-n 4 {OPENIB} --mca osc rdma {EVERY_BYTE} avspn");
    cases.push(case(OPEN_MPI, "mpirun.openmpi", line, INFINIBAND, every_byte()));
    let line = format!("-n 4 {OPENIB} --mca osc pt2pt {EVERY_BYTE} avspn");
    cases.push(case(OPEN_MPI, "mpirun.openmpi", line, INFINIBAND, every_byte()));
    let line = format!("-n 4 {OFI} --mca osc pt2pt {EVERY_BYTE} avspn");
    cases.push(case(OPEN_MPI, "mpirun.openmpi", line, OFI_DEVICE, every_byte()));
    for env in [RC, UD] {
        cases.push(case(MPICH, "mpiexec.hydra", format!("-n 4 {EVERY_BYTE}"), env, every_byte()));
    }
    // NetPIPE: 36 sizes to 786433 bytes, looked at; and 103 measured ones. More than two ranks hang on any transport.
    for (mpi, env) in [("--mca pml ucx", RC), ("--mca pml ucx", UD), (OPENIB, INFINIBAND)] {
        for (options, check) in [
            ("-i -n 5", Check::Count("Integrity check passed", 36)),
            ("-2 -a -i -n 5", Check::Count("Integrity check passed", 36)),
            ("-n 20", Check::Count(" Mbps in ", 103)),
        ] {
            let line = format!("-n 2 {mpi} NPopenmpi {options} -u 1000000 -o /dev/null");
            cases.push(case("netpipe-openmpi", "mpirun.openmpi", line, env, check));
        }
    }
    cases.extend(long_messages());
    cases
}

/// How a long message goes: the receiver reads it, the sender writes it, or it is copied through buffers in pieces.
const UCX_RENDEZVOUS: [&[(&str, &str)]; 3] = [
    &[("UCX_RNDV_SCHEME", "get_zcopy")],
    &[("UCX_RNDV_SCHEME", "put_zcopy")],
    &[("UCX_RNDV_THRESH", "inf"), ("UCX_ZCOPY_THRESH", "inf")],
];
/// The same of libfabric's ofi_rxm, and a limit of short messages other than the 16 KiB of the default.
const RXM_RENDEZVOUS: [&[(&str, &str)]; 4] = [
    &[],
    &[("FI_OFI_RXM_USE_RNDV_WRITE", "1")],
    &[("FI_OFI_RXM_SAR_LIMIT", "8388608")],
    &[("FI_OFI_RXM_BUFFER_SIZE", "65536")],
];
const OFI: &str = "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs --mca btl self";
const OFI_DEVICE: &[(&str, &str)] = &[("FI_VERBS_DEVICE_NAME", "urxe0")];

fn long_messages_case(package: &'static str, program: &'static str, arguments: String, env: Env) -> Case {
    Case {
        package,
        program,
        arguments,
        env,
        kind: Kind::Single,
        check: Check::Says(&["\n4194304 ", "2 ranks, 134201344 bytes checked, 0 wrong"]),
    }
}

/// Bandwidth of long messages, whose every byte is looked at. Debian's MPICH knows UCX alone, its Open MPI also libfabric.
fn long_messages() -> Vec<Case> {
    let mut cases = Vec::new();
    for how in UCX_RENDEZVOUS {
        let env = [RC, how].concat();
        let line = format!("-n 2 --mca pml ucx {LONG_MESSAGES}");
        cases.push(long_messages_case(OPEN_MPI, "mpirun.openmpi", line, env.clone()));
        cases.push(long_messages_case(MPICH, "mpiexec.hydra", format!("-n 2 {LONG_MESSAGES}"), env));
    }
    for how in RXM_RENDEZVOUS {
        let line = format!("-n 2 {OFI} {LONG_MESSAGES}");
        cases.push(long_messages_case(OPEN_MPI, "mpirun.openmpi", line, [OFI_DEVICE, how].concat()));
    }
    cases
}

/// Long messages with all memory paged on demand: one MPI is enough, as UCX does it.
pub(crate) fn paged_long_messages(tasks: (&'static str, &'static str)) -> Case {
    let env = [&[tasks, UCX_PAGED], RC].concat();
    long_messages_case(OPEN_MPI, "mpirun.openmpi", format!("-n 2 --mca pml ucx {LONG_MESSAGES}"), env)
}

/// Compiles a program of tests/mpi with this MPI's compiler.
pub(crate) fn compiled(name: &str, package: &str) -> Result<PathBuf, String> {
    let compiler = if package == MPICH { "mpicc.mpich" } else { "mpicc.openmpi" };
    let folder = report::folder().with_file_name("mpi");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    // Tests run at the same time: each compiles its own, and the last one in place counts.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let turn = NEXT.fetch_add(1, Ordering::Relaxed);
    let own = folder.join(format!("{name}.{compiler}.{}.{turn}", std::process::id()));
    let program = folder.join(format!("{name}.{compiler}"));
    let mut command = Command::new(compiler);
    command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&own);
    let output = harness::run(command.arg(repository().join(format!("tests/mpi/{name}.c"))), PATIENCE)?;
    if output.code != Some(0) {
        return Err(format!("{command:?}: exit code {:?}\n{}", output.code, output.text));
    }
    std::fs::rename(&own, &program).map_err(|e| format!("{}: {e}", program.display()))?;
    Ok(program)
}

/// That the cases above do not pass by another way between the ranks: the same command lines, with a device that is not
/// there, fail. What differs only in how long messages go is tried once.
pub(crate) fn without_device() -> Result<(), String> {
    let mut tried = HashSet::new();
    for case in cases() {
        let transport = case.env.iter().find(|(name, _)| *name == "UCX_TLS").copied();
        if !tried.insert((case.arguments.clone(), transport)) {
            continue;
        }
        let mut command = urxe(["run", "--device", "other0", "--"]);
        let output = harness::run(case.fill(&mut command, "")?, PATIENCE)?;
        if output.code == Some(0) || output.text.contains(" 0 wrong") || output.text.contains("passed") {
            return Err(format!("{} passes without the device\n{}", case.command(), output.text));
        }
    }
    Ok(())
}
