//! `urxe study`: the crate `urxe-study`, with this command as what starts its workers.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use urxe::config::Config;
use urxe_study::driver::{self, Interrupt, Options};
use urxe_study::work::worker;

use crate::args::Study;
use crate::{Failure, OWN_ERROR, complain};

pub(crate) fn study(study: &Study) -> Result<u8, Failure> {
    // What is wrong with the configuration shows here, before a worker starts.
    Config::resolve(std::env::vars_os(), &study.flags)?;
    let urxe = std::env::current_exe().map_err(|e| format!("cannot find myself: {e}"))?;
    let options = Options {
        device: study.device.clone(),
        gid_index: study.gid_index,
        flags: study.flags.clone(),
        ..Options::local(urxe)
    };
    match study.server {
        Some(port) => serve(port, &options),
        None => Err("which study?".to_owned().into()),
    }
}

fn serve(port: u16, options: &Options) -> Result<u8, Failure> {
    let interrupt = Interrupt::new().map_err(failure)?;
    let addresses =
        [SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))];
    let listens = |address| complain(&format!("waits for studies at {address}"));
    match driver::serve(&addresses, options, &interrupt, listens) {
        Err(driver::Error::Interrupted) => Ok(interrupt.signal().map_or(0, |number| 128 + number as u8)),
        other => other.map(|()| 0).map_err(failure),
    }
}

/// Runs one end of a pair. What goes wrong is told to the driver by the worker itself, and here to whoever started it.
pub(crate) fn worker(description: &str) -> Result<u8, Failure> {
    let options: worker::Options = serde_json::from_str(description)
        .map_err(|e| format!("study-worker is started by urxe study: {e}"))?;
    worker::run(&options).map(|()| 0).map_err(|message| Failure { code: OWN_ERROR, message })
}

fn failure(error: driver::Error) -> Failure {
    error.to_string().into()
}
