use cenote::{Persist, PoolOptions, PsyncPolicy, Reader, Store};
use cenote_collections::{List, String as Text};
use std::time::Duration;

#[derive(Persist)]
struct Log {
    lines: List<Text>,
}

fn main() -> Result<(), String> {
    run().map_err(|error| error.to_string())
}

fn run() -> cenote::Result<()> {
    let store = Store::open("tutorial")?;
    println!("commits survive: {:?}", store.durability());
    // Shadowed on a disk, direct where a commit survives as much as the files do.
    let options = PoolOptions::for_medium(&store.info().medium);
    let pool = if store.pools().iter().any(|pool| pool.record.name == "log") {
        store.pool("log")?
    } else {
        store.create_pool("log", &options)?
    };
    let shadowed = options.mode == cenote::PoolMode::Shadowed;
    // From here on a loss of power takes back a second at most.
    let every = Some(Duration::from_secs(1));
    let policy = PsyncPolicy { every, ..PsyncPolicy::default() };
    let policy = if shadowed { Some(pool.psync_by(policy)?) } else { None };
    let lines = pool.write(|tx| -> cenote::Result<usize> {
        let log = match tx.root::<Log>()? {
            Some(log) => log,
            None => {
                let lines = List::new(tx)?;
                let log = tx.alloc(Log { lines })?;
                tx.set_root(log)?;
                log
            }
        };
        let line = Text::from_str(tx, "the program has begun")?;
        let lines = tx.get(log)?.lines;
        lines.push_back(tx, line)?;
        lines.len(tx)
    })?;
    if let Some(policy) = policy {
        policy.stop()?;
        // From here on this line survives a loss of power, too.
        pool.psync()?;
    }
    println!("{lines} lines");
    Ok(())
}
