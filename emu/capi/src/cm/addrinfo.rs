//! `rdma_getaddrinfo`: names and services become addresses, by libc's `getaddrinfo`.
//!
//! What it returns is freed piece by piece, as programs may have replaced pieces by their own; all of it comes from
//! malloc.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_void};

use libc::{sockaddr, socklen_t};
use parking_lot::Mutex;

use super::channel::{Kind, complete};
use super::daemon;
use super::id::find;
use crate::abi::cm::*;
use crate::abi::*;
use crate::boundary::{Errno, Outcome, guarded, minus_one, nothing, set_errno};
use crate::memory;
use crate::verbs::convert::{INVALID, UNSUPPORTED};

/// Results that the program has not freed.
static RESULTS: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// What `rdma_resolve_addrinfo` is at.
#[derive(Default)]
pub enum Resolving {
    /// Nothing.
    #[default]
    Nothing,
    /// A result waits for the program: a `rdma_addrinfo`.
    Done(usize),
}

impl Resolving {
    /// Frees what nobody took.
    pub fn forget(&mut self) {
        if let Self::Done(result) = std::mem::take(self) {
            free(std::ptr::with_exposed_provenance_mut(result));
        }
    }
}

/// Why there is no result: as errno, or as `getaddrinfo` says it.
enum Failure {
    Errno(Errno),
    Name(c_int),
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        Self::Errno(error)
    }
}

/// Copies bytes into memory of malloc's.
fn copied(from: *const c_void, length: usize) -> Outcome<*mut c_void> {
    // SAFETY: malloc may be asked for anything; memory checks the source.
    unsafe {
        let to = libc::malloc(length.max(1));
        if to.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        if let Err(error) = memory::read_bytes(to.cast(), from.cast(), length) {
            libc::free(to);
            return Err(error);
        }
        Ok(to)
    }
}

/// An address of the program's hints.
fn copied_address(from: *const sockaddr, length: socklen_t) -> Outcome<*mut sockaddr> {
    if length as usize > size_of::<libc::sockaddr_storage>() {
        return Err(INVALID);
    }
    Ok(copied(from.cast(), length as usize)?.cast())
}

/// A name that libc's `getaddrinfo` can be given.
fn checked_name(name: *const c_char) -> Outcome<()> {
    if !name.is_null() {
        // SAFETY: memory checks the pointer.
        unsafe { memory::read_string(name, 1 << 16)? };
    }
    Ok(())
}

fn lookup(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
    result: &mut rdma_addrinfo,
) -> Result<(), Failure> {
    checked_name(node)?;
    checked_name(service)?;
    // SAFETY: plain numbers and null pointers.
    let mut wanted: libc::addrinfo = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let nothing: rdma_addrinfo = unsafe { std::mem::zeroed() };
    let given = hints.unwrap_or(&nothing);
    if given.ai_flags & RAI_PASSIVE != 0 {
        wanted.ai_flags |= libc::AI_PASSIVE;
    }
    if given.ai_flags & RAI_NUMERICHOST != 0 {
        wanted.ai_flags |= libc::AI_NUMERICHOST;
    }
    if given.ai_family != AF_IB {
        wanted.ai_family = given.ai_family;
    }
    wanted.ai_socktype = match given.ai_qp_type.cast_unsigned() {
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    wanted.ai_protocol = match (given.ai_port_space.cast_unsigned(), wanted.ai_socktype) {
        (RDMA_PS_TCP, _) | (RDMA_PS_IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (RDMA_PS_UDP | RDMA_PS_IPOIB, _) | (RDMA_PS_IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => 0,
    };
    let mut found: *mut libc::addrinfo = std::ptr::null_mut();
    let hints_pointer = if hints.is_some() { &raw const wanted } else { std::ptr::null() };
    // SAFETY: the names are null or strings, the other pointers ours.
    let failed = unsafe { libc::getaddrinfo(node, service, hints_pointer, &mut found) };
    if failed != 0 || found.is_null() {
        return Err(Failure::Name(failed));
    }
    let taken = take_first(found, given, result);
    // SAFETY: it came from getaddrinfo.
    unsafe { libc::freeaddrinfo(found) };
    Ok(taken?)
}

fn take_first(
    found: *const libc::addrinfo,
    given: &rdma_addrinfo,
    result: &mut rdma_addrinfo,
) -> Outcome<()> {
    // SAFETY: getaddrinfo succeeded, so there is one.
    let found = unsafe { &*found };
    result.ai_qp_type = match (given.ai_qp_type, found.ai_socktype) {
        (0, libc::SOCK_DGRAM) => IBV_QPT_UD.cast_signed(),
        (0, libc::SOCK_STREAM) => IBV_QPT_RC.cast_signed(),
        (wanted, _) => wanted,
    };
    result.ai_port_space = match (given.ai_port_space, found.ai_protocol) {
        (0, libc::IPPROTO_TCP) => RDMA_PS_TCP.cast_signed(),
        (0, libc::IPPROTO_UDP) => RDMA_PS_UDP.cast_signed(),
        (wanted, _) => wanted,
    };
    result.ai_family = found.ai_family;
    let address = copied_address(found.ai_addr, found.ai_addrlen)?;
    let name = match found.ai_canonname.is_null() {
        true => std::ptr::null_mut(),
        // SAFETY: a string.
        false => unsafe { libc::strdup(found.ai_canonname) },
    };
    if given.ai_flags & RAI_PASSIVE != 0 {
        result.ai_flags = RAI_PASSIVE;
        result.ai_src_addr = address;
        result.ai_src_len = found.ai_addrlen;
        result.ai_src_canonname = name;
    } else {
        result.ai_dst_addr = address;
        result.ai_dst_len = found.ai_addrlen;
        result.ai_dst_canonname = name;
    }
    Ok(())
}

/// # Safety
/// The pointers are what the program passed.
unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<*mut rdma_addrinfo, Failure> {
    if node.is_null() && service.is_null() && hints.is_null() {
        return Err(INVALID.into());
    }
    daemon::ready()?;
    // SAFETY: memory checks the pointer.
    let hints = if hints.is_null() { None } else { Some(unsafe { memory::read(hints)? }) };
    if let Some(hints) = &hints
        && hints.ai_flags & RAI_SA != 0
    {
        // There is no subnet administrator whom one could ask for services.
        let only = node.is_null() && hints.ai_flags & RAI_DNS == 0;
        return Err(if only { Errno(libc::ENOENT) } else { UNSUPPORTED }.into());
    }
    // SAFETY: zeroes are null pointers and numbers.
    let result = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) }.cast::<rdma_addrinfo>();
    // SAFETY: null or just made.
    let Some(out) = (unsafe { result.as_mut() }) else { return Err(Errno(libc::ENOMEM).into()) };
    RESULTS.lock().insert(result.expose_provenance());
    let filled = fill(node, service, hints.as_ref(), out);
    if let Err(failure) = filled {
        free(result);
        return Err(failure);
    }
    Ok(result)
}

fn fill(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
    out: &mut rdma_addrinfo,
) -> Result<(), Failure> {
    if !node.is_null() || !service.is_null() {
        lookup(node, service, hints, out)?;
    } else if let Some(hints) = hints {
        out.ai_flags = hints.ai_flags;
        out.ai_family = hints.ai_family;
        out.ai_qp_type = hints.ai_qp_type;
        out.ai_port_space = hints.ai_port_space;
        if hints.ai_dst_len > 0 {
            out.ai_dst_addr = copied_address(hints.ai_dst_addr, hints.ai_dst_len)?;
            out.ai_dst_len = hints.ai_dst_len;
        }
    }
    if let Some(hints) = hints
        && out.ai_src_len == 0
        && hints.ai_src_len > 0
    {
        out.ai_src_addr = copied_address(hints.ai_src_addr, hints.ai_src_len)?;
        out.ai_src_len = hints.ai_src_len;
    }
    Ok(())
}

/// rdma_getaddrinfo(3): what `getaddrinfo` returns if a name is not found, and -1 with `errno` otherwise.
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    result: *mut *mut rdma_addrinfo,
) -> c_int {
    let answer = guarded(|| {
        // SAFETY: memory checks the pointers.
        unsafe {
            memory::write(result, std::ptr::null_mut())?;
            match resolve(node, service, hints) {
                Ok(found) => memory::write(result, found).map(|()| 0),
                Err(Failure::Name(code)) => Ok(code),
                Err(Failure::Errno(error)) => Err(error),
            }
        }
    });
    answer.unwrap_or_else(|error| {
        set_errno(error);
        -1
    })
}

