//! Imports through a daemon, step by step: hostile ones, limits, lost answers; and daemons that are
//! killed in the middle.

use crate::common::{Actor, Daemon, add, count, listen, make, say};
use crate::hostile::{Raw, refused};
use crate::limits::{figure, wide};
use crate::moving::{export, files, import};
use crate::permissions::{ALICE, BOB, as_user, is_root};
use cenote::{ArchivingError, Error, PoolMode, PoolOptions, Store};
use cenote_layout::catalog::HeapKind;
use cenote_layout::id::{PoolId, Uuid};
use cenote_proto::{ImportPoolSpec, ImportSpec, Refusal, Reply, Request};
use cenote_store::StoreError;
use cenote_testkit::random;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// A spec of one pool of one puddle.
pub(crate) fn spec(name: &str, puddles: Vec<(u64, u64)>) -> ImportSpec {
    let pool = ImportPoolSpec {
        name: name.into(),
        old_id: PoolId(1),
        mode: PoolMode::Direct,
        heap: HeapKind::Traced,
        puddle_size: 2 << 20,
        size_max: u64::MAX,
        permissions: 0o600,
        torn: false,
        puddles,
    };
    ImportSpec { pools: vec![pool], types: Vec::new() }
}

pub(crate) const AT: u64 = 1 << 41;

impl Raw {
    /// A transfer with these bytes.
    fn transfer(&mut self, bytes: &[u8]) -> u64 {
        let (reply, files) = self.ask(&Request::Transfer);
        let Reply::Transfer { number } = reply else { panic!("{reply:?}") };
        let file = File::from(files.into_iter().next().expect("a descriptor"));
        file.write_all_at(bytes, 0).expect("written");
        number
    }

    pub(crate) fn begin(&mut self, spec: &ImportSpec) -> Reply {
        let bytes = spec.encode().expect("encode");
        let transfer = self.transfer(&bytes);
        self.ask(&Request::BeginImport { transfer, len: bytes.len() as u32, check_only: false }).0
    }

