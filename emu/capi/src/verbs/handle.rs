//! The objects that a program holds pointers to.
//!
//! An [`Object`] begins with the structure of verbs.h, which the program reads and partly writes; what the
//! library needs follows. A pointer from the program is recognised in one of two ways: on control calls by a
//! table of all living objects, so that a wild or stale pointer is an error before it is followed; on the data
//! path by a mark in the object, which costs one load.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::boundary::{Errno, Outcome};

/// The library's part of an object.
pub trait Private: Sized + 'static {
    /// The structure it begins with.
    type Abi: Copy;
    /// What the program's pointer points to.
    type Exposed;
    /// Where that is in the structure.
    const OFFSET: usize = 0;
    /// The mark of living objects of this type.
    const MARK: u64;
}

/// What a program's pointer points into.
#[repr(C)]
pub struct Object<P: Private> {
    abi: UnsafeCell<P::Abi>,
    mark: AtomicU64,
    /// The library's part.
    pub private: P,
}

/// Living objects by address, with their marks.
///
/// A mutex of the standard library: see [`crate::fork`].
static LIVING: Mutex<BTreeMap<usize, u64>> = Mutex::new(BTreeMap::new());

fn living() -> MutexGuard<'static, BTreeMap<usize, u64>> {
    LIVING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps objects from being made and destroyed until the result is dropped. `None` while one is.
pub fn quiesce() -> Option<impl Sized + 'static> {
    crate::fork::try_hold(&LIVING)
}

impl<P: Private> Object<P> {
    /// Makes an object. `fill` gets the pointer that the program will have, and completes what needs it.
    pub fn publish(abi: P::Abi, private: P) -> *mut P::Exposed {
        let object = Box::into_raw(Box::new(Self {
            abi: UnsafeCell::new(abi),
            mark: AtomicU64::new(P::MARK),
            private,
        }));
        living().insert(object.addr(), P::MARK);
        object.wrapping_byte_add(P::OFFSET).cast()
    }

    fn place(exposed: *const P::Exposed) -> *const Self {
        exposed.wrapping_byte_sub(P::OFFSET).cast()
    }

    /// The object of a pointer that may be anything. For control calls.
    ///
    /// # Safety
    /// The program does not destroy the object while this reference lives.
    pub unsafe fn find<'a>(exposed: *const P::Exposed) -> Outcome<&'a Self> {
        let place = Self::place(exposed);
        if living().get(&place.addr()) != Some(&P::MARK) {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: it is in the table, so it was published as this type and not retired.
        Ok(unsafe { &*place })
    }

    /// The object of a pointer that is null or points to memory. For the data path.
    ///
    /// # Safety
    /// The pointer is null or readable, and the program does not destroy the object while the reference lives.
    #[inline]
    pub unsafe fn recognise<'a>(exposed: *const P::Exposed) -> Outcome<&'a Self> {
        let place = Self::place(exposed);
        if exposed.is_null() || !place.is_aligned() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: readable by contract; the mark says that the rest is what it should be.
        let object = unsafe { &*place };
        if object.mark.load(Ordering::Relaxed) != P::MARK {
            return Err(Errno(libc::EINVAL));
        }
        Ok(object)
    }

    /// Takes an object back from the program. `None` if someone else did first.
    pub fn retire(&self) -> Option<Box<Self>> {
        let place = std::ptr::from_ref(self).cast_mut();
        living().remove(&place.addr())?;
        self.mark.store(0, Ordering::Relaxed);
        // SAFETY: published from a box, and taken out of the table once.
        Some(unsafe { Box::from_raw(place) })
    }

    /// The structure of verbs.h. Only by pointer, as the program may write to it at any time.
    #[inline]
    pub fn abi(&self) -> *mut P::Abi {
        self.abi.get()
    }

    /// The pointer that the program has.
    pub fn exposed(&self) -> *mut P::Exposed {
        std::ptr::from_ref(self).cast_mut().wrapping_byte_add(P::OFFSET).cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct First(u32);
    impl Private for First {
        type Abi = [u64; 4];
        type Exposed = u64;
        const OFFSET: usize = 16;
        const MARK: u64 = 1;
    }
    struct Second;
    impl Private for Second {
        type Abi = u64;
        type Exposed = u64;
        const MARK: u64 = 2;
    }

    #[test]
    fn only_living_objects_of_the_right_type_are_found() {
        let pointer = Object::publish([1, 2, 3, 4], First(7));
        // SAFETY: nobody destroys anything meanwhile, and recognise gets null or readable pointers.
        unsafe {
            assert_eq!(*pointer, 3, "the program sees the exposed part");
            let object = Object::<First>::find(pointer).expect("it lives");
            assert_eq!(object.private.0, 7);
            assert_eq!(object.exposed(), pointer);
            assert!(Object::<First>::recognise(pointer).is_ok());
            assert!(Object::<Second>::find(pointer).is_err());
            for wild in [std::ptr::null(), std::ptr::dangling(), 0xdead_beef as *const u64, pointer.add(1)] {
                assert!(Object::<First>::find(wild).is_err());
                assert!(Object::<Second>::find(wild).is_err());
            }
            let zeroes = [0u64; 64];
            assert!(Object::<Second>::recognise(zeroes.as_ptr()).is_err());
            assert!(Object::<Second>::recognise(zeroes.as_ptr().byte_add(1)).is_err());
            assert!(Object::<Second>::recognise(std::ptr::null()).is_err());
            drop(object.retire().expect("once"));
            assert!(Object::<First>::find(pointer).is_err(), "a stale pointer");
        }
    }
}