fn free(list: *mut rdma_addrinfo) {
    let mut next = list;
    while RESULTS.lock().remove(&next.addr()) {
        // SAFETY: it came from calloc above and was not freed; its pieces are from malloc, or the program's that are.
        unsafe {
            let this = *next;
            libc::free(this.ai_connect);
            libc::free(this.ai_route);
            libc::free(this.ai_src_canonname.cast());
            libc::free(this.ai_dst_canonname.cast());
            libc::free(this.ai_src_addr.cast());
            libc::free(this.ai_dst_addr.cast());
            libc::free(next.cast());
            next = this.ai_next;
        }
    }
}

/// rdma_freeaddrinfo(3)
pub extern "C" fn rdma_freeaddrinfo(list: *mut rdma_addrinfo) {
    nothing(|| {
        free(list);
        Ok(())
    });
}

/// rdma_resolve_addrinfo(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the identifier, memory the other pointers.
        unsafe {
            let object = find(id)?;
            let busy = |resolving: &Resolving| match resolving {
                Resolving::Nothing => Ok(()),
                Resolving::Done(_) => Err(Errno(libc::EBUSY)),
            };
            busy(&object.private.resolving.lock())?;
            let found = resolve(node, service, hints).map_err(|failure| match failure {
                Failure::Errno(error) => error,
                // librdmacm hands getaddrinfo's number through; ENOENT says what it means.
                Failure::Name(_) => Errno(libc::ENOENT),
            })?;
            {
                let mut resolving = object.private.resolving.lock();
                if let Err(error) = busy(&resolving) {
                    free(found);
                    return Err(error);
                }
                *resolving = Resolving::Done(found.expose_provenance());
            }
            _ = object.private.id.tell(Kind::AddressInformation);
            complete(object)?;
        }
        Ok(0)
    })
}

/// rdma_query_addrinfo(3)
///
/// # Safety
/// The pointers are what the program passed.
pub unsafe extern "C" fn rdma_query_addrinfo(id: *mut rdma_cm_id, result: *mut *mut rdma_addrinfo) -> c_int {
    minus_one(|| {
        // SAFETY: find checks the identifier, memory the other pointer: before there is something to lose.
        unsafe {
            let object = find(id)?;
            memory::write(result, std::ptr::null_mut())?;
            let taken = std::mem::take(&mut *object.private.resolving.lock());
            match taken {
                Resolving::Nothing => return Err(Errno(libc::ENOENT)),
                Resolving::Done(found) => {
                    memory::write(result, std::ptr::with_exposed_provenance_mut(found))?;
                }
            }
        }
        Ok(0)
    })
}
