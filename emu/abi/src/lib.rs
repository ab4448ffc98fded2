//! The structures and constants of `infiniband/verbs.h`, `rdma/rdma_cma.h` and the kernel structures that
//! their marshalling functions take, as rdma-core 65 lays them out.
//!
//! Names are C's, so that a reader finds them in the manual pages. A C enum is an `u32` here (or `i32` where
//! one of its values is negative): a program may pass any value, and a Rust enum would make that undefined.
//! `tests/layout.rs` compares every size and offset with the installed headers.

// The manual pages document what is named here.
#![allow(missing_docs, non_camel_case_types, non_snake_case)]

/// What the layout test compares with C: a type's C name, its size and the offsets of its fields.
pub struct Layout {
    pub name: &'static str,
    pub size: usize,
    pub fields: &'static [(&'static str, usize)],
}

/// Defines `#[repr(C)]` types and their [`Layout`]s. `field as "path"` gives C's name where it differs.
macro_rules! c_types {
    ($($kind:tt $name:ident { $($field:ident $(as $path:literal)? : $type:ty),* $(,)? })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub $kind $name { $(pub $field: $type),* }
        )*
        /// The types of this module, for the layout test.
        pub const LAYOUTS: &[$crate::Layout] = &[$($crate::Layout {
            name: concat!(stringify!($kind), " ", stringify!($name)),
            size: size_of::<$name>(),
            fields: &[$((c_types!(@path $field $($path)?), core::mem::offset_of!($name, $field))),*],
        }),*];
    };
    (@path $field:ident) => { stringify!($field) };
    (@path $field:ident $path:literal) => { $path };
}

pub mod cm;
pub mod constants;
pub mod context;
pub mod kernel;
pub mod objects;
pub mod requests;

pub use constants::*;
pub use context::*;
pub use objects::*;
pub use requests::*;

/// All types that the layout test checks.
pub const LAYOUTS: &[&[Layout]] =
    &[objects::LAYOUTS, requests::LAYOUTS, context::LAYOUTS, cm::LAYOUTS, kernel::LAYOUTS];
