//! All layers on the simulated medium, small enough for Miri: one of each operation, of each
//! collection, of each way to crash. `scripts/miri.sh` runs this program in Miri.

use cenote::{Durability, Error, OpenOptions, Persist, Pool, PoolOptions, Ptr, Reader, Result, Store};
use cenote_collections::{BTreeMap, ForwardList, HashMap, List, String, Vec};
use cenote_medium::Medium;
use cenote_medium::sim::{CrashKind, SimMedium, SimOptions};
use cenote_store::FormatOptions;
use std::sync::Arc;

const WINDOW_LEN: u64 = 1 << 28;

fn formatted(level: Durability) -> Result<Arc<SimMedium>> {
    let base = cenote_sys::memory::find_free(WINDOW_LEN as usize, 1 << 30).expect("addresses");
    let sim = SimMedium::new(SimOptions { record: false, ..SimOptions::new(level) });
    let format = FormatOptions { window_base: Some(base as u64), window_len: WINDOW_LEN, uuid: None };
    cenote_store::format(sim.clone(), &format)?;
    Ok(sim)
}

fn open(sim: Arc<dyn Medium>) -> Result<Store> {
    Store::open_on(sim, &OpenOptions { log_puddle_size: 8 << 10, ..OpenOptions::default() })
}

fn pool(store: &Store) -> Result<Pool> {
    let options = PoolOptions { puddle_size: 3 << 16, ..PoolOptions::default() };
    store.pool("p").or_else(|_| store.create_pool("p", &options))
}

#[derive(Persist)]
#[persist(name = "interpreted::Root")]
struct Root {
    list: List<u64>,
    forward: ForwardList<u64>,
    tree: BTreeMap<u64, u64>,
    hash: HashMap<u64, u64>,
    vec: Vec<u64>,
    text: String,
}

#[test]
fn collections() -> Result<()> {
    let sim = formatted(Durability::Process)?;
    let store = open(sim.clone())?;
    let pool = pool(&store)?;
    pool.write(|tx| -> Result<()> {
        let root = Root {
            list: List::new(tx)?,
            forward: ForwardList::new(tx)?,
            tree: BTreeMap::new(tx)?,
            hash: HashMap::new(tx)?,
            vec: Vec::new(tx)?,
            text: String::new(tx)?,
        };
        let root = tx.alloc(root)?;
        tx.set_root(root)
    })?;
    Ok(())
}
