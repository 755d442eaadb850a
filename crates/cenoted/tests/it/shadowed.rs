//! Pools in shadowed mode through the daemon: after the end of any process a pool goes on with its
//! last transaction, and after a loss of power with its last psync.

use crate::common::{Actor, Daemon, add, count, listen, make_counter, say};
use crate::hostile::Raw;
use cenote::{Access, Error, HeapKind, OpenOptions, Pool, PoolMode, PoolOptions, Store};
use cenote_layout::header::{read, seal};
use cenote_layout::superblock::{COPY_SIZE, Superblock};
use cenote_proto::{Refusal, Reply, Request};
use cenote_store::StoreError;
use std::path::Path;
use zerocopy::IntoBytes;

fn shadowed() -> PoolOptions {
    PoolOptions { mode: PoolMode::Shadowed, puddle_size: 256 << 10, ..PoolOptions::default() }
}

fn create(daemon: &Daemon, name: &str) {
    create_as(daemon, name, HeapKind::Traced);
}

/// Metadata of a logged heap are stored through a second mapping, of which no fault tells.
fn create_as(daemon: &Daemon, name: &str, heap: HeapKind) {
    let store = daemon.connect();
    let pool = store.create_pool(name, &PoolOptions { heap, ..shadowed() }).expect("create");
    make_counter(&pool);
    pool.psync().expect("psync");
}

const HEAPS: [HeapKind; 3] = [HeapKind::Traced, HeapKind::Logged, HeapKind::WEAR];

/// A child: counts and psyncs as it is told.
pub(crate) fn obey(socket: &Path) {
    let store = Store::connect(socket).expect("connect");
    let pool = store.pool("numbers").expect("pool");
    say("open");
    loop {
        let order = listen();
        match order.as_str() {
            "add" => say(&add(&pool).to_string()),
            "psync" => say(&format!("{}", pool.psync().expect("psync").pages)),
            "together" => {
                let other = store.pool("others").expect("the other pool");
                add(&other);
                say(&store.psync(&[&pool, &other]).expect("psync").pages.to_string());
            }
            "fill" => {
                // More than its first puddle holds.
                for _ in 0..40_000 {
                    add(&pool);
                }
                say("full");
            }
            _ => break,
        }
    }
}

fn start(daemon: &Daemon) -> Actor {
    let mut actor = Actor::start("psyncer", daemon);
    assert_eq!(actor.hear(), "open");
    actor
}

fn told(actor: &mut Actor, order: &str) -> u64 {
    actor.tell(order);
    actor.hear().parse().expect("a number")
}

/// The daemon and the machine go down: what was in shadows and logs is anything.
pub(crate) fn lose_power(daemon: &mut Daemon) {
    daemon.kill();
    let path = daemon.store().join("superblock");
    let mut bytes = std::fs::read(&path).expect("superblock");
    for copy in bytes.chunks_exact_mut(COPY_SIZE as usize) {
        let Ok(mut block) = read::<Superblock>(copy, true) else { continue };
        block.boot_id.0[7] ^= 0x1a;
        seal(&mut block);
        copy.copy_from_slice(block.as_bytes());
    }
    std::fs::write(&path, bytes).expect("write");
    for entry in std::fs::read_dir(daemon.store().join("primary")).expect("primaries") {
        let shadow = daemon.store().join("puddles").join(entry.expect("entry").file_name());
        let mut bytes = std::fs::read(&shadow).expect("read");
        bytes[4096..].chunks_mut(8192).for_each(|two| two[..1024].fill(0xee));
        std::fs::write(&shadow, bytes).expect("write");
    }
}

pub(crate) fn counted(daemon: &Daemon, name: &str) -> u64 {
    let store = daemon.connect();
    let pool = store.pool(name).expect("open");
    assert!(pool.check().expect("check").is_sound());
    count(&pool)
}

#[test]
fn a_killed_client_leaves_its_last_transaction_and_a_loss_of_power_its_last_psync() {
    HEAPS.into_iter().for_each(last_transaction_and_last_psync);
}

