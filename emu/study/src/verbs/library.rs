//! The functions of libibverbs.so.1 and the tables behind its inline functions.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::sync::OnceLock;

use urxe_abi::*;

use super::error::{Error, Result};

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions that are called by name.
        #[allow(non_snake_case)]
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            _library: libloading::Library,
        }

        impl Library {
            fn load() -> std::result::Result<Self, libloading::Error> {
                // SAFETY: the initialisers of a verbs library are meant for any program.
                let library = unsafe { libloading::Library::new("libibverbs.so.1")? };
                Ok(Self {
                    // SAFETY: the types are those of infiniband/verbs.h; the library stays as long as they do.
                    $($name: unsafe { *library.get(concat!(stringify!($name), "\0").as_bytes())? },)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list: fn(*mut *mut ibv_device);
    ibv_get_device_name: fn(*mut ibv_device) -> *const c_char;
    ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device: fn(*mut ibv_context) -> c_int;
    ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    _ibv_query_gid_ex: fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
    ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
    ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
    ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
    ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
    ibv_qp_to_qp_ex: fn(*mut ibv_qp) -> *mut ibv_qp_ex;
    ibv_wc_status_str: fn(u32) -> *const c_char;
}

/// The library, which is loaded once.
pub(super) fn library() -> Result<&'static Library> {
    static LIBRARY: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
    LIBRARY
        .get_or_init(|| Library::load().map_err(|e| e.to_string()))
        .as_ref()
        .map_err(|why| Error::Library(format!("{why}; it is part of rdma-core, version 32 or newer")))
}

/// The extended table of a context, if the library has one.
///
/// # Safety
/// `context` is one that `ibv_open_device` has returned, and still open.
unsafe fn extended(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: by contract it is readable; this mark says that it is the last member of a `verbs_context`.
    unsafe {
        let marked = (*context).abi_compat as usize == usize::MAX;
        marked.then(|| context.byte_sub(offset_of!(verbs_context, context)).cast())
    }
}

macro_rules! operations {
    ($($name:ident -> $type:ty;)*) => { $(
        /// The operation of this name, if the library is new enough and the device has it.
        ///
        /// # Safety
        /// `context` is one that `ibv_open_device` has returned, and still open.
        pub(super) unsafe fn $name(context: *mut ibv_context) -> Option<$type> {
            // SAFETY: by contract. The table grows at its front, so its size tells whether the member is there.
            unsafe {
                let table = extended(context)?;
                let behind = size_of::<verbs_context>() - offset_of!(verbs_context, $name);
                if (*table).sz < behind { None } else { (*table).$name }
            }
        }
    )* };
}

operations! {
    create_qp_ex -> unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
    advise_mr -> unsafe extern "C" fn(*mut ibv_pd, u32, u32, *mut ibv_sge, u32) -> c_int;
    query_port -> unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int;
    query_device_ex -> unsafe extern "C" fn(
        *mut ibv_context,
        *const ibv_query_device_ex_input,
        *mut ibv_device_attr_ex,
        usize,
    ) -> c_int;
}
