//! Attacks on relocation by fault: a pool of accounts over several puddles that are pending, each
//! of which is rewritten when it is first touched, and threads, forks, kills and readers that come
//! at that moment.
//!
//! What holds at any time: all accounts are there once, by each way that leads to them; the sum of
//! their amounts is what it was; each says its amount twice. A transfer changes two accounts and
//! counts itself.
//!
//! `CENOTE_TOUCH_ROUNDS` sets the rounds of each test, `CENOTE_TOUCH_SEED` the first seed.

mod copies;
mod forks;
mod kills;
mod threads;

use crate::common::random;
use cenote::{
    Access, AtRest, Backend, ExportOptions, ImportOptions, Keyring, MasterKey, OpenOptions,
    Persist, Pool, PoolMode, PoolOptions, Ptr, Reader, RelPtr, RelocationOptions, Result, Store,
    Tx, field,
};
use cenote_collections::{BTreeMap, HashMap, List};
use cenote_testkit::environment::number;
use std::path::Path;
use std::sync::Arc;

pub(crate) const ACCOUNTS: u64 = 700;
const AMOUNT: u64 = 1000;

/// A kibibyte: the accounts take some puddles.
#[derive(Persist)]
#[persist(name = "touches::Account")]
struct Account {
    number: u64,
    amount: u64,
    not_amount: u64,
    next: Option<Ptr<Account>>,
    /// The same, by distance.
    near: RelPtr<Account>,
    pad: [u64; 122],
}

#[derive(Persist)]
#[persist(name = "touches::Bank")]
struct Bank {
    transfers: u64,
    first: Option<Ptr<Account>>,
    hashed: HashMap<u64, Ptr<Account>>,
    ordered: BTreeMap<u64, Ptr<Account>>,
    list: List<u64>,
    /// In another pool.
    elsewhere: Option<Ptr<Bank>>,
}

/// Seeds of the rounds of a test.
fn seeds(rounds: u64) -> impl Iterator<Item = u64> {
    let first = number("CENOTE_TOUCH_SEED", 1);
    first..first + number("CENOTE_TOUCH_ROUNDS", rounds)
}

/// What a pool is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Direct,
    Shadowed,
    Protected,
}

const KINDS: [Kind; 3] = [Kind::Direct, Kind::Shadowed, Kind::Protected];

fn key() -> Arc<Keyring> {
    let mut bytes = std::array::from_fn(|at| 7 + 37u8.wrapping_mul(at as u8));
    Arc::new(Keyring::new(MasterKey::from_bytes(&mut bytes).expect("a key")))
}

fn pool_options(kind: Kind) -> PoolOptions {
    let mut options = PoolOptions { puddle_size: 256 << 10, ..PoolOptions::default() };
    if kind != Kind::Direct {
        options.mode = PoolMode::Shadowed;
    }
    if kind == Kind::Protected {
        (options.at_rest, options.key) = (AtRest::Authenticated, Some(key()));
    }
    options
}

fn open(dir: &Path, access: Access, backend: Backend) -> Result<Store> {
    let relocation = RelocationOptions { backend, ..RelocationOptions::default() };
    let (key, accept_unprotected) = (Some(key()), true);
    let options =
        OpenOptions { access, relocation, key, accept_unprotected, ..OpenOptions::default() };
    Store::open_with(dir, &options)
}

/// The next `Bank` of a pool: accounts in an order that leads to and fro between puddles.
fn make(store: &Store, name: &str, kind: Kind, seed: u64) -> Result<()> {
    let pool = store.create_pool(name, &pool_options(kind))?;
    let mut seed = seed;
    pool.write(|tx| -> Result<()> {
        let bank = Bank {
            transfers: 0,
            first: None,
            hashed: HashMap::new(tx)?,
            ordered: BTreeMap::new(tx)?,
            list: List::new(tx)?,
            elsewhere: None,
        };
        let root = tx.alloc(bank)?;
        tx.set_root(root)
    })?;
    let mut accounts = Vec::new();
    for from in (0..ACCOUNTS).step_by(100) {
        pool.write(|tx| -> Result<()> {
            for number in from..from + 100 {
                let (amount, not_amount) = (AMOUNT, !AMOUNT);
                let (next, near, pad) = (None, RelPtr::NULL, [number; 122]);
                accounts.push(tx.alloc(Account { number, amount, not_amount, next, near, pad })?);
            }
            Ok(())
        })?;
    }
    pool.write(|tx| -> Result<()> {
        let root = tx.root::<Bank>()?.expect("a bank");
        let Bank { hashed, ordered, list, .. } = *tx.get(root)?;
        for (number, account) in (0..).zip(&accounts) {
            hashed.insert(tx, number, *account)?;
            ordered.insert(tx, number, *account)?;
            list.push_back(tx, number)?;
        }
        let mut next = None;
        while !accounts.is_empty() {
            let account = accounts.swap_remove(random(&mut seed) as usize % accounts.len());
            tx.set(account, field!(Account, next), next)?;
            tx.set_rel(account, field!(Account, near), next)?;
            next = Some(account);
        }
        tx.set(root, field!(Bank, first), next)
    })
}

/// Looks at everything, by every way; the number of transfers.
fn look(reader: &impl Reader) -> Result<u64> {
    let bank = reader.get(reader.root::<Bank>()?.expect("a bank"))?;
    look_at(reader, bank)
}

