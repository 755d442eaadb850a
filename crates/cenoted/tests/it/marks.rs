//! Files that a daemon's store marks as written ([`cenote_layout::puddle`]), whether a client is
//! given them or not: no end of the daemon, at no moment between the making of a pool and its
//! grant, makes a later open take them for files of another moment.

use cenote::FormatOptions;
use cenote_layout::catalog::HostedClientRecord;
use cenote_layout::id::Uuid;
use cenote_layout::puddle::{Role, STAMP_AT};
use cenote_medium::planted::{Bug, plant};
use cenote_medium::{Medium, MediumOptions, RealMedium};
use cenote_store::{Access, Credentials, Hosting, OpenOptions, PoolMode, PoolOptions, Store};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const SIZE: u64 = 256 << 10;

/// What takes a puddle while one of its size is made ahead for a pool.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Takes {
    /// Another pool that is made.
    NewPool(PoolMode),
    /// The pool that it was made for.
    Growth,
    /// None: a close names it.
    Close,
}

/// How far it comes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Until {
    Made,
    Leased,
    Granted,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Closed,
    Killed,
}

const TAKES: [Takes; 4] = [
    Takes::NewPool(PoolMode::Direct),
    Takes::NewPool(PoolMode::Shadowed),
    Takes::Growth,
    Takes::Close,
];

fn opened(dir: &Path, hosting: bool) -> Store {
    let medium: Arc<dyn Medium> =
        Arc::new(RealMedium::open(dir, &MediumOptions::default()).expect("a directory"));
    // SAFETY: this process opens no pool while it is the daemon.
    let hosting = hosting.then(|| unsafe { Hosting::new() });
    let options = OpenOptions { hosting, ..OpenOptions::default() };
    Store::open(medium, options).expect("opens").0
}

/// One daemon; the number of files that were marked without a grant.
fn host(dir: &Path, mode: PoolMode, takes: Takes, until: Until, end: End) -> usize {
    let store = opened(dir, true);
    let client = Uuid::from_random_bytes([1; 16]);
    let hosted_client =
        HostedClientRecord { client, pid: 0x7fff_ffff, start_ticks: 1, uid: 7, gid: 7 };
    store.admit(hosted_client).expect("admitted");
    let owner = Credentials { uid: 7, gid: 7, groups: Vec::new() };
    let options = |mode| PoolOptions { mode, puddle_size: SIZE, ..PoolOptions::default() };
    let token = |number| (client, Uuid::from_random_bytes([number; 16]));
    store.client_create(token(2), &owner, "first", &options(mode)).expect("made");
    let first = store.pool_id("first").expect("it is there");
    store.client_open(client, &owner, "first", Access::ReadWrite).expect("leased");
    store.client_expect(client, first, SIZE);
    let mut pool = first;
    match takes {
        Takes::NewPool(mode) => {
            store.client_create(token(3), &owner, "second", &options(mode)).expect("made");
            pool = store.pool_id("second").expect("it is there");
            if until != Until::Made {
                store.client_open(client, &owner, "second", Access::ReadWrite).expect("leased");
            }
        }
        Takes::Growth => drop(store.client_take(client, first, SIZE, Role::Heap).expect("taken")),
        Takes::Close => {}
    }
    let stamp = |puddle: &cenote_layout::catalog::PuddleRecord| {
        let name: String = puddle.uuid.to_hex().iter().map(|b| char::from(*b)).collect();
        let file = std::fs::File::open(dir.join("puddles").join(name)).expect("it is there");
        let mut stamp = [0; 8];
        file.read_exact_at(&mut stamp, STAMP_AT).expect("a page");
        u64::from_le_bytes(stamp)
    };
    let of_pool: Vec<_> =
        store.puddle_records().into_iter().filter(|puddle| puddle.pool == pool).collect();
    let marked = of_pool.iter().filter(|puddle| stamp(puddle) != 0).count();
    if until == Until::Granted {
        // SAFETY: the client is this process, which writes nothing.
        of_pool.iter().for_each(|p| drop(unsafe { store.grant_file(p, true) }.expect("granted")));
    }
    if end == End::Killed {
        store.abandon();
        return marked;
    }
    store.client_end(client, true).expect("ended");
    store.end_hosting().expect("closed");
    marked
}

/// Opens every pool for writing, twice, in a store without a daemon.
fn refused(dir: &Path) -> Vec<String> {
    let mut refused = Vec::new();
    for open in ["first", "second"] {
        let store = opened(dir, false);
        for pool in store.pools() {
            if let Err(error) = store.open_pool(&pool.record.name, Access::ReadWrite) {
                refused.push(format!("{open} open: {error}"));
            }
        }
        store.close().expect("closed");
    }
    refused
}

/// One case: how many files were marked, and what was refused.
fn tried(mode: PoolMode, takes: Takes, until: Until, end: End) -> (usize, Vec<String>) {
    let keep = tempfile::tempdir().expect("a directory");
    let dir = keep.path().join("store");
    cenote::Store::format(&dir, &FormatOptions::default()).expect("formatted");
    let marked = host(&dir, mode, takes, until, end);
    let case = format!("{mode:?}, {takes:?}, {until:?}, {end:?}");
    (marked, refused(&dir).iter().map(|why| format!("{case}: {why}")).collect())
}

#[test]
fn no_file_that_a_daemon_marked_is_refused_whether_a_client_was_given_it_or_not() {
    let (mut all_marked, mut all_wrong) = (0, Vec::new());
    for mode in [PoolMode::Direct, PoolMode::Shadowed] {
        for takes in TAKES {
            // Only a pool that is new can be without a lease.
            let is_new = matches!(takes, Takes::NewPool(_));
            let untils = [Until::Made, Until::Leased, Until::Granted];
            for until in untils.into_iter().filter(|until| is_new || *until != Until::Leased) {
                for end in [End::Closed, End::Killed] {
                    let (marked, wrong) = tried(mode, takes, until, end);
                    all_marked += marked;
                    all_wrong.extend(wrong);
                }
            }
        }
    }
    assert!(all_marked > 10, "{all_marked} files were marked when they were made");
    assert!(all_wrong.is_empty(), "{}", all_wrong.join("\n"));
    plant(Bug::MarkForgotten);
    let direct = PoolMode::Direct;
    let (_, wrong) = tried(direct, Takes::NewPool(direct), Until::Made, End::Closed);
    plant(Bug::None);
    assert!(wrong.iter().any(|why| why.contains("first open: ")), "{wrong:?}");
}
