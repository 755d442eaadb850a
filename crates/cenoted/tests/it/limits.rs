//! What one client, or all of them, may have at most: each limit has an option, an error that names
//! it, and a figure.

use crate::common::{Daemon, add, make_counter};
use crate::hostile::{Raw, refused};
use crate::imports::{AT, spec as import_spec};
use crate::moving::files;
use cenote_proto::{Refusal, Reply, Request};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the daemon counts under this name.
pub(crate) fn figure(daemon: &Daemon, sample: &str) -> f64 {
    // Connections that were closed count until the daemon has noticed.
    let connected = (0..2000).find_map(|_| {
        let connected = cenote::DaemonWatcher::connect(daemon.socket()).ok();
        connected.or_else(|| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            None
        })
    });
    let text = connected.expect("there is no room after 10 s").metrics().expect("metrics");
    crate::metrics::sample(&text, sample)
}

fn limit(reply: &Reply) -> &str {
    match refused(reply) {
        Refusal::Limit { detail } => detail,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_has_a_limit_of_puddles_that_others_do_not_share() {
    let daemon = Daemon::start(&["--client-puddles", "3"]);
    let mut raw = Raw::connect(&daemon);
    let mut ask = |size| raw.ask(&Request::LogPuddle { size }).0;
    // What is refused is not counted.
    for _ in 0..10 {
        assert!(matches!(refused(&ask(4097)), Refusal::Other { .. }));
    }
    for _ in 0..3 {
        assert!(matches!(ask(8192), Reply::Puddles { .. }));
    }
    let reply = ask(8192);
    assert!(limit(&reply).contains("3 puddles"), "{reply:?}");
    assert_eq!(figure(&daemon, "cenoted_limit_hits_total{limit=\"puddles\"}"), 1.0);
    let mut other = Raw::connect(&daemon);
    assert!(matches!(other.ask(&Request::LogPuddle { size: 8192 }).0, Reply::Puddles { .. }));
}

#[test]
fn a_client_has_a_limit_of_bytes() {
    let daemon = Daemon::start(&["--client-bytes", "3000000"]);
    let store = daemon.connect();
    let pool = store.pool("numbers").expect("a pool of 2 MiB");
    let more = store.create_pool("others", &cenote::PoolOptions::default()).expect_err("another");
    assert_eq!(more.kind(), cenote::ErrorKind::Full);
    let more = more.to_string();
    assert!(more.contains("3000000 bytes of puddles"), "{more}");
    // What is left does for a log.
    make_counter(&pool);
    assert_eq!(add(&pool), 1);
    assert_eq!(figure(&daemon, "cenoted_limit_hits_total{limit=\"bytes\"}"), 1.0);
    let spec = cenote_proto::PoolSpec {
        mode: cenote::PoolMode::Direct,
        heap: cenote::HeapKind::Traced,
        puddle_size: 2 << 20,
        size_max: u64::MAX,
        permissions: 0o600,
    };
    let mut other = Raw::connect(&daemon);
    let token = other.client;
    let made = other.ask(&Request::CreatePool { name: "others".into(), spec, token }).0;
    assert!(matches!(made, Reply::Created(_)), "another client's limit is its own: {made:?}");
}

#[test]
fn connections_have_a_limit_in_all_and_for_each_user() {
    let daemon = Daemon::start(&["--clients", "5"]);
    let mut there: Vec<Raw> = (0..4).map(|_| Raw::connect(&daemon)).collect();
    // This one, which asks for the figure, is the fifth.
    assert_eq!(figure(&daemon, "cenoted_limit_hits_total{limit=\"connections\"}"), 0.0);
    there.push(until_there_is_room(&daemon));
    let refused = Raw::hello(&daemon, None).err().expect("the sixth");
    assert!(limit(&refused).contains("try again later"), "{refused:?}");
    there.clear();
    drop(until_there_is_room(&daemon));
    assert!(figure(&daemon, "cenoted_limit_hits_total{limit=\"connections\"}") >= 1.0);
    if !crate::permissions::is_root() {
        return;
    }
    let daemon = Daemon::start(&["--clients-per-user", "2"]);
    crate::permissions::as_user(61_009, 61_009, || {
        let _there = [Raw::connect(&daemon), Raw::connect(&daemon)];
        let refused = Raw::hello(&daemon, None).err().expect("the third");
        assert!(limit(&refused).contains("try again later"), "{refused:?}");
    });
    // Root is not limited so; and another user has a limit of its own.
    let _there: Vec<Raw> = (0..5).map(|_| Raw::connect(&daemon)).collect();
    crate::permissions::as_user(61_010, 61_010, || drop(Raw::connect(&daemon)));
    assert_eq!(figure(&daemon, "cenoted_limit_hits_total{limit=\"connections_of_user\"}"), 1.0);
}

/// Does `work` as a user who has limits: root has none of these.
pub(crate) fn as_limited_user(work: impl FnOnce() + Send) {
    match crate::permissions::is_root() {
        true => crate::permissions::as_user(61_011, 61_011, work),
        false => work(),
    }
}

pub(crate) fn spec(puddle_size: u64) -> cenote_proto::PoolSpec {
    cenote_proto::PoolSpec {
        mode: cenote::PoolMode::Direct,
        heap: cenote::HeapKind::Traced,
        puddle_size,
        size_max: u64::MAX,
        permissions: 0o600,
    }
}

#[test]
fn a_user_has_limits_over_all_sessions_and_what_is_gone_is_given_back() {
    let daemon = Daemon::start(&["--user-puddles", "4", "--user-bytes", "6000000"]);
    as_limited_user(|| {
        let mut raws = [Raw::connect(&daemon), Raw::connect(&daemon)];
        let log = |raw: &mut Raw| raw.ask(&Request::LogPuddle { size: 8192 }).0;
        for at in 0..4 {
            assert!(matches!(log(&mut raws[at % 2]), Reply::Puddles { .. }));
        }
        let [mut one, mut other] = raws;
        let reply = log(&mut other);
        assert!(limit(&reply).contains("4 puddles"), "{reply:?}");
        assert_eq!(one.ask(&Request::Goodbye).0, Reply::Done);
        let made = |raw: &mut Raw, number: u8, size| {
            let token = cenote::Uuid([number; 16]);
            raw.ask(&Request::CreatePool {
                name: format!("pool {number}"),
                spec: spec(size),
                token,
            })
            .0
        };
        let reply = made(&mut other, 1, 8 << 20);
        assert!(limit(&reply).contains("6000000 bytes"), "{reply:?}");
        assert!(matches!(made(&mut other, 2, 2 << 20), Reply::Created(_)));
        assert!(matches!(made(&mut other, 3, 2 << 20), Reply::Created(_)));
        assert!(limit(&made(&mut other, 4, 128 << 10)).contains("4 puddles"));
        assert_eq!(other.ask(&Request::RemovePool { name: "pool 2".into() }).0, Reply::Done);
        assert!(matches!(made(&mut other, 5, 128 << 10), Reply::Created(_)));
    });
    assert_eq!(figure(&daemon, "cenoted_limit_hits_total{limit=\"puddles_of_user\"}"), 2.0);
    assert_eq!(figure(&daemon, "cenoted_limit_hits_total{limit=\"bytes_of_user\"}"), 1.0);
}

/// What an import will take is its user's from its beginning on, whichever session has begun it,
/// until it is over; and one whose session ends in the middle is over, and leaves no file.
#[test]
fn of_two_imports_at_once_that_a_user_has_no_room_for_one_is_refused() {
    let daemon = Daemon::start(&["--user-puddles", "1"]);
    let nothing = files(&daemon);
    // Made as a user who has limits; the files are not that user's to list.
    let mut connected = Vec::new();
    as_limited_user(|| connected.extend([Raw::connect(&daemon), Raw::connect(&daemon)]));
    let spec = |name: &str| import_spec(name, vec![(AT, 2 << 20)]);
    let begun = |reply: &Reply| match reply {
        Reply::Import { number } => Some(*number),
        reply => {
            assert!(limit(reply).contains("1 puddles"), "{reply:?}");
            None
        }
    };
    let Ok::<[Raw; 2], _>(mut raws) = connected.try_into() else { panic!("two sessions") };
    for round in 0..20 {
        let together = Barrier::new(2);
        let replies = std::thread::scope(|scope| {
            let threads = raws.each_mut().map(|raw| {
                let together = &together;
                scope.spawn(move || {
                    together.wait();
                    raw.begin(&spec("one"))
                })
            });
            threads.map(|thread| thread.join().expect("no panic"))
        });
        let numbers = replies.each_ref().map(&begun);
        assert_eq!(numbers.iter().flatten().count(), 1, "round {round}: {replies:?}");
        let (winner, loser) = if numbers[0].is_some() { (0, 1) } else { (1, 0) };
        let import = numbers[winner].expect("begun");
        if round % 2 == 0 {
            assert_eq!(raws[winner].fill(import, 0, &[1; 4096], &[(8192, 4096)]), Reply::Done);
            assert_eq!(files(&daemon), nothing + 1);
        }
        assert_eq!(begun(&raws[loser].begin(&spec("other"))), None, "it is still under way");
        assert_eq!(raws[winner].ask(&Request::AbandonImport { import }).0, Reply::Done);
        assert_eq!(files(&daemon), nothing);
    }
    // A session that ends in the middle: the daemon removes what there is, and the other has room.
    let [mut one, mut other] = raws;
    let import = begun(&one.begin(&spec("one"))).expect("begun");
    assert_eq!(one.fill(import, 0, &[1; 4096], &[(8192, 4096)]), Reply::Done);
    assert_eq!((files(&daemon), begun(&other.begin(&spec("other")))), (nothing + 1, None));
    drop(one);
    daemon.wait_until("the session is gone", |stat| stat.sessions == 2);
    assert_eq!(files(&daemon), nothing, "a session that ended left a file");
    let import = begun(&other.begin(&spec("other"))).expect("there is room");
    let token = cenote::Uuid([3; 16]);
    let made = other.ask(&Request::CommitImport { import, token, pools: 1 }).0;
    assert!(matches!(made, Reply::Imported { .. }), "{made:?}");
    assert_eq!(
        begun(&other.begin(&spec("more"))),
        None,
        "what is there counts as what was promised"
    );
    assert_eq!(other.ask(&Request::RemovePool { name: "other".into() }).0, Reply::Done);
    begun(&other.begin(&spec("more"))).expect("there is room again");
    assert_eq!(figure(&daemon, "cenoted_limit_hits_total{limit=\"puddles_of_user\"}"), 42.0);
}

/// Threads that make and remove pools as fast as they can: counted when a reply has come and no
/// more before the next is asked for, there are never more than the limit says.
#[test]
fn two_sessions_that_make_pools_at_once_never_have_more_than_their_user_may() {
    const MOST: u64 = 10;
    let daemon = Daemon::start(&["--user-puddles", "10"]);
    let (there, refusals, together) = (AtomicU64::new(0), AtomicU64::new(0), Barrier::new(2));
    let work = |raw: &mut Raw, thread: u8| {
        let mut own: Vec<String> = Vec::new();
        together.wait();
        for number in 0..50u8 {
            let (name, token) =
                (format!("{thread} {number}"), cenote::Uuid([100 * thread + number + 1; 16]));
            let request = Request::CreatePool { name: name.clone(), spec: spec(128 << 10), token };
            match raw.ask(&request).0 {
                Reply::Created(_) => {
                    let now = there.fetch_add(1, Ordering::SeqCst) + 1;
                    assert!(now <= MOST, "{now} pools");
                    own.push(name);
                }
                reply => {
                    assert!(limit(&reply).contains("10 puddles"), "{reply:?}");
                    refusals.fetch_add(1, Ordering::SeqCst);
                    // Sometimes there is room again.
                    if number % 3 == 0
                        && let Some(name) = own.pop()
                    {
                        there.fetch_sub(1, Ordering::SeqCst);
                        assert_eq!(raw.ask(&Request::RemovePool { name }).0, Reply::Done);
                    }
                }
            }
        }
    };
    as_limited_user(|| {
        let mut raws = [Raw::connect(&daemon), Raw::connect(&daemon)];
        std::thread::scope(|scope| {
            for (thread, raw) in (0..).zip(&mut raws) {
                let work = &work;
                scope.spawn(move || work(raw, thread));
            }
        });
        // Up to the limit, and not one more.
        let mut filled = 0;
        let reply = loop {
            let token = cenote::Uuid([250 - filled; 16]);
            let name = format!("at the end {filled}");
            match raws[0].ask(&Request::CreatePool { name, spec: spec(128 << 10), token }).0 {
                Reply::Created(_) => filled += 1,
                reply => break reply,
            }
        };
        assert!(limit(&reply).contains("10 puddles"), "{reply:?}");
        assert_eq!(there.load(Ordering::SeqCst) + u64::from(filled), MOST);
    });
    assert_eq!(daemon.connect().pools().len() as u64, MOST);
    let hits = refusals.load(Ordering::SeqCst) + 1;
    assert_eq!(figure(&daemon, "cenoted_limit_hits_total{limit=\"puddles_of_user\"}"), hits as f64);
}

#[test]
fn a_pool_that_grows_counts_for_its_owner_also_if_another_lets_it_grow() {
    if !crate::permissions::is_root() {
        return println!("skipped: only root can be several users");
    }
    let daemon = Daemon::start(&["--user-puddles", "2"]);
    as_limited_user(|| {
        let request = Request::CreatePool {
            name: "his".into(),
            spec: spec(128 << 10),
            token: cenote::Uuid([1; 16]),
        };
        assert!(matches!(Raw::connect(&daemon).ask(&request).0, Reply::Created(_)));
    });
    // The superuser, who has no such limit.
    let mut raw = Raw::connect(&daemon);
    let Reply::Pool { record, .. } =
        raw.ask(&Request::OpenPool { name: "his".into(), writable: true }).0
    else {
        panic!("not opened")
    };
    let mut take = |index| {
        raw.ask(&Request::TakePuddle { pool: record.id, index, size: 128 << 10, metadata: false }).0
    };
    assert!(matches!(take(1), Reply::Puddles { .. }));
    let reply = take(2);
    assert!(limit(&reply).contains("limit of 2 puddles for the pool's owner"), "{reply:?}");
}

#[test]
fn a_pool_that_is_asked_for_twice_with_one_token_counts_once() {
    let daemon = Daemon::start(&["--client-puddles", "1"]);
    let mut raw = Raw::connect(&daemon);
    let mut ask = |name: &str, token| {
        let token = cenote::Uuid([token; 16]);
        raw.ask(&Request::CreatePool { name: name.into(), spec: spec(2 << 20), token }).0
    };
    let made = ask("a", 1);
    assert!(matches!(made, Reply::Created(_)), "{made:?}");
    assert_eq!(ask("a", 1), made, "asked again because the answer was lost");
    assert!(limit(&ask("b", 2)).contains("1 puddles"));
}

#[test]
fn types_have_a_limit_for_each_user_and_known_ones_do_not_count() {
    let daemon = Daemon::start(&["--user-types", "3", "--user-type-bytes", "100000"]);
    let mut raw = Raw::connect(&daemon);
    let mut register = |names: &[&str], fields| {
        let records = names.iter().map(|name| wide(name, fields)).collect();
        raw.ask(&Request::RegisterTypes { records }).0
    };
    assert_eq!(register(&["few::A", "few::B"], 1), Reply::Done);
    assert_eq!(register(&["few::A", "few::B"], 1), Reply::Done, "they are known");
    let reply = register(&["few::C", "few::D"], 1);
    assert!(limit(&reply).contains("3 types"), "{reply:?}");
    let reply = register(&["few::E"], 900);
    assert_eq!(reply, Reply::Done, "one more is, of some 59 KB");
    assert!(limit(&register(&["few::F"], 1)).contains("3 types"));
    // Another session of the same user has come to it, too; one of the daemon after that begins
    // anew.
    let mut other = Raw::connect(&daemon);
    let records = vec![wide("few::G", 1)];
    assert!(limit(&other.ask(&Request::RegisterTypes { records }).0).contains("3 types"));
    assert_eq!(figure(&daemon, "cenoted_limit_hits_total{limit=\"types\"}"), 3.0);
    let daemon = Daemon::start(&["--user-type-bytes", "70000"]);
    let mut raw = Raw::connect(&daemon);
    let mut register = |name: &str| {
        let records = vec![wide(name, 800)];
        raw.ask(&Request::RegisterTypes { records }).0
    };
    assert_eq!(register("long::A"), Reply::Done);
    assert!(limit(&register("long::B")).contains("70000 bytes of types"));
}

#[test]
fn types_that_come_with_an_import_count_as_others_do() {
    let daemon = Daemon::start(&["--user-types", "2"]);
    let nothing = files(&daemon);
    let mut raw = Raw::connect(&daemon);
    let mut begin = |names: &[&str]| {
        let mut spec = import_spec("pool", vec![(AT, 2 << 20)]);
        spec.types = names.iter().map(|name| wide(name, 1)).collect();
        match raw.begin(&spec) {
            Reply::Import { number } => raw.ask(&Request::AbandonImport { import: number }).0,
            refused => refused,
        }
    };
    let refused = begin(&["came::A", "came::B", "came::C"]);
    assert!(limit(&refused).contains("2 types"), "{refused:?}");
    assert_eq!(begin(&["came::A", "came::B"]), Reply::Done);
    // Nothing came of the import, and what it asked for counts: it is a limit of asking.
    let refused = begin(&["came::D"]);
    assert!(limit(&refused).contains("2 types"), "{refused:?}");
    assert_eq!(figure(&daemon, "cenoted_limit_hits_total{limit=\"types\"}"), 2.0);
    assert_eq!(files(&daemon), nothing);
}

/// A copy counts for whose it will be, from its beginning on, and no more than what there is when
/// it is over.
#[test]
fn copies_count_for_their_user() {
    // As many as a session takes that writes a pool, with its logs.
    let daemon = Daemon::start(&["--user-puddles", "3"]);
    let mut counts = Vec::new();
    as_limited_user(|| {
        let store = daemon.connect();
        make_counter(&store.create_pool("one", &cenote::PoolOptions::default()).expect("create"));
        drop(store);
        daemon.wait_until("the session has ended", |stat| stat.sessions == 1);
        let store = daemon.connect();
        for _ in 0..3 {
            for name in ["two", "three"] {
                store.clone_pool("one", name).expect("there is room");
            }
            let refused = store.clone_pool("one", "four").expect_err("a fourth").to_string();
            assert!(refused.contains("3 puddles"), "{refused}");
            counts.push(store.pools().len());
            for name in ["two", "three"] {
                store.remove_pool(name).expect("remove");
            }
        }
    });
    assert_eq!(counts, [3; 3]);
}

/// Threads of the daemon.
fn threads(daemon: &Daemon) -> usize {
    let pid = daemon.pid().as_raw_nonzero();
    std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads").count()
}

#[test]
fn connections_that_are_turned_away_take_no_thread() {
    let daemon = Daemon::start(&["--clients", "1"]);
    let mut there = Raw::connect(&daemon);
    let before = threads(&daemon);
    // They say nothing, so each would have a thread for as long as it may take to say hello.
    let silent: Vec<cenote_proto::Channel> = (0..300)
        .map(|_| cenote_proto::Channel::connect(&daemon.socket()).expect("connect"))
        .collect();
    let refusal = Raw::hello(&daemon, None).err().expect("one too many");
    assert!(limit(&refusal).contains("try again later"), "{refusal:?}");
    assert_eq!(threads(&daemon), before);
    assert_eq!(there.ask(&Request::Ping).0, Reply::Done);
    drop(silent);
    drop(there);
    drop(until_there_is_room(&daemon));
}

/// Connects as soon as one that went away is known to be gone.
fn until_there_is_room(daemon: &Daemon) -> Raw {
    for _ in 0..2000 {
        match Raw::hello(daemon, None) {
            Ok(raw) => return raw,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    }
    panic!("there is no room after 10 s")
}

/// A thousand sessions with a log space each, as a client has that runs transactions. A build that
/// is not optimised at all has about 70 MiB: 60 KiB of stack for each client, and 12 MiB of code.
#[test]
fn a_thousand_clients_take_less_than_64_mib_of_the_daemon() {
    // A socket for each on this side.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < 2500) {
        println!(
            "skipped: a thousand connections take more descriptors than this process may have"
        );
        return;
    }
    let more = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, more).expect("limit");
    let daemon = Daemon::start(&["--clients", "1100", "--clients-per-user", "1100"]);
    let mut clients: Vec<Raw> = (0..1000).map(|_| Raw::connect(&daemon)).collect();
    for raw in &mut clients {
        assert!(matches!(raw.ask(&Request::LogSpace).0, Reply::Puddles { .. }));
        assert_eq!(raw.ask(&Request::Ping).0, Reply::Done);
    }
    assert_eq!(daemon.stat().sessions, 1001);
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid().as_raw_nonzero()))
        .expect("status");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().expect("a number");
    let kinds: Vec<&str> = status.lines().filter(|line| line.starts_with("Rss")).collect();
    println!("{kib} KiB with 1,000 clients: {kinds:?}");
    assert!(kib < 64 << 10, "{kib} KiB: {kinds:?}");
}

