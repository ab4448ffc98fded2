//! The drop-in libibverbs and librdmacm.
#![allow(unsafe_code)]
pub mod abi;