    fn begun(&mut self, name: &str) -> u64 {
        match self.begin(&spec(name, vec![(AT, 2 << 20)])) {
            Reply::Import { number } => number,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn fill(
        &mut self,
        import: u64,
        slot: u32,
        bytes: &[u8],
        pieces: &[(u64, u32)],
    ) -> Reply {
        let transfer = self.transfer(bytes);
        self.ask(&Request::FillImport { import, slot, transfer, pieces: pieces.to_vec() }).0
    }
}

/// What is no list of an import, or says what cannot be: nothing is made.
#[test]
fn a_hostile_list_of_an_import_is_refused_and_makes_nothing() {
    let daemon = with_numbers();
    let before = files(&daemon);
    let mut raw = Raw::connect(&daemon);
    // Nonsense, another length than there is, too long, of another transfer.
    for (bytes, len) in
        [(vec![0xff; 64], 64), (vec![1; 8], 4096), (Vec::new(), u32::MAX), (Vec::new(), 0)]
    {
        let transfer = raw.transfer(&bytes);
        let reply = raw.ask(&Request::BeginImport { transfer, len, check_only: false }).0;
        assert!(
            matches!(refused(&reply), Refusal::Malformed { .. } | Refusal::Limit { .. }),
            "{reply:?}"
        );
        let reply = raw.ask(&Request::BeginImport { transfer, len, check_only: true }).0;
        assert_eq!(refused(&reply), &Refusal::NoTransfer, "it is used up");
    }
    let two = |a: (u64, u64), b: (u64, u64)| vec![a, b];
    for puddles in [
        vec![],
        vec![(0, 2 << 20)],
        vec![(AT + 4096, 2 << 20)],
        vec![(AT, 4097)],
        vec![(AT, u64::MAX)],
        vec![(u64::MAX - 4095, 2 << 20)],
        two((AT, 2 << 20), (AT, 2 << 20)),
        two((AT, 4 << 20), (AT + (2 << 20), 2 << 20)),
        vec![(AT, 1 << 45)],
        vec![(AT, 2 << 20); 20_000],
    ] {
        let said = format!("{:?}, {} of them", puddles.first(), puddles.len());
        let many = puddles.len() > 2;
        let reply = raw.begin(&spec("forged", puddles));
        if many {
            // Before anything is made of them, and counted.
            let Refusal::Limit { detail } = refused(&reply) else { panic!("{said}: {reply:?}") };
            assert!(detail.contains("imported together"), "{detail}");
        }
        assert!(!matches!(refused(&reply), Refusal::NoSession), "{said}: {reply:?}");
    }
    let reply = raw.begin(&spec("numbers", vec![(AT, 2 << 20)]));
    assert_eq!(refused(&reply), &Refusal::PoolExists);
    let mut bits = spec("bits", vec![(AT, 2 << 20)]);
    bits.pools[0].permissions = 0o4755;
    assert!(matches!(refused(&raw.begin(&bits)), Refusal::Other { .. }));
    for name in ["", " ", "a\nb"] {
        assert!(
            matches!(raw.begin(&spec(name, vec![(AT, 2 << 20)])), Reply::Refused(_)),
            "{name:?}"
        );
    }
    assert_eq!(files(&daemon), before, "not even a file was made");
}

/// Stretches that do not lie in the puddle: its header, behind its end, nowhere; more than there
/// is, or may be. Each ends its import.
fn refuses_stretches(raw: &mut Raw, token: Uuid) {
    let page = vec![1; 8192];
    for (slot, pieces) in [
        (0, vec![(0, 4096)]),
        (0, vec![(4095, 4096)]),
        (0, vec![(2 << 20, 1)]),
        (0, vec![((2 << 20) - 4096, 8192)]),
        (0, vec![(u64::MAX, 4096)]),
        (0, vec![(8192, 8193)]),
        (0, vec![(8192, u32::MAX)]),
        (0, vec![(8192, 1); 5000]),
        (1, vec![(8192, 4096)]),
        (u32::MAX, vec![(8192, 4096)]),
    ] {
        let import = raw.begun("forged");
        let reply = raw.fill(import, slot, &page, &pieces);
        assert!(
            matches!(
                refused(&reply),
                Refusal::Import { .. } | Refusal::Malformed { .. } | Refusal::Limit { .. }
            ),
            "{slot}, {pieces:?}: {reply:?}"
        );
        let gone = raw.ask(&Request::CommitImport { import, token, pools: 1 }).0;
        assert_eq!(refused(&gone), &Refusal::NoImport, "what failed once is over");
    }
}

/// A daemon with pool `numbers`, which makes no puddle ahead: a thread does that while files are
/// counted.
fn with_numbers() -> Daemon {
    let daemon = Daemon::start(&["--client-bytes", "100000000", "--spare-bytes", "0"]);
    make(&daemon.connect(), "numbers", 1, &PoolOptions::default());
    daemon
}

#[test]
fn hostile_steps_of_an_import_end_it_and_leave_nothing() {
    let daemon = with_numbers();
    let before = files(&daemon);
    let mut raw = Raw::connect(&daemon);
    // Imports that are not there, or another session's.
    let token = Uuid([7; 16]);
    let import = raw.begun("mine");
    let mut other = Raw::connect(&daemon);
    for wrong in [import, 0, u64::MAX] {
        let reply = other.fill(wrong, 0, &[1; 4096], &[(8192, 4096)]);
        assert_eq!(refused(&reply), &Refusal::NoImport);
        let reply = other.ask(&Request::CommitImport { import: wrong, token, pools: 1 }).0;
        assert_eq!(refused(&reply), &Refusal::NoImport);
        assert_eq!(other.ask(&Request::AbandonImport { import: wrong }).0, Reply::Done);
    }
    refuses_stretches(&mut raw, token);
    let two = raw.begun("two");
    let reply = raw.ask(&Request::CommitImport { import: two, token, pools: 2 }).0;
    assert!(matches!(refused(&reply), Refusal::Malformed { .. }), "{reply:?}");
    // Many at once: the superuser has no limit of his own, but all have one.
    let mut begun = 1;
    let full = loop {
        match raw.begin(&spec("many", vec![(AT, 128 << 10)])) {
            Reply::Import { .. } => begun += 1,
            other => break other,
        }
    };
    assert!(matches!(refused(&full), Refusal::Limit { .. }), "{full:?}");
    assert!(begun <= 64, "{begun}");
    // The connection ends, and with it all of them.
    assert_eq!(raw.fill(import, 0, &[1; 8192], &[(8192, 4096)]), Reply::Done);
    assert_eq!(files(&daemon), before + 1);
    drop((raw, other));
    daemon.wait_until("they are gone", |stat| stat.sessions == 1);
    assert_eq!(files(&daemon), before);
    let store = daemon.connect();
    assert_eq!(store.pools().len(), 1);
    assert_eq!(add(&store.pool("numbers").expect("others are served")), 2);
}

#[test]
fn a_user_has_a_limit_of_imports() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let ours = |user| {
        as_user(user, user, || {
            let mut raw = Raw::connect(&daemon);
            for _ in 0..8 {
                raw.begun("many");
            }
            raw
        })
    };
    let mut raw = ours(ALICE);
    let reply = raw.begin(&spec("many", vec![(AT, 2 << 20)]));
    assert!(matches!(refused(&reply), Refusal::Limit { .. }), "{reply:?}");
    assert_eq!(raw.ask(&Request::AbandonImport { import: 3 }).0, Reply::Done);
    raw.begun("one more");
    drop(ours(BOB));
    assert_eq!(figure(&daemon, "cenoted_limit_hits_total{limit=\"imports\"}"), 1.0);
}

/// What is only to be checked takes nothing: no file, none of the session's puddles, and no place
/// among those that are under way.
#[test]
fn an_import_that_is_only_checked_takes_nothing() {
    let daemon = Daemon::start(&["--client-puddles", "1"]);
    let before = files(&daemon);
    let mut raw = Raw::connect(&daemon);
    let mut check = |spec: &ImportSpec| {
        let bytes = spec.encode().expect("encode");
        let transfer = raw.transfer(&bytes);
        raw.ask(&Request::BeginImport { transfer, len: bytes.len() as u32, check_only: true }).0
    };
    for _ in 0..100 {
        assert_eq!(check(&spec("one", vec![(AT, 2 << 20)])), Reply::Done);
    }
    assert!(matches!(check(&spec("one", vec![(AT, 4097)])), Reply::Refused(_)));
    assert_eq!(files(&daemon), before);
    let import = raw.begun("one");
    assert_eq!(raw.fill(import, 0, &[1; 4096], &[(8192, 4096)]), Reply::Done);
}

/// Before anything is made: more than the disk has, and types that say otherwise than those that
/// there are.
#[test]
fn an_import_that_cannot_be_is_refused_at_its_beginning() {
    let daemon = Daemon::start(&[]);
    let before = files(&daemon);
    let mut raw = Raw::connect(&daemon);
    let free = rustix::fs::statvfs(daemon.store()).expect("statvfs");
    let size = (free.f_bavail * free.f_frsize + (1 << 30)).next_multiple_of(2 << 20);
    let reply = raw.begin(&spec("large", vec![(AT, size)]));
    assert_eq!(refused(&reply), &Refusal::NoSpace);
    assert_eq!(
        raw.ask(&Request::RegisterTypes { records: vec![wide("shape::A", 2)] }).0,
        Reply::Done
    );
    let mut other = spec("other", vec![(AT, 2 << 20)]);
    other.types = vec![wide("shape::A", 3)];
    let reply = raw.begin(&other);
    assert!(matches!(refused(&reply), Refusal::TypeMismatch { .. }), "{reply:?}");
    other.types = vec![wide("shape::A", 2)];
    assert!(matches!(raw.begin(&other), Reply::Import { .. }), "as it is");
    assert_eq!(files(&daemon), before);
}

#[test]
fn an_answer_about_several_pools_that_was_lost_is_given_again() {
    let daemon = Daemon::start(&[]);
    let mut raw = Raw::connect(&daemon);
    let mut three = spec("a", vec![(AT, 2 << 20)]);
    for (number, name) in [(1, "b"), (2, "c")] {
        let mut more = spec(
            name,
            vec![(AT + (number << 30), 2 << 20), (AT + (number << 30) + (1 << 25), 4 << 20)],
        );
        more.pools[0].old_id = PoolId(number + 1);
        three.pools.append(&mut more.pools);
    }
    let Reply::Import { number: import } = raw.begin(&three) else { panic!("it is refused") };
    let token = Uuid([5; 16]);
    let reply = raw.ask(&Request::CommitImport { import, token, pools: 3 }).0;
    let Reply::Imported { pools } = &reply else { panic!("{reply:?}") };
    let pending: Vec<u64> = pools.iter().map(|(_, _, pending)| *pending).collect();
    assert_eq!((pending, pools.iter().filter(|(_, moved, _)| *moved).count()), (vec![1, 2, 2], 3));
    assert_eq!(raw.ask(&Request::CommitImport { import, token, pools: 3 }).0, reply);
    // Other numbers of pools than it made have no answer, and nothing is made.
    for pools in [4, 1000, u32::MAX] {
        let other = raw.ask(&Request::CommitImport { import, token, pools }).0;
        assert_eq!(refused(&other), &Refusal::NoImport, "{pools}");
    }
    assert_eq!(daemon.connect().pools().len(), 3);
}

/// Random bytes are no heap that a client can use, and the daemon survives them.
#[test]
fn an_import_of_nonsense_is_opened_by_who_imported_it_and_hurts_no_other() {
    let daemon = Daemon::start(&[]);
    let mut raw = Raw::connect(&daemon);
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || random::next(&mut seed) as u8;
    for round in 0..6 {
        // Where the store lies it would be kept as it is: elsewhere, the daemon looks for pointers
        // in it.
        let import = raw.begun(&format!("nonsense {round}"));
        let noise: Vec<u8> = (0..1 << 20).map(|_| random()).collect();
        assert_eq!(raw.fill(import, 0, &noise, &[(4096 * (1 + round), 1 << 20)]), Reply::Done);
        let token = Uuid([round as u8 + 1; 16]);
        let reply = raw.ask(&Request::CommitImport { import, token, pools: 1 }).0;
        let Reply::Imported { pools } = reply else { panic!("{reply:?}") };
        // The answer was lost: the same is said again, and by no other token.
        let again = raw.ask(&Request::CommitImport { import, token, pools: 1 }).0;
        assert_eq!(again, Reply::Imported { pools });
        let other = raw.ask(&Request::CommitImport { import, token: Uuid([99; 16]), pools: 1 }).0;
        assert_eq!(refused(&other), &Refusal::NoImport);
        let name = format!("nonsense {round}");
        let granted = raw.ask(&Request::OpenPool { name, writable: true }).0;
        assert!(
            matches!(granted, Reply::Pool { .. } | Reply::Refused(Refusal::Other { .. })),
            "{granted:?}"
        );
    }
    make(&daemon.connect(), "numbers", 3, &PoolOptions::default());
}

/// A child: imports the archive that it is told, again and again under new names, and says how many
/// times it has.
pub(crate) fn import_on(socket: &Path) {
    let store = Store::connect(socket).expect("connect");
    say("connected");
    let archive = std::fs::read(listen()).expect("the archive");
    for number in 1_u64.. {
        let name = format!("copy {number}");
        loop {
            match import(&store, &archive, &[&name]) {
                Ok(_) => break,
                // The daemon that knew of it is gone, and nothing came of it: once more.
                Err(Error::Archive(ArchivingError::Store(StoreError::Import { detail })))
                    if detail.contains("again") => {}
                Err(error) => panic!("{error}"),
            }
        }
        say(&number.to_string());
    }
}

#[test]
fn import_during_a_crash_of_the_daemon() {
    let mut daemon = Daemon::start(&[]);
    let archive = {
        let store = daemon.connect();
        for (name, mode) in [("numbers", PoolMode::Direct), ("shadowed", PoolMode::Shadowed)] {
            make(&store, name, 300, &PoolOptions { mode, ..PoolOptions::default() });
        }
        drop(store);
        export(&daemon.connect(), &["numbers"]).expect("export")
    };
    let path = daemon.path("archive");
    File::create(&path).expect("create").write_all(&archive).expect("write");
    let mut child = Actor::start("importer", &daemon);
    assert_eq!(child.hear(), "connected");
    child.tell(path.to_str().expect("a path"));
    let child = child.in_background();
    let mut seed = 7_u64;
    for _ in 0..40 {
        std::thread::sleep(Duration::from_micros(500 + random::next(&mut seed) % 60_000));
        daemon.kill();
        daemon.restart();
    }
    std::thread::sleep(Duration::from_millis(100));
    let acknowledged = child.kill();
    daemon.wait_until("the child is gone", |stat| stat.sessions == 1);
    println!("{acknowledged} imports acknowledged over 40 daemons");
    assert!(acknowledged > 0);
    {
        let store = daemon.connect();
        let names: Vec<String> = store.pools().into_iter().map(|info| info.record.name).collect();
        let copies = names.iter().filter(|name| name.starts_with("copy")).count() as u64;
        // One may be there whose answer did not arrive.
        assert!(copies == acknowledged || copies == acknowledged + 1, "{copies} of {acknowledged}");
        for number in 1..=copies {
            let pool = store.pool(&format!("copy {number}")).expect("whole, or not there");
            assert_eq!(count(&pool), 300);
        }
    }
    nothing_is_left_over(&mut daemon);
}

/// The daemon ends, and its store has the files that its catalog names, and no others.
fn nothing_is_left_over(daemon: &mut Daemon) {
    daemon.wait_until("the session has ended", |stat| stat.sessions == 1);
    daemon.stop();
    let store = Store::open(daemon.store()).expect("open");
    assert_eq!(store.report().damage.len(), 0, "{:?}", store.report());
    assert_eq!(store.report().orphans_removed, 0, "what came to nothing is gone already");
    assert_eq!(files(daemon) as u64, store.info().puddles);
}

#[test]
fn a_copy_whose_daemon_is_killed_is_made_once() {
    let mut daemon = Daemon::start(&[]);
    make(&daemon.connect(), "numbers", 300, &PoolOptions::default());
    daemon.wait_until("the session has ended", |stat| stat.sessions == 1);
    let mut made = 0;
    let store = daemon.connect();
    for round in 0..20_u64 {
        let name = format!("copy {round}");
        std::thread::scope(|scope| {
            let copied = scope.spawn(|| store.clone_pool("numbers", &name));
            std::thread::sleep(Duration::from_micros(200 + 450 * round));
            daemon.kill();
            daemon.restart();
            // The client asks again by itself, with the token of its request.
            copied.join().expect("the thread").expect("a copy");
        });
        made += 1;
        assert_eq!(store.pools().len(), 1 + made, "once, not twice");
    }
    for round in 0..made {
        assert_eq!(count(&store.pool(&format!("copy {round}")).expect("open")), 300);
    }
    drop(store);
    nothing_is_left_over(&mut daemon);
}
