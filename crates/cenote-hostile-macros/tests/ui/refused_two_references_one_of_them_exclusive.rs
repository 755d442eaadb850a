//! While a reference can write a value there is no other one into the transaction's pools.

use cenote::{Persist, Pool, Ptr, Reader};

#[derive(Persist)]
struct Counter {
    hits: u64,
}

fn shared_and_exclusive(pool: &Pool, a: Ptr<Counter>, b: Ptr<Counter>) -> cenote::Result<()> {
    pool.write(|tx| -> cenote::Result<()> {
        let old = tx.get(a)?;
        let new = tx.get_mut(b)?;
        new.hits = old.hits;
        Ok(())
    })
}

fn two_exclusive(pool: &Pool, a: Ptr<Counter>, b: Ptr<Counter>) -> cenote::Result<()> {
    pool.write(|tx| -> cenote::Result<()> {
        let first = tx.get_mut(a)?;
        let second = tx.get_mut(b)?;
        core::mem::swap(first, second);
        Ok(())
    })
}

fn another_thread(pool: &Pool) -> cenote::Result<()> {
    let view = pool.read()?;
    std::thread::spawn(move || drop(view));
    Ok(())
}

fn main() {}