fn last_transaction_and_last_psync(heap: HeapKind) {
    let mut daemon = Daemon::start(&[]);
    create_as(&daemon, "numbers", heap);
    let mut client = start(&daemon);
    for expected in 1..=3 {
        assert_eq!(told(&mut client, "add"), expected);
    }
    assert!(told(&mut client, "psync") > 0);
    assert_eq!(told(&mut client, "psync"), 0, "nothing was stored since");
    assert_eq!(told(&mut client, "add"), 4);
    client.kill();
    assert_eq!(counted(&daemon, "numbers"), 4, "the last transaction");
    // That session has looked for what the dead one left, and psynced it at its goodbye.
    lose_power(&mut daemon);
    daemon.restart();
    assert_eq!(counted(&daemon, "numbers"), 4);
    let mut client = start(&daemon);
    assert_eq!(told(&mut client, "add"), 5);
    assert!(told(&mut client, "psync") > 0);
    assert_eq!(told(&mut client, "add"), 6);
    client.kill();
    lose_power(&mut daemon);
    daemon.restart();
    assert_eq!(counted(&daemon, "numbers"), 5, "the last psync");
}

#[test]
fn the_first_psync_after_a_dead_client_finds_what_that_one_left() {
    HEAPS.into_iter().for_each(what_a_dead_client_left);
}

fn what_a_dead_client_left(heap: HeapKind) {
    let mut daemon = Daemon::start(&[]);
    create_as(&daemon, "numbers", heap);
    let mut client = start(&daemon);
    for expected in 1..=20 {
        assert_eq!(told(&mut client, "add"), expected);
    }
    client.kill();
    let mut client = start(&daemon);
    assert!(told(&mut client, "psync") > 0, "stored by the one before");
    client.kill();
    lose_power(&mut daemon);
    daemon.restart();
    assert_eq!(counted(&daemon, "numbers"), 20);
}

#[test]
fn pools_that_are_psynced_together_grow_and_outlive_daemons() {
    let mut daemon = Daemon::start(&[]);
    create(&daemon, "numbers");
    create_as(&daemon, "others", HeapKind::Logged);
    let mut client = start(&daemon);
    client.tell("fill");
    assert_eq!(client.hear(), "full");
    assert!(told(&mut client, "together") > 100, "of several puddles");
    daemon.kill();
    daemon.restart();
    assert_eq!(told(&mut client, "add"), 40_001);
    assert!(told(&mut client, "psync") > 0, "the next daemon makes it");
    assert_eq!(told(&mut client, "add"), 40_002);
    client.kill();
    lose_power(&mut daemon);
    daemon.restart();
    assert_eq!((counted(&daemon, "numbers"), counted(&daemon, "others")), (40_001, 1));
    daemon.wait_until("no client is there", |stat| stat.sessions == 1);
    daemon.stop();
    let pool = Store::open(daemon.store()).expect("open").pool("numbers").expect("pool");
    assert_eq!(count(&pool), 40_001, "an embedded store goes on");
}

#[test]
fn one_process_writes_a_pool_in_shadowed_mode_and_others_wait_or_read() {
    let daemon = Daemon::start(&[]);
    create(&daemon, "numbers");
    let mut client = start(&daemon);
    let busy = |opened: Result<Pool, Error>| {
        assert!(matches!(opened, Err(Error::Store(StoreError::PoolBusy { .. }))), "{opened:?}");
    };
    let store = daemon.connect();
    busy(store.pool("numbers"));
    busy(store.pool_with("numbers", Access::ReadOnly));
    let shared = store.pool_with("numbers", Access::Shared);
    assert!(matches!(shared, Err(Error::Store(StoreError::Refused { .. }))), "{shared:?}");
    assert_eq!(told(&mut client, "add"), 1);
    client.tell("end");
    assert!(client.ends());
    let pool = store.pool_with("numbers", Access::ReadOnly).expect("no writer has it");
    assert_eq!(count(&pool), 1);
    assert!(pool.psync().is_err(), "who reads psyncs nothing");
}

