//! A reference into a pool does not outlive the pool's handle, nor the view that gave it.

use cenote::{Persist, Reader, Store};

#[derive(Persist)]
struct Counter {
    hits: u64,
}

fn after_pool(store: &Store) -> cenote::Result<u64> {
    let pool = store.pool("p")?;
    let view = pool.read()?;
    let counter = view.get(view.root::<Counter>()?.unwrap())?;
    drop(view);
    Ok(counter.hits)
}

fn after_store(store: &Store) -> cenote::Result<()> {
    let pool = store.pool("p")?;
    let view = pool.read()?;
    drop(pool);
    drop(view);
    Ok(())
}

fn main() {}
