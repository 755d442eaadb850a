//! Persistent values change in transactions only; references of a transaction end with it.

use cenote::{Persist, Pool, Ptr, Reader};

#[derive(Persist)]
struct Counter {
    hits: u64,
}

fn through_a_view(pool: &Pool) -> cenote::Result<()> {
    let view = pool.read()?;
    let counter = view.get(view.root::<Counter>()?.unwrap())?;
    counter.hits = 7;
    Ok(())
}

fn through_a_pointer(counter: Ptr<Counter>) {
    counter.hits = 7;
}

fn after_the_transaction(pool: &Pool, counter: Ptr<Counter>) -> cenote::Result<()> {
    let kept = pool.write(|tx| -> cenote::Result<&mut Counter> { tx.get_mut(counter) })?;
    kept.hits = 7;
    Ok(())
}

fn through_a_kept_transaction(pool: &Pool, counter: Ptr<Counter>) -> cenote::Result<()> {
    let mut kept = None;
    pool.write(|tx| -> cenote::Result<()> {
        kept = Some(tx);
        Ok(())
    })?;
    kept.unwrap().get_mut(counter)?.hits = 7;
    Ok(())
}

fn main() {}
