//! Which pages of a region the device takes to be present: two bits a page in a sparse tree.
//!
//! The bits are hints. Every access goes to the program's own addresses under the guard of [`copy`](crate::mem::copy), so a
//! bit that is wrongly set costs a fault of the processor, and one that is wrongly clear costs a fault of the device;
//! neither shows a byte of another page. That is why nodes can be read without locks and without
//! reclamation: a node is never given back to the system, only to another region, and what a late reader or the
//! thread that reads invalidations does to it is harmless.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Bytes of a page, as the device counts. Larger pages of the host are several of these.
pub(crate) const PAGE: u64 = 1 << PAGE_BITS;
/// See [`PAGE`].
pub(crate) const PAGE_BITS: u32 = 12;

/// Words of a node: of bits in a leaf, of children in the others.
const WORDS: usize = 1 << NODE_BITS;
const NODE_BITS: u32 = 10;
/// Pages of a leaf.
const LEAF_BITS: u32 = NODE_BITS + 5;
/// Levels above the leaves that cover 57 bits of addresses, all that a program can have.
const MAX_LEVEL: u32 = 3;

/// The bits of a page: [`PRESENT`] and [`WRITABLE`], or [`PENDING`] alone.
const PENDING: u64 = 0b01;
const PRESENT: u64 = 0b10;
const WRITABLE: u64 = 0b11;
/// One bit of each page of a word.
const EACH: u64 = 0x5555_5555_5555_5555;

/// A node. All-zero bytes are an empty one.
struct Node([AtomicU64; WORDS]);

/// Alignment of nodes: leaves room for the level in a pointer.
const ALIGN: usize = 64;
const LEVEL_MASK: u64 = ALIGN as u64 - 1;

/// Nodes that no region uses: leaves and others apart, so that a word is always a word of bits or always a child.
static FREE: [Mutex<Vec<u64>>; 2] = [const { Mutex::new(Vec::new()) }; 2];

/// A new node of a level as a word: its address and its level. 0 if there is no memory.
fn take(level: u32) -> u64 {
    if let Some(address) = FREE[usize::from(level > 0)].lock().pop() {
        return address | u64::from(level);
    }
    let Ok(layout) = Layout::new::<Node>().align_to(ALIGN) else { return 0 };
    // SAFETY: the layout is not empty.
    let node = unsafe { alloc_zeroed(layout) };
    if node.is_null() { 0 } else { node as u64 | u64::from(level) }
}

/// Gives a node and all below it back, emptied.
fn give(word: u64) {
    let Some((node, level)) = node(word) else { return };
    for slot in &node.0 {
        let child = slot.swap(0, Ordering::Relaxed);
        if level > 0 {
            give(child);
        }
    }
    FREE[usize::from(level > 0)].lock().push(word & !LEVEL_MASK);
}

/// The node that a word names.
fn node(word: u64) -> Option<(&'static Node, u32)> {
    let address = word & !LEVEL_MASK;
    if address == 0 {
        return None;
    }
    // SAFETY: such words are made by `take` alone, of nodes that live as long as the process; they are atomics.
    Some((unsafe { &*(address as *const Node) }, (word & LEVEL_MASK) as u32))
}

/// The root of a region's tree, as a word that can be stored in an atomic. 0 is no tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Root(pub(crate) u64);

impl Root {
    /// No tree: a region whose pages are not looked up.
    pub(crate) const NONE: Self = Self(0);

    /// An empty tree for so many pages. `None` if there is no memory.
    pub(super) fn new(pages: u64) -> Option<Self> {
        let mut level = 0;
        while level < MAX_LEVEL && pages > 1 << (LEAF_BITS + NODE_BITS * level) {
            level += 1;
        }
        let word = take(level);
        (word != 0).then_some(Self(word))
    }

    /// Gives the tree back. What still looks at it sees another region's bits.
    pub(super) fn free(self) {
        give(self.0);
    }

    fn level(self) -> u32 {
        (self.0 & LEVEL_MASK) as u32
    }