fn look_at(reader: &impl Reader, bank: &Bank) -> Result<u64> {
    let (mut held, mut at) = (Vec::new(), bank.first);
    while let Some(account) = at {
        let account = reader.get(account)?;
        assert_eq!(account.near.get(), account.next, "by distance, from {}", account.number);
        held.push(account);
        at = account.next;
    }
    assert_eq!(held.len() as u64, ACCOUNTS);
    let mut seen = vec![false; ACCOUNTS as usize];
    for account in &held {
        assert!(
            !std::mem::replace(&mut seen[account.number as usize], true),
            "{} twice",
            account.number
        );
        assert_eq!((account.not_amount, account.pad[121]), (!account.amount, account.number));
    }
    assert_eq!(bank.ordered.len(reader)? as u64, ACCOUNTS);
    for (number, account) in bank.ordered.iter(reader)? {
        assert_eq!(reader.get(*account)?.number, *number);
    }
    for (number, account) in bank.hashed.iter(reader)? {
        assert_eq!(reader.get(*account)?.number, *number);
        assert_eq!(bank.ordered.get(reader, number)?, Some(account));
    }
    let sum: u64 = bank.list.iter(reader)?.sum();
    assert_eq!(sum, ACCOUNTS * (ACCOUNTS - 1) / 2);
    // By references that were there before all the rest was touched.
    let sum = held.iter().fold(0u64, |sum, account| sum.wrapping_add(account.amount));
    assert_eq!(sum, ACCOUNTS * AMOUNT);
    Ok(bank.transfers)
}

/// Moves an amount between two accounts; how many transfers there were then.
fn transfer(tx: &mut Tx<'_>, seed: &mut u64) -> Result<u64> {
    let root = tx.root::<Bank>()?.expect("a bank");
    let Bank { hashed, ordered, .. } = *tx.get(root)?;
    let (from, to, amount) = (random(seed) % ACCOUNTS, random(seed) % ACCOUNTS, random(seed) % 100);
    let from = *hashed.get(tx, &from)?.expect("an account");
    let to = *ordered.get(tx, &to)?.expect("an account");
    for (account, change) in [(from, amount.wrapping_neg()), (to, amount)] {
        let amount = tx.get(account)?.amount.wrapping_add(change);
        tx.set(account, field!(Account, amount), amount)?;
        tx.set(account, field!(Account, not_amount), !amount)?;
    }
    let bank = tx.get_mut(root)?;
    bank.transfers += 1;
    Ok(bank.transfers)
}

/// Address space that another part of this process has.
struct Taken(u64);

impl Taken {
    fn new(base: u64) -> Self {
        cenote_sys::memory::reserve(base as usize, 1 << 21).expect("free");
        Self(base)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: reserved by `new`; nothing was mapped there.
        unsafe { cenote_sys::memory::release(self.0 as usize, 1 << 21) }.expect("reserved");
    }
}

/// Ways by which a pool comes to be pending.
#[derive(Clone, Copy, Debug)]
enum Way {
    Cloned,
    Imported,
    Randomized,
    WindowTaken,
    /// The window is taken, and then the pool gets new addresses before a puddle was touched.
    Twice,
}

const WAYS: [Way; 5] = [Way::Cloned, Way::Imported, Way::Randomized, Way::WindowTaken, Way::Twice];

/// Makes every puddle of a pool pending; its name. The store is closed before and after.
fn displace(dir: &Path, way: Way) -> Result<&'static str> {
    let writing = || open(dir, Access::ReadWrite, Backend::Signal);
    let copied = |name: &str| -> Result<Store> {
        let store = writing()?;
        if store.pools().iter().any(|pool| pool.record.name == name) {
            store.remove_pool(name)?;
        }
        Ok(store)
    };
    match way {
        Way::Cloned => {
            let store = copied("copy")?;
            store.clone_pool("bank", "copy")?;
            store.close()?;
            Ok("copy")
        }
        Way::Imported => {
            let store = copied("copy")?;
            let (archive, _) = store.export(&["bank"], Vec::new(), ExportOptions::default())?;
            let options = ImportOptions { names: vec!["copy".into()], ..ImportOptions::default() };
            store.import(archive.as_slice(), options)?;
            store.close()?;
            Ok("copy")
        }
        Way::Randomized => {
            let store = writing()?;
            store.randomize_pool("bank")?;
            store.close()?;
            Ok("bank")
        }
        Way::WindowTaken | Way::Twice => {
            // A protected pool that is partly pending keeps its store at home.
            let store = writing()?;
            for pool in store.pools() {
                let pool = store.pool(&pool.record.name)?;
                pool.finish_relocation(&mut |_| std::ops::ControlFlow::Continue(()))?;
            }
            let (home, _) = store.window();
            store.close()?;
            let taken = Taken::new(home);
            let store = writing()?;
            assert_eq!(store.report().window_moved_from, Some(home));
            if matches!(way, Way::Twice) {
                store.randomize_pool("bank")?;
            }
            store.close()?;
            drop(taken);
            Ok("bank")
        }
    }
}

/// A store with a bank in it, closed.
fn prepare(dir: &Path, kind: Kind, seed: u64) -> Result<()> {
    Store::open(dir)?.close()?;
    let store = open(dir, Access::ReadWrite, Backend::Signal)?;
    make(&store, "bank", kind, seed)?;
    store.close()
}

/// Opens the store, looks at all of a pool, and closes it; the number of transfers.
fn whole(dir: &Path, name: &str, access: Access, backend: Backend) -> Result<u64> {
    let store = open(dir, access, backend)?;
    let pool = store.pool_with(name, access)?;
    let transfers = look(&pool.read()?)?;
    if access.writes() {
        crate::common::assert_sound(&pool);
    }
    drop(pool);
    store.close()?;
    Ok(transfers)
}

/// A pool by name, for the time of one act.
fn opened(store: &Store, name: &str, access: Access) -> Pool {
    store.pool_with(name, access).expect("a pool")
}
