//! Hundreds of stores in one process. A program of its own: it takes much of the address space.

use cenote_medium::{Medium, MediumOptions, RealMedium};
use cenote_store::{Access, FormatOptions, OpenOptions, PoolOptions, Store, format};
use std::sync::Arc;

/// More than the table of fault handlers had places for, and more than windows of 1 TiB would have
/// room.
const STORES: usize = 300;

#[test]
fn hundreds_of_stores_of_the_default_window_are_open_at_once() {
    let dir = cenote_testkit::directories::directory();
    let open = |number: usize| -> Store {
        let options = MediumOptions { create: true, ..MediumOptions::default() };
        let medium: Arc<dyn Medium> =
            Arc::new(RealMedium::open(dir.path().join(number.to_string()), &options).unwrap());
        if !medium.exists("superblock").unwrap() {
            format(medium.clone(), &FormatOptions::default()).unwrap();
        }
        let options = OpenOptions { spare_bytes_max: 0, ..OpenOptions::default() };
        Store::open(medium, options).unwrap().0
    };
    let pool = PoolOptions { puddle_size: PoolOptions::PUDDLE_SIZE_MIN, ..PoolOptions::default() };
    for round in 0..2u64 {
        let stores: Vec<Store> = (0..STORES).map(open).collect();
        let pools: Vec<_> = stores
            .iter()
            .map(|store| {
                if round == 0 {
                    store.create_pool("p", &pool).unwrap();
                }
                store.open_pool("p", Access::ReadWrite).unwrap()
            })
            .collect();
        for (number, pool) in (0u64..).zip(&pools) {
            let at = pool.root_puddle().unwrap().body_addr() as *mut u64;
            // SAFETY: mapped for writing; no other thread uses the pool.
            unsafe {
                assert_eq!(*at, if round == 0 { 0 } else { number });
                *at = number;
            }
        }
        drop(pools);
        for store in stores {
            store.close().unwrap();
        }
    }
}
