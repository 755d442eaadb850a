//! A daemon that dies while it makes a pool for a client, copies one, takes one in or moves it: the
//! client, which lives, asks the next daemon again, and has one pool.
//!
//! Every crash point of the request; of each, the image that a crash of processes leaves, and those
//! of losses of power (after which the client is gone, and the pool is there whole or not at all).

use cenote_crashtest::rig::{SMALL_LOG, WINDOW_LEN, pool_options, window_base};
use cenote_crashtest::units::{Grain, Images, Reach};
use cenote_layout::catalog::{AtRest, HeapKind, HostedClientRecord};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::Role;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Image, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium, OwnedMedium};
use cenote_store::relocate::{Backend, ImportManifest, ImportPool, ImportPuddle};
use cenote_store::{
    Access, Credentials, FormatOptions, OpenOptions, PoolMode, PoolOptions, Store, StoreError,
};

/// A medium whose files a test may change.
fn own<'a>(medium: &'a (dyn Medium + 'static)) -> OwnedMedium<&'a (dyn Medium + 'static)> {
    // SAFETY: no reference of this process leads into what a test changes.
    unsafe { OwnedMedium::new(medium) }
}

const CLIENT: Uuid = Uuid([0x11; 16]);
const TOKEN: Uuid = Uuid([0x22; 16]);

/// This process is the client: it lives.
fn hosted_client() -> HostedClientRecord {
    let pid = std::process::id();
    let start_ticks = start_of(pid);
    HostedClientRecord { client: CLIENT, pid, start_ticks, uid: 0, gid: 0 }
}

/// When a process started, from the 22nd field of its line in `/proc`.
fn start_of(pid: u32) -> u64 {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("/proc");
    let rest = line.rsplit_once(')').expect("a name in parentheses").1;
    rest.split_whitespace().nth(19).and_then(|ticks| ticks.parse().ok()).expect("a start time")
}

fn options() -> OpenOptions {
    let relocation = cenote_relocate::options(Backend::Eager);
    // SAFETY: pools are opened by no process here: their files are read.
    let hosting = Some(unsafe { cenote_store::Hosting::new() });
    OpenOptions { log_puddle_size: SMALL_LOG, hosting, relocation, ..OpenOptions::default() }
}

fn root() -> Credentials {
    Credentials { uid: 0, gid: 0, groups: Vec::new() }
}

/// What the client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    /// A new pool.
    Create,
    /// A copy of the pool that there is.
    Clone(PoolMode),
    /// A pool that comes in, in pieces.
    Import(PoolMode),
    /// New addresses for the pool that there is.
    Randomize(PoolMode),
}

impl Asks {
    /// The pool that is there before.
    fn before(self) -> Option<PoolMode> {
        match self {
            Self::Create | Self::Import(_) => None,
            Self::Clone(mode) | Self::Randomize(mode) => Some(mode),
        }
    }

    fn ask(self, store: &Store) -> Result<u64, StoreError> {
        if let Some(made) = store.client_made(CLIENT, TOKEN, 1) {
            return Ok(made.pools[0].id.0);
        }
        match self {
            Self::Create => store
                .client_create((CLIENT, TOKEN), &root(), "a", &pool_options(1))
                .map(|pool| pool.0),
            Self::Clone(_) => {
                let source = store.client_source(&root(), "there")?;
                Ok(store.client_clone(source, (CLIENT, TOKEN), &root(), "a")?.pools[0].id.0)
            }
            Self::Import(mode) => {
                let (old_addr, size) = (1 << 41, PUDDLE);
                let pool = ImportPool {
                    name: "a".into(),
                    old_id: PoolId(9),
                    mode,
                    heap: HeapKind::Traced,
                    puddle_size: size,
                    size_max: u64::MAX,
                    permissions: 0o600,
                    at_rest: AtRest::None,
                    protect: cenote_store::DataProtection::None,
                    torn: false,
                    puddles: vec![ImportPuddle {
                        old_addr,
                        size,
                        identity: Uuid::NIL,
                        role: Role::Heap,
                    }],
                };
                let manifest = ImportManifest { pools: vec![pool], types: Vec::new() };
                let mut import = store.client_begin_import(&root(), manifest)?;
                import.write(0, size - 8192, &[MARK; 4096])?;
                import.write(0, size - 4096, &[MARK; 4096])?;
                // SAFETY: no value of the pool is looked at.
                Ok(unsafe { import.commit_for(CLIENT, TOKEN) }?.pools[0].id.0)
            }
            Self::Randomize(_) => {
                store.client_randomize(&root(), "there")?;
                store.pool_id("there").map(|pool| pool.0)
            }
        }
    }
}

