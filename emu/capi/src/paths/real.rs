//! The functions behind the interposed ones: the next definition after this library's.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use crate::boundary::{Errno, set_errno};

/// One function of libc, looked up once.
pub struct Real {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

/// What stands for a function that libc does not have, or that is asked for by the look-up itself.
extern "C" fn absent() -> isize {
    set_errno(Errno(libc::ENOSYS));
    -1
}

/// As [`absent`], for functions that return a pointer.
extern "C" fn absent_pointer() -> *mut c_void {
    set_errno(Errno(libc::ENOSYS));
    std::ptr::null_mut()
}

/// The thread that is in `dlsym`. An allocator that dlsym calls may open a file for its own set-up.
static LOOKING: AtomicI32 = AtomicI32::new(0);

impl Real {
    /// The function of that name, not looked up yet.
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address. `pointer` says what the function returns.
    #[inline]
    pub fn address(&self, pointer: bool) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.look_up(pointer) } else { address }
    }

    #[cold]
    fn look_up(&self, pointer: bool) -> *mut c_void {
        let nobody: *mut c_void = if pointer { absent_pointer as *mut c_void } else { absent as *mut c_void };
        // SAFETY: gettid cannot fail.
        let thread = unsafe { libc::gettid() };
        if LOOKING.load(Ordering::Relaxed) == thread {
            return nobody;
        }
        LOOKING.store(thread, Ordering::Relaxed);
        // SAFETY: the name is a C string. What is found is a function with the signature of that name.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        LOOKING.store(0, Ordering::Relaxed);
        let address = if found.is_null() { nobody } else { found };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// The real function of a name. The signature has to be the one that libc documents for it, and the place an
/// unsafe block.
macro_rules! real {
    ($name:ident: fn($($type:ty),*) -> *mut $result:ty) => { real!(@ $name, true, unsafe extern "C" fn($($type),*) -> *mut $result) };
    ($name:ident: fn($($type:ty),*) -> $result:ty) => { real!(@ $name, false, unsafe extern "C" fn($($type),*) -> $result) };
    (@ $name:ident, $pointer:literal, $signature:ty) => {{
        static REAL: Real = Real::new(match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => unreachable!(),
        });
        std::mem::transmute::<*mut c_void, $signature>(REAL.address($pointer))
    }};
}
pub(crate) use real;
