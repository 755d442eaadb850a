//! A reference into a snapshot does not outlive it.

use cenote::{Pool, Ptr, Reader};

fn after_snapshot(pool: &Pool, counter: Ptr<u64>) -> cenote::Result<u64> {
    let snapshot = pool.snapshot()?;
    let found = snapshot.get(counter)?;
    drop(snapshot);
    Ok(*found)
}

fn main() {}