/// What the pools hold in their last bytes.
const MARK: u8 = 0x5a;
/// Bytes of a puddle.
const PUDDLE: u64 = 128 << 10;

/// Writes the mark into the last pages of all puddles of a pool.
fn mark(sim: &SimMedium, store: &Store, name: &str, mode: PoolMode) {
    let id = store.pool_id(name).expect("a pool");
    for puddle in store.puddle_records().into_iter().filter(|puddle| puddle.pool == id) {
        let name = String::from_utf8_lossy(&puddle.uuid.to_hex()).into_owned();
        let both = [("puddles", true), ("primary", mode == PoolMode::Shadowed)];
        for (dir, _) in both.into_iter().filter(|(_, there)| *there) {
            let file = format!("{dir}/{name}");
            own(sim).write_at(&file, puddle.size - 8192, &[MARK; 8192]).expect("write");
            sim.sync(&file).expect("sync");
        }
    }
}

/// A pool can be granted, and holds what it should.
fn whole(sim: &SimMedium, store: &Store, name: &str) -> Result<(), String> {
    let text = |error: StoreError| format!("pool {name}: {error}");
    let pending = store
        .pools()
        .into_iter()
        .find(|pool| pool.record.name == name)
        .map_or(0, |pool| pool.pending);
    let granted = store.client_open(CLIENT, &root(), name, Access::ReadWrite);
    match granted {
        Err(StoreError::RelocationPending { .. }) if pending > 0 => {
            store.client_finish(&root(), name).map_err(text)?;
            store.client_open(CLIENT, &root(), name, Access::ReadWrite).map_err(text)?;
        }
        Ok(_) if pending > 0 => {
            return Err(format!("pool {name} is granted with {pending} puddles to be rewritten"));
        }
        other => drop(other.map_err(text)?),
    }
    let id = store.pool_id(name).map_err(text)?;
    let (puddles, _) = store.client_puddles(CLIENT, id, 0, 8).map_err(text)?;
    for puddle in puddles {
        let file = format!("puddles/{}", String::from_utf8_lossy(&puddle.uuid.to_hex()));
        let mut bytes = [0; 8192];
        sim.read_at(&file, puddle.size - 8192, &mut bytes).map_err(|error| error.to_string())?;
        if bytes != [MARK; 8192] {
            return Err(format!("pool {name} does not hold what it should"));
        }
    }
    Ok(())
}

/// The next daemon, and the client that asks it once more.
fn next(asks: Asks, image: &Image) -> Result<(), String> {
    let text = |error: StoreError| error.to_string();
    let sim = SimMedium::from_image_unrecorded(image);
    let (store, report) = Store::open(sim.clone(), options()).map_err(|error| error.to_string())?;
    if !report.damage.is_empty() {
        return Err(format!("a crash that is legal is reported as damage: {:?}", report.damage));
    }
    let before = usize::from(asks.before().is_some());
    let new = usize::from(!matches!(asks, Asks::Randomize(_)));
    let names: Vec<String> = store.pools().into_iter().map(|pool| pool.record.name).collect();
    if names.len() < before || names.len() > before + new {
        return Err(format!("pools {names:?}"));
    }
    let files = sim.list("puddles").map_err(|error| error.to_string())?.len() as u64;
    if files != store.info().puddles {
        return Err(format!("{files} files, and {} puddles", store.info().puddles));
    }
    if image.kind() == CrashKind::Power {
        if store.hosted_clients().is_empty() {
            store.admit(hosted_client()).map_err(text)?;
        }
        let held = if asks == Asks::Create {
            Ok(())
        } else {
            names.iter().try_for_each(|name| whole(&sim, &store, name))
        };
        store.abandon();
        return held;
    }
    // One that had been given nothing begins again under its name.
    if store.hosted_clients().is_empty() {
        store.admit(hosted_client()).map_err(text)?;
    }
    let made =
        asks.ask(&store).map_err(|error| format!("asked again: {error}; there is {names:?}"))?;
    let again = asks.ask(&store).map_err(text)?;
    let pools = store.pools().len();
    if pools != before + new || made != again {
        return Err(format!("pool {made}, then {again}, of {pools}; there was {names:?}"));
    }
    if asks != Asks::Create {
        store.pools().iter().try_for_each(|pool| whole(&sim, &store, &pool.record.name))?;
    }
    store.client_end(CLIENT, true).map_err(text)?;
    store.close().map_err(text)
}

