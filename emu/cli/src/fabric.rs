//! What the daemon of the configured fabric says.

use std::net::IpAddr;

use urxe::config::Config;
use urxe_control::Error;
use urxe_control::launch::Launch;
use urxe_control::protocol::{DeviceSpec, Reply, Request};

/// Starts the daemon if none runs, and finds the addresses of all devices of the configured machine. What is wrong with
/// an address shows here, before a program starts.
pub(crate) fn addresses(config: &Config) -> Result<Vec<IpAddr>, Error> {
    let connection = Launch::new(config.fabric.as_str())?.connect()?;
    let address = |rail| match connection.ask(&Request::Device(DeviceSpec::of(config, rail)?), &[], |_| ())? {
        (Reply::Device { address, .. }, _) => Ok(address),
        _ => Err(Error::Protocol("another answer than a device")),
    };
    (0..config.devices.value()).map(address).collect()
}