    /// The leaf of a page.
    fn leaf(self, page: u64) -> Option<&'static Node> {
        let mut word = self.0;
        let mut level = self.level();
        if page >> (LEAF_BITS + NODE_BITS * level) != 0 {
            return None;
        }
        loop {
            let (node, is) = node(word)?;
            if is != level {
                return None; // it has become another region's meanwhile
            }
            if level == 0 {
                return Some(node);
            }
            level -= 1;
            let index = page >> (LEAF_BITS + NODE_BITS * level) & (WORDS as u64 - 1);
            word = node.0[index as usize].load(Ordering::Acquire);
        }
    }

    /// The leaf of a page, made if there is none.
    fn make_leaf(self, page: u64) -> Option<&'static Node> {
        let mut word = self.0;
        let mut level = self.level();
        if page >> (LEAF_BITS + NODE_BITS * level) != 0 {
            return None;
        }
        loop {
            let (node, _) = node(word)?;
            if level == 0 {
                return Some(node);
            }
            level -= 1;
            let slot = &node.0[(page >> (LEAF_BITS + NODE_BITS * level) & (WORDS as u64 - 1)) as usize];
            word = slot.load(Ordering::Acquire);
            if word == 0 {
                let new = take(level);
                match slot.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => word = new,
                    Err(other) => {
                        give(new);
                        word = other;
                    }
                }
            }
        }
    }

    /// Whether all pages from `first` to `last` are present, for writing if `write`. Takes no lock and changes nothing.
    #[inline]
    pub(crate) fn has(self, first: u64, last: u64, write: bool) -> bool {
        let bits = if write { WRITABLE } else { PRESENT };
        let mut page = first;
        loop {
            let Some(leaf) = self.leaf(page) else { return false };
            let end = last.min(page | ((1 << LEAF_BITS) - 1));
            for (word, mask) in words(page, end) {
                let want = mask & (EACH * bits);
                if leaf.0[word].load(Ordering::Acquire) & want != want {
                    return false;
                }
            }
            if end == last {
                return true;
            }
            page = end + 1;
        }
    }

    /// The pages from `first` to `last` are about to be made present. An invalidation from now on wins over
    /// [`commit`](Self::commit).
    pub(super) fn begin(self, first: u64, last: u64) {
        let mut page = first;
        loop {
            let end = last.min(page | ((1 << LEAF_BITS) - 1));
            if let Some(leaf) = self.make_leaf(page) {
                for (word, mask) in words(page, end) {
                    let slot = &leaf.0[word];
                    let _ = slot.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| {
                        // Where neither bit is set.
                        let absent = !(old | old >> 1) & EACH;
                        Some(old | ((absent * PENDING) & mask))
                    });
                }
            }
            if end == last {
                return;
            }
            page = end + 1;
        }
    }

    /// The pages have been made present. Those that were invalidated since [`begin`](Self::begin) stay absent. Returns how
    /// many have become present, or writable, by this.
    pub(super) fn commit(self, first: u64, last: u64, write: bool) -> u64 {
        let mut count = 0;
        let mut page = first;
        loop {
            let end = last.min(page | ((1 << LEAF_BITS) - 1));
            if let Some(leaf) = self.leaf(page) {
                for (word, mask) in words(page, end) {
                    let slot = &leaf.0[word];
                    let become_present = |old: u64| {
                        let pending = old & !(old >> 1) & EACH & mask;
                        let readable = (old >> 1) & !old & EACH & mask;
                        if write {
                            (
                                (old & !(pending * PENDING)) | ((pending | readable) * WRITABLE),
                                pending | readable,
                            )
                        } else {
                            ((old & !(pending * PENDING)) | (pending * PRESENT), pending)
                        }
                    };
                    let old = slot
                        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(become_present(old).0));
                    if let Ok(old) = old {
                        count += u64::from(become_present(old).1.count_ones());
                    }
                }
            }
            if end == last {
                return count;
            }
            page = end + 1;
        }
    }

    /// Forgets the pages from `first` to `last`. Returns how many were present. Allocates nothing and takes no lock.
    pub(super) fn clear(self, first: u64, last: u64) -> u64 {
        clear(self.0, self.level(), 0, first, last)
    }
}

/// The part of [`Root::clear`] below a node whose first page is `base`.
fn clear(word: u64, level: u32, base: u64, first: u64, last: u64) -> u64 {
    let Some((node, is)) = node(word) else { return 0 };
    if is != level {
        return 0;
    }
    let end = base + ((1 << (LEAF_BITS + NODE_BITS * level)) - 1);
    let (first, last) = (first.max(base), last.min(end));
    if first > last {
        return 0;
    }
    if level == 0 {
        return words(first, last)
            .map(|(word, mask)| {
                let old = node.0[word].fetch_and(!mask, Ordering::AcqRel);
                u64::from((old >> 1 & EACH & mask).count_ones())
            })
            .sum();
    }
    let shift = LEAF_BITS + NODE_BITS * (level - 1);
    let index = |page: u64| (page - base) >> shift;
    (index(first)..=index(last))
        .map(|i| {
            let child = node.0[i as usize].load(Ordering::Acquire);
            clear(child, level - 1, base + (i << shift), first, last)
        })
        .sum()
}

