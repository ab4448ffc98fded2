//! `urxe run`: the environment that puts the device under a program, then the program.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use urxe::config::{Config, Daemon, KEYS, Source};
use urxe::io::route;

use crate::args::Run;
use crate::{Failure, dropin, fabric};

/// The RoCEv2 port.
pub(crate) const ROCE_PORT: u16 = 4791;

/// Becomes the program; returns only what went wrong.
pub(crate) fn run(options: &Run) -> Failure {
    let mut command = match prepare(options) {
        Ok(command) => command,
        Err(failure) => return failure,
    };
    let error = command.exec();
    let name = Path::new(command.get_program()).display();
    match error.kind() {
        ErrorKind::NotFound => Failure {
            code: 127,
            message: format!("cannot run {name}: not found; is it installed and in PATH?"),
        },
        _ => Failure { code: 126, message: format!("cannot run {name}: {error}") },
    }
}

fn prepare(options: &Run) -> Result<Command, Failure> {
    let Some((program, arguments)) = options.command.split_first() else {
        return Err("run what? urxe run [FLAG...] -- COMMAND [ARGUMENT...]".to_owned().into());
    };
    let config = Config::resolve(std::env::vars_os(), &options.flags)?;
    // Says early what the device could only say through the program.
    match (config.daemon, config.addr) {
        (Daemon::Auto, _) => _ = fabric::addresses(&config).map_err(|e| e.to_string())?,
        (Daemon::Off, Some(address)) => check_address(address)?,
        (Daemon::Off, None) => {}
    }
    if options.with_parent {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
            .map_err(|e| format!("cannot tie the program to its parent: {e}"))?;
    }
    let folder = dropin::folder()?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LD_PRELOAD", prepend(folder.join(dropin::PRELOADED).into(), "LD_PRELOAD"))
        .env("LD_LIBRARY_PATH", prepend(folder.into(), "LD_LIBRARY_PATH"));
    if config.source("log") == Some(&Source::Default) {
        command.env("URXE_LOG", "warn");
    }
    for (flag, value) in &options.flags {
        if let Some(key) = KEYS.iter().find(|k| k.flag() == *flag) {
            command.env(key.env(), value);
        }
    }
    Ok(command)
}

/// `first:$variable`; an empty element would mean the current directory.
fn prepend(mut first: OsString, variable: &str) -> OsString {
    if let Some(rest) = std::env::var_os(variable).filter(|v| !v.is_empty()) {
        first.push(":");
        first.push(rest);
    }
    first
}

/// Without a daemon: whether the address is there and free.
fn check_address(address: IpAddr) -> Result<(), String> {
    let mut name = SocketAddr::new(address, ROCE_PORT);
    if let SocketAddr::V6(v6) = &mut name
        && v6.ip().is_unicast_link_local()
        && let Ok(Some(interface)) = route::interface(address)
    {
        v6.set_scope_id(interface.scope_id);
    }
    match UdpSocket::bind(name) {
        Err(e) if e.kind() == ErrorKind::AddrInUse => Err(format!(
            "address {address} is taken: another device or program has its UDP port {ROCE_PORT}; choose another, or auto"
        )),
        Err(e) if e.kind() == ErrorKind::AddrNotAvailable => {
            Err(format!("address {address} is not an address of this host; `ip addr` lists them"))
        }
        Err(e) => Err(format!("address {address} cannot be used: {e}")),
        Ok(_) => Ok(()),
    }
}
