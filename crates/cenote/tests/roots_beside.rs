//! Roots that one thread looks at while another sets them.

use crate::support::directory;
use cenote::{Persist, Result, Store};
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn a_root_that_is_looked_at_while_it_is_set_is_no_damaged_one() -> Result<()> {
    #[derive(Persist)]
    #[persist(name = "roots_beside::Other")]
    struct Other([u64; 7]);
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    let (one, other) =
        pool.write(|tx| -> Result<_> { Ok((tx.alloc(1u64)?, tx.alloc(Other([2; 7]))?)) })?;
    pool.write(|tx| tx.set_root(one))?;
    let set = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2000 {
                pool.write(|tx| -> Result<()> {
                    tx.set_root(other)?;
                    tx.set_root(one)?;
                    // Its own transaction does not keep a thread from looking.
                    pool.heap().root(0).expect("not damaged");
                    Ok(())
                })
                .expect("committed");
                set.fetch_add(1, Ordering::Relaxed);
            }
        });
        while set.load(Ordering::Relaxed) < 2000 {
            let root = pool.heap().root(0).expect("not damaged");
            assert_eq!(root.addr, one.addr(), "half of a transaction");
        }
    });
    Ok(())
}