/// The words of a leaf for pages of it, each with the bits of those pages.
fn words(first: u64, last: u64) -> impl Iterator<Item = (usize, u64)> {
    let in_leaf = |page: u64| page & ((1 << LEAF_BITS) - 1);
    let (a, b) = (in_leaf(first), in_leaf(last));
    (a / 32..=b / 32).map(move |word| {
        let from = if word == a / 32 { a % 32 } else { 0 };
        let to = if word == b / 32 { b % 32 } else { 31 };
        let mask = (u64::MAX << (2 * from)) & (u64::MAX >> (2 * (31 - to)));
        (word as usize, mask)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pages_become_present_for_reading_and_then_for_writing() {
        let root = Root::new(100).unwrap();
        assert!(!root.has(3, 3, false));
        root.begin(3, 70);
        assert!(!root.has(3, 3, false), "not before it is committed");
        assert_eq!(root.commit(3, 70, false), 68);
        assert!(root.has(3, 70, false) && !root.has(3, 3, true) && !root.has(2, 3, false));
        root.begin(10, 12);
        assert_eq!(root.commit(10, 12, true), 3);
        assert!(root.has(10, 12, true) && root.has(3, 70, false) && !root.has(9, 12, true));
        assert_eq!(root.commit(10, 12, false), 0, "writable stays writable");
        assert!(root.has(10, 12, true));
        assert_eq!(root.clear(11, 200), 60);
        assert!(root.has(10, 10, true) && !root.has(11, 11, false));
        root.free();
    }

    #[test]
    fn an_invalidation_wins_over_the_resolution_it_overtakes() {
        let root = Root::new(8).unwrap();
        root.begin(0, 7);
        assert_eq!(root.clear(4, 5), 0);
        assert_eq!(root.commit(0, 7, true), 6);
        assert!(root.has(0, 3, true) && !root.has(4, 4, false) && root.has(6, 7, true));
        root.free();
    }

    #[test]
    fn a_tree_covers_every_address_of_a_program_and_no_more() {
        let root = Root::new(u64::MAX >> PAGE_BITS).unwrap();
        let top = (1 << 45) - 1;
        for page in [0, 1 << 15, 1 << 34, top - 1] {
            root.begin(page, page + 1);
            assert_eq!(root.commit(page, page + 1, true), 2);
            assert!(root.has(page, page + 1, true));
        }
        root.begin(top + 1, top + 1);
        assert_eq!(root.commit(top + 1, top + 1, true), 0);
        assert!(!root.has(top + 1, top + 1, false));
        assert_eq!(root.clear(1, u64::MAX), 7);
        assert!(root.has(0, 0, true));
        root.free();
    }

    #[test]
    fn nodes_are_empty_when_they_are_used_again() {
        for _ in 0..3 {
            let root = Root::new(1 << 30).unwrap();
            assert!(!root.has(77_777_777, 77_777_777, false));
            root.begin(77_777_777, 77_777_777);
            assert_eq!(root.commit(77_777_777, 77_777_777, false), 1);
            root.free();
            assert!(!root.has(77_777_777, 77_777_777, false), "a late reader sees nothing");
        }
    }

    proptest! {
        #[test]
        fn the_tree_agrees_with_a_plain_array(
            moves in prop::collection::vec((0_u8..4, 32_700_u64..32_900, 0_u64..200), 1..60)
        ) {
            let root = Root::new(1 << 20).unwrap();
            let mut plain = vec![0_u8; 33_200];
            for (what, first, more) in moves {
                let range = first..=first + more;
                let (first, last) = (first, first + more);
                let pages = &mut plain[*range.start() as usize..=*range.end() as usize];
                match what {
                    0 => {
                        root.begin(first, last);
                        pages.iter_mut().for_each(|p| if *p == 0 { *p = 1 });
                    }
                    1 | 2 => {
                        let write = what == 2;
                        let mut count = 0;
                        for p in pages.iter_mut() {
                            let new = match (*p, write) { (1, false) => 2, (1 | 2, true) => 3, (old, _) => old };
                            count += u64::from(new != *p);
                            *p = new;
                        }
                        prop_assert_eq!(root.commit(first, last, write), count);
                    }
                    _ => {
                        let present = pages.iter().filter(|p| **p > 1).count() as u64;
                        pages.fill(0);
                        prop_assert_eq!(root.clear(first, last), present);
                    }
                }
                let pages = &plain[*range.start() as usize..=*range.end() as usize];
                prop_assert_eq!(root.has(first, last, false), pages.iter().all(|p| *p > 1));
                prop_assert_eq!(root.has(first, last, true), pages.iter().all(|p| *p == 3));
            }
            root.free();
        }
    }
}
