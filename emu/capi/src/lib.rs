//! The drop-in libibverbs.so.1 and librdmacm.so.1: the C interface of rdma-core over the urxe device.
//!
//! A call goes `exports.txt` (name and version) -> [`symbols`] (entry point) -> the function of that name in a
//! module here, which checks what the program passed and calls the device. [`boundary`] keeps panics inside
//! and turns errors into C's conventions; [`memory`] reads and writes what the program points to.

#![allow(unsafe_code)]

use urxe_abi as abi;

pub mod boundary;
pub mod cm;
pub mod fork;
pub mod log;
pub mod marshal;
pub mod memory;
pub mod paths;
pub mod rates;
pub mod session;
pub mod signals;
pub mod strings;
#[cfg(not(test))]
mod symbols;
pub mod system;
pub mod unsupported;
pub mod verbs;
