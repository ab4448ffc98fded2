use std::cell::RefCell;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use super::Cache;

const PAGE: u64 = 4096;

/// A region that only knows its addresses.
type Region = Range<u64>;

fn find(cache: &Cache<Region>, buffer: Range<u64>) -> Arc<Region> {
    cache.lookup(buffer, Ok::<_, Infallible>).unwrap()
}

fn pages(first: u64, end: u64) -> Range<u64> {
    first * PAGE..end * PAGE
}

#[test]
fn a_buffer_is_registered_with_its_pages_and_found_again() {
    let cache = Cache::new(8);
    assert_eq!(*find(&cache, 5000..5008), pages(1, 2));
    assert_eq!(*find(&cache, PAGE..2 * PAGE), pages(1, 2));
    assert_eq!(*find(&cache, 2 * PAGE - 8..2 * PAGE), pages(1, 2));
    let counts = cache.counts();
    assert_eq!((counts.hits, counts.misses), (2, 1));
}

#[test]
fn a_buffer_that_a_region_covers_in_part_is_registered_together_with_it() {
    let cache = Cache::new(8);
    find(&cache, pages(1, 2));
    find(&cache, pages(3, 5));
    assert_eq!(*find(&cache, 2 * PAGE - 8..3 * PAGE + 8), pages(1, 5), "both neighbours are taken in");
    assert_eq!(*find(&cache, pages(1, 2)), pages(1, 5), "and are not found alone any more");
    assert_eq!(cache.counts().misses, 3);
}

#[test]
fn the_least_recently_used_region_goes_first() {
    let cache = Cache::new(2);
    find(&cache, pages(10, 11));
    find(&cache, pages(20, 21));
    find(&cache, pages(10, 11));
    find(&cache, pages(30, 31));
    assert_eq!(cache.counts().evictions, 1);
    let before = cache.counts();
    find(&cache, pages(10, 11));
    find(&cache, pages(30, 31));
    assert_eq!(cache.counts().hits, before.hits + 2, "these two have stayed");
    find(&cache, pages(20, 21));
    assert_eq!(cache.counts().misses, before.misses + 1);
}

#[test]
fn an_unmapped_buffer_is_registered_again() {
    let cache = Cache::new(8);
    find(&cache, pages(1, 3));
    find(&cache, pages(5, 6));
    cache.invalidate(2 * PAGE..4 * PAGE);
    assert_eq!(cache.counts().invalidations, 1, "the region reaches into the range");
    find(&cache, pages(5, 6));
    assert_eq!(cache.counts().hits, 1);
    assert_eq!(*find(&cache, pages(1, 2)), pages(1, 2));
    assert_eq!(cache.counts().misses, 3);
}

#[test]
fn a_region_in_use_outlives_its_place_in_the_cache() {
    struct Watched<'a>(&'a RefCell<u32>);
    impl Drop for Watched<'_> {
        fn drop(&mut self) {
            *self.0.borrow_mut() += 1;
        }
    }
    let dropped = RefCell::new(0);
    let cache = Cache::new(1);
    let get =
        |first| cache.lookup(pages(first, first + 1), |_| Ok::<_, Infallible>(Watched(&dropped))).unwrap();
    let held = get(1);
    drop(get(2));
    assert_eq!(*dropped.borrow(), 0, "evicted, but in use");
    drop(held);
    assert_eq!(*dropped.borrow(), 1);
    cache.invalidate(pages(2, 3));
    assert_eq!(*dropped.borrow(), 2);
}

#[test]
fn a_failed_registration_changes_nothing() {
    let cache = Cache::new(8);
    find(&cache, pages(1, 2));
    assert_eq!(cache.lookup(pages(1, 3), |_| Err::<Region, _>("no")).unwrap_err(), "no");
    assert_eq!(*find(&cache, pages(1, 2)), pages(1, 2));
}

#[test]
fn threads_share_regions_and_every_lookup_covers_its_buffer() {
    let cache = Cache::new(4);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let cache = &cache;
            scope.spawn(move || {
                let mut random = thread + 1;
                for _ in 0..2000 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let start = (random >> 33) % (16 * PAGE);
                    let buffer = start..start + 1 + (random >> 20) % 6000;
                    if random % 16 == 0 {
                        cache.invalidate(buffer);
                    } else {
                        let found = find(cache, buffer.clone());
                        assert!(found.start <= buffer.start && buffer.end <= found.end);
                    }
                }
            });
        }
    });
    let counts = cache.counts();
    assert!(counts.hits > 0 && counts.misses > 0 && counts.invalidations > 0);
}
