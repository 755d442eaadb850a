use cenote::{Persist, Reader, Store};

#[derive(Persist)]
struct Counter {
    runs: u64,
}

fn count() -> cenote::Result<u64> {
    let store = Store::open("tutorial")?;
    let pool = store.pool("counter")?;
    pool.write(|tx| {
        let counter = match tx.root::<Counter>()? {
            Some(counter) => counter,
            None => tx.alloc(Counter { runs: 0 })?,
        };
        tx.set_root(counter)?;
        let counter = tx.get_mut(counter)?;
        counter.runs += 1;
        Ok(counter.runs)
    })
}

fn main() {
    match count() {
        Ok(runs) => println!("run {runs}"),
        Err(error) => eprintln!("error: {error}"),
    }
}
