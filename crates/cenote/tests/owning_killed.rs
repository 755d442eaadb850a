//! Programs that are killed while they make and free what values own.

use crate::owning::{List, Node, kinds, list_of, push, whole};
use cenote::{PoolOptions, Reader, Result, Store, field};
use cenote_testkit::child::{self, Acknowledging, acknowledge};
use cenote_testkit::directories::directory;
use cenote_testkit::random::next;
use std::path::Path;
use std::time::Duration;

const KILLED: &str = "owning_killed::a_killed_program_leaves_no_block_without_an_owner";

/// Pushes up to 100 nodes, and frees all, and says so each time.
fn change_for_ever(dir: &Path, mut seed: u64) -> Result<()> {
    let pool = Store::open(dir)?.pool("p")?;
    let list = pool.read()?.root::<List>()?.expect("it is set");
    loop {
        let count = 1 + next(&mut seed) % 100;
        pool.write(|tx| (0..count).try_for_each(|value| push(tx, list, value).map(drop)))?;
        pool.write(|tx| tx.free_owned(list, field!(List, first)).map(drop))?;
        if next(&mut seed).is_multiple_of(4) {
            pool.finish_frees()?;
        }
        if !acknowledge(count) {
            return Ok(());
        }
    }
}

#[test]
fn a_killed_program_leaves_no_block_without_an_owner() -> Result<()> {
    if let Some((task, dir)) = child::task() {
        return change_for_ever(&dir, task.parse().expect("a seed"));
    }
    kinds().into_iter().try_for_each(killed)
}

fn killed(options: PoolOptions) -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.create_pool("p", &options)?;
    list_of(&pool, 2)?;
    if options.mode == cenote::PoolMode::Shadowed {
        pool.psync()?;
    }
    drop(pool);
    store.close()?;
    let (mut waited, mut said) = (0, 0);
    for round in 0..6 {
        let mut command = child::with_task(KILLED, &round.to_string(), dir.path());
        let child = Acknowledging::start(&mut command);
        said +=
            child.kill(true, Duration::from_millis(5 + round * 11 % 40), |word| word <= 100).len();
        let store = Store::open(dir.path())?;
        let pool = store.pool("p")?;
        let waiting = whole(&pool)?;
        waited += waiting;
        // By the store's records alone: no type of this program is known yet.
        assert_eq!(pool.finish_frees()?, waiting);
        let list = pool.read()?.root::<List>()?.expect("it is set");
        let owned = {
            let view = pool.read()?;
            let (mut count, mut at) = (0, view.get(list)?.first.get());
            while let Some(node) = at {
                count += 1;
                let node: &Node = view.get(node)?;
                assert!(node.value <= 100);
                at = node.next.get();
            }
            count
        };
        // The list, the directory of roots, the entry of what waits, and that.
        assert_eq!((pool.stats()?.blocks, whole(&pool)?), (4 + owned, 0), "round {round}");
        drop(pool);
        store.close()?;
    }
    println!("{:?}: {waited} blocks waited, {said} times all were disowned", options.heap);
    assert!(said > 0, "no child came so far");
    Ok(())
}