fn run(asks: Asks, bug: Bug, worker: usize) -> Result<u64, String> {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    let format = FormatOptions {
        window_base: Some(window_base(worker)),
        window_len: WINDOW_LEN,
        uuid: None,
    };
    cenote_store::format(sim.clone(), &format).map_err(|error| error.to_string())?;
    let (store, _) = Store::open(sim.clone(), options()).map_err(|error| error.to_string())?;
    store.admit(hosted_client()).map_err(|error| error.to_string())?;
    if let Some(mode) = asks.before() {
        let options = PoolOptions { puddle_size: PUDDLE, mode, ..pool_options(1) };
        store.create_pool("there", &options).map_err(|error| error.to_string())?;
        mark(&sim, &store, "there", mode);
    }
    sim.forget_trace();
    plant(bug);
    let made = asks.ask(&store);
    plant(Bug::None);
    made.map_err(|error| error.to_string())?;
    let events = sim.trace_len();
    store.abandon();
    let mut images = 0;
    for event in 1..=events {
        let state = sim.state_after(event);
        let mut result = Ok(());
        let mut check = |image: Image| {
            images += 1;
            result = next(asks, &image)
                .map_err(|what| format!("after event {event} of {events}: {what}"));
            result.is_ok()
        };
        if check(state.image_process()) {
            let reach = Reach { grain: Grain::Words, exhaustive: 8, samples: 24 };
            Images::of(&state, reach, true).visit(&state, &mut check);
        }
        result?;
    }
    Ok(images)
}

#[test]
fn a_pool_whose_answer_was_lost_is_made_once_wherever_the_daemon_dies() {
    let images = run(Asks::Create, Bug::None, 5100).expect("it holds");
    println!("{images} images");
    assert!(images > 20, "{images}");
}

#[test]
fn a_copy_an_import_and_a_move_for_a_client_are_whole_or_not_there_wherever_the_daemon_dies() {
    let modes = [PoolMode::Direct, PoolMode::Shadowed];
    for (number, asks) in [Asks::Clone, Asks::Import, Asks::Randomize].into_iter().enumerate() {
        for (further, mode) in modes.into_iter().enumerate() {
            let images = run(asks(mode), Bug::None, 5102 + 2 * number + further);
            let images = images.unwrap_or_else(|what| panic!("{:?}: {what}", asks(mode)));
            println!("{:?}: {images} images", asks(mode));
            // A move is one batch, and no file.
            assert!(images > 10, "{images}");
        }
    }
}

#[test]
fn an_import_that_its_batch_does_not_remember_is_found() {
    let found = run(Asks::Import(PoolMode::Direct), Bug::ImportNotRemembered, 5110)
        .expect_err("asked twice");
    assert!(found.contains("already"), "{found}");
}

#[test]
fn a_grant_that_does_not_ask_what_is_to_be_rewritten_is_found() {
    assert!(granted_while_pending(Bug::None, 5111).is_none());
    let found = granted_while_pending(Bug::GrantedWhilePending, 5112).expect("it is granted");
    // The header of its puddle is the one of before: a client that was granted it would have found
    // it damaged.
    assert!(found.starts_with("pool a: "), "{found}");
}

/// What is wrong with the grant of a copy.
fn granted_while_pending(bug: Bug, worker: usize) -> Option<String> {
    let (sim, store) = serving(worker);
    Asks::Clone(PoolMode::Direct).ask(&store).expect("a copy");
    plant(bug);
    let found = whole(&sim, &store, "a").err();
    plant(Bug::None);
    store.abandon();
    found
}