#[test]
fn a_psync_changes_only_pools_that_its_client_writes() {
    let daemon = Daemon::start(&[]);
    create(&daemon, "numbers");
    let puddles = |raw: &mut Raw, writable| {
        let Reply::Pool { record, .. } =
            raw.ask(&Request::OpenPool { name: "numbers".into(), writable }).0
        else {
            panic!("not granted")
        };
        let Reply::Puddles { records, .. } =
            raw.ask(&Request::Puddles { pool: record.id, first: 0 }).0
        else {
            panic!("no puddles")
        };
        (record.id, records[0].uuid)
    };
    let mut before = Raw::connect(&daemon);
    let (pool, puddle) = puddles(&mut before, false);
    assert!(matches!(before.ask(&Request::Goodbye).0, Reply::Done));
    // Page 0: the puddle's header.
    let run =
        [&0u32.to_le_bytes()[..], &64u32.to_le_bytes(), &0u64.to_le_bytes(), &[7; 4096]].concat();
    let mut raw = Raw::connect(&daemon);
    let psync =
        |runs| move |transfer| Request::PsyncPools { transfer, puddles: vec![puddle], runs };
    let refused = |raw: &mut Raw, why: &str| {
        let reply = raw.psync(&run, psync(1));
        assert!(matches!(reply, Reply::Refused(Refusal::Other { .. })), "{why}: {reply:?}");
    };
    refused(&mut raw, "it was not granted");
    assert!(matches!(raw.ask(&Request::Primaries { pool, first: 0 }).0, Reply::Refused(_)));
    puddles(&mut raw, false);
    refused(&mut raw, "it was granted for reading");
    assert!(matches!(raw.ask(&Request::Primaries { pool, first: 0 }).0, Reply::Refused(_)));
    puddles(&mut raw, true);
    refused(&mut raw, "the header is the store's");
    let (reply, files) = raw.ask(&Request::Primaries { pool, first: 0 });
    assert!(matches!(reply, Reply::Puddles { .. }) && files.len() == 1, "{reply:?}");
    let primary = std::fs::File::from(files.into_iter().next().expect("one"));
    assert!(std::os::unix::fs::FileExt::write_all_at(&primary, b"x", 8192).is_err(), "for reading");
    assert!(matches!(raw.psync(&[], psync(0)), Reply::Psynced { seq: 0, .. }));
}

#[test]
fn protected_pools_are_refused_as_such_and_keys_for_others_too() {
    let mut daemon = Daemon::prepare(&[]);
    let key = || {
        let mut bytes: [u8; 32] = core::array::from_fn(|i| (i as u8).wrapping_mul(29));
        let key = cenote::MasterKey::with_locking(&mut bytes, cenote::Locking::IfPossible)
            .expect("a key");
        std::sync::Arc::new(cenote::Keyring::new(key).locking(cenote::Locking::IfPossible))
    };
    {
        let store = Store::open(daemon.store()).expect("open");
        let protected =
            PoolOptions { at_rest: cenote::AtRest::Authenticated, key: Some(key()), ..shadowed() };
        make_counter(&store.create_pool("numbers", &protected).expect("create"));
        make_counter(&store.create_pool("plain", &shadowed()).expect("create"));
        store.close().expect("close");
    }
    daemon.restart();
    let store = daemon.connect();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let refused = store.pool_with("numbers", access).expect_err("granted").to_string();
        assert!(refused.contains("protected at rest"), "{refused}");
        let refused = store.pool_with_key("plain", access, &key());
        assert!(
            matches!(&refused, Err(Error::Store(StoreError::NotProtected { .. }))),
            "{refused:?}"
        );
    }
    assert_eq!(count(&store.pool("plain").expect("without a key")), 0);
}

/// The journal has records of a puddle that is gone, whose identity a client has given to an object
/// since: they count for no object, also when the store is open to look.
#[test]
fn records_of_a_pool_that_is_gone_are_not_taken_for_those_of_an_object() {
    let mut daemon = Daemon::start(&[]);
    create(&daemon, "other");
    let gone = {
        let store = daemon.connect();
        make_counter(&store.create_pool("gone", &shadowed()).expect("create"));
        let pool = store.pool("gone").expect("open");
        for _ in 0..4000 {
            add(&pool);
        }
        assert!(pool.psync().expect("psync").pages > 1);
        // SAFETY: nothing but records is looked at.
        unsafe { store.as_raw() }
            .puddle_records()
            .into_iter()
            .find(|puddle| puddle.pool == pool.id())
    };
    let gone = gone.expect("its puddle").uuid;
    daemon.connect().remove_pool("gone").expect("remove");
    let create = Request::CreateObject {
        id: gone,
        name: "object".into(),
        data_len: 1,
        permissions: 0o600,
        at_rest: cenote::AtRest::None,
        header: Vec::new(),
    };
    let reply = Raw::connect(&daemon).ask(&create).0;
    assert!(matches!(reply, Reply::Objects { .. }), "{reply:?}");
    lose_power(&mut daemon);
    {
        let store = Store::open_with(daemon.store(), &OpenOptions::read_only()).expect("to look");
        assert!(store.report().damage.is_empty(), "{:?}", store.report());
        let other = store.pool_with("other", Access::ReadOnly).expect("as its last psync left it");
        assert_eq!(count(&other), 0);
    }
    daemon.restart();
    assert_eq!(counted(&daemon, "other"), 0);
}
