//! Impairments as settings of a device: in virtual time, and on loopback sockets.

#[allow(dead_code)]
#[path = "../sim/harness.rs"]
mod harness;
#[allow(dead_code)]
#[path = "../sim/traffic.rs"]
mod traffic;

mod link;
mod simulated;
mod sockets;

use urxe::config::{Config, Source};
use urxe::device::Device;

fn config(settings: &[(&str, &str)]) -> Config {
    let mut config = Config::default();
    for (key, value) in settings {
        config.set(key, value, Source::Default).unwrap();
    }
    config
}

fn counter(device: &Device, name: &str) -> u64 {
    device.counters().into_iter().find(|(n, _)| *n == name).unwrap().1
}