/// A daemon's store with a pool.
fn serving(worker: usize) -> (std::sync::Arc<SimMedium>, Store) {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    let format = FormatOptions {
        window_base: Some(window_base(worker)),
        window_len: WINDOW_LEN,
        uuid: None,
    };
    cenote_store::format(sim.clone(), &format).expect("format");
    let (store, _) = Store::open(sim.clone(), options()).expect("open");
    store.admit(hosted_client()).expect("admit");
    let pool = PoolOptions { puddle_size: PUDDLE, ..pool_options(1) };
    store.create_pool("there", &pool).expect("create");
    mark(&sim, &store, "there", PoolMode::Direct);
    (sim, store)
}

/// Whether a pool that is being copied is kept from writers.
fn is_held(bug: Bug, worker: usize) -> bool {
    let (_sim, store) = serving(worker);
    let source = store.client_source(&root(), "there").expect("held");
    assert_eq!((source.puddles(), source.bytes()), (1, PUDDLE));
    store.client_open(CLIENT, &root(), "there", Access::ReadOnly).expect("readers may come");
    assert!(matches!(
        store.client_remove(CLIENT, &root(), "there"),
        Err(StoreError::PoolHeld { .. })
    ));
    assert!(matches!(store.client_randomize(&root(), "there"), Err(StoreError::PoolHeld { .. })));
    plant(bug);
    let writable = store.client_open(CLIENT, &root(), "there", Access::ReadWrite);
    plant(Bug::None);
    let held = matches!(writable, Err(StoreError::PoolBusy { .. }));
    let copy = store.client_clone(source, (CLIENT, TOKEN), &root(), "a").expect("a copy");
    assert_eq!(copy.pools.len(), 1);
    store.client_open(CLIENT, &root(), "there", Access::ReadWrite).expect("it is over");
    let busy = store.client_source(&root(), "there").map(drop);
    assert!(matches!(busy, Err(StoreError::PoolBusy { .. })), "a client writes it: {busy:?}");
    store.abandon();
    held
}

#[test]
fn a_pool_that_is_copied_is_granted_to_readers_only_and_one_that_is_not_held_is_found() {
    assert!(is_held(Bug::None, 5113));
    assert!(!is_held(Bug::CopyNotHeld, 5114), "planted, it is granted");
}

#[test]
fn a_request_that_is_recorded_apart_from_its_pool_is_found() {
    let found =
        run(Asks::Create, Bug::PoolMadeApart, 5101).expect_err("a crash between the two batches");
    assert!(found.contains("already"), "{found}");
}

#[test]
fn what_a_client_stores_after_a_move_that_failed_is_psynced_at_the_end() {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    // There is no second place for the pool.
    let (window_len, puddle_size) = (8 << 20, 5 << 20);
    let format = FormatOptions { window_base: Some(window_base(5115)), window_len, uuid: None };
    cenote_store::format(sim.clone(), &format).expect("format");
    let (store, _) = Store::open(sim.clone(), options()).expect("open");
    let pool = PoolOptions { puddle_size, mode: PoolMode::Shadowed, ..pool_options(1) };
    store.create_pool("there", &pool).expect("create");
    let found = store.puddle_records().into_iter().find(|puddle| puddle.size == puddle_size);
    let name = String::from_utf8_lossy(&found.expect("its puddle").uuid.to_hex()).into_owned();
    // Each of them dies: what it stored, and did not psync, goes on from there.
    for (round, offset) in [(1u8, puddle_size - 8192), (2, puddle_size - (1 << 20))] {
        let client = Uuid([0x30 + round; 16]);
        store.admit(HostedClientRecord { client, ..hosted_client() }).expect("admit");
        store.client_open(client, &root(), "there", Access::ReadWrite).expect("granted");
        own(&*sim).write_at(&format!("puddles/{name}"), offset, &[round; 4096]).expect("store");
        store.client_end(client, false).expect("ended");
        if round == 1 {
            let moved = store.client_randomize(&root(), "there");
            assert!(matches!(moved, Err(StoreError::WindowFull { .. })), "{moved:?}");
        } else {
            store.end_hosting().expect("closed");
        }
        let mut page = [0; 4096];
        sim.read_at(&format!("primary/{name}"), offset, &mut page).expect("read");
        assert!(page == [round; 4096], "round {round}: the move, or the end, psyncs what it finds");
    }
}