/// A type of so many fields, each of which takes some sixty bytes to describe.
pub(crate) fn wide(name: &str, fields: u64) -> cenote_layout::types::TypeRecord {
    use cenote_layout::id::TypeId;
    let field = |number: u64| cenote_layout::types::FieldRecord {
        name: format!("a_field_with_a_rather_long_name_of_number_{number:06}"),
        offset: 8 * number,
        size: 8,
        type_id: TypeId::of_name("u64"),
        type_name: "u64".into(),
    };
    cenote_layout::types::TypeRecord {
        version: cenote_layout::types::RECORD_VERSION,
        id: TypeId::of_name(name),
        name: name.into(),
        size: 8 * fields,
        align: 8,
        repeats: false,
        fields: (0..fields).map(field).collect(),
        variants: Vec::new(),
        pointers: Vec::new(),
    }
}

#[test]
fn types_go_in_pieces_and_one_that_fits_no_message_is_named() {
    let daemon = Daemon::start(&[]);
    let store = daemon.connect();
    // SAFETY: types that no value has are registered, and nothing else.
    let raw = unsafe { store.as_raw() };
    let several: Vec<_> = (0..4).map(|number| wide(&format!("wide::T{number}"), 500)).collect();
    let refs: Vec<_> = several.iter().collect();
    // SAFETY: no program has values of these types.
    unsafe { raw.register_types(&refs) }.expect("in several messages");
    let known = raw.types().len();
    // SAFETY: no program has values of the type.
    let refused = unsafe { raw.register_type(&wide("wide::Whole", 2000)) };
    match refused {
        Err(cenote_store::StoreError::TypeTooLong { name, len, most }) => {
            assert_eq!((&*name, most), ("wide::Whole", cenote_proto::MESSAGE_LEN_MAX));
            assert!(len > most, "{len}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(raw.types().len(), known, "nothing has changed");
    // They are the daemon's, not only this client's.
    let mut other = Raw::connect(&daemon);
    let (mut after, mut seen) = (None, 0);
    loop {
        match other.ask(&Request::Types { after }).0 {
            Reply::Types { records, more } => {
                seen += records.iter().filter(|record| record.name.starts_with("wide::T")).count();
                after = records.last().map(|record| record.id);
                if !more {
                    break;
                }
            }
            reply => panic!("{reply:?}"),
        }
    }
    assert_eq!(seen, 4);
}
