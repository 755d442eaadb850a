//! Clients that do not keep to anything: the daemon goes on, others do not notice, and nothing
//! changes that they could not write.

use crate::common::{Actor, Daemon, add, count, make_counter};
use cenote::Reader;
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::log_space::{ENTRY_HEAD, LOG_SPACE_ENTRIES_OFFSET, LogSpaceEntry};
use cenote_layout::puddle::header_space;
use cenote_proto::samples::{self, Source};
use cenote_proto::{Channel, MESSAGE_LEN_MAX, Refusal, Reply, Request, decode, encode};
use cenote_testkit::environment::rounds;
use cenote_testkit::random;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};

/// A client that speaks the protocol by hand.
pub(crate) struct Raw {
    channel: Channel,
    pub(crate) client: Uuid,
    /// What the daemon knows this program by.
    image: Vec<OwnedFd>,
}

impl Raw {
    pub(crate) fn connect(daemon: &Daemon) -> Self {
        Self::hello(daemon, None).unwrap_or_else(|reply| panic!("{reply:?}"))
    }

    fn connected(daemon: &Daemon) -> Self {
        let channel = Channel::connect(&daemon.socket()).expect("connect");
        Self { channel, client: Uuid::NIL, image: Vec::new() }
    }

    /// A session, or what the daemon says instead of welcome.
    pub(crate) fn hello(daemon: &Daemon, resume: Option<Uuid>) -> Result<Self, Box<Reply>> {
        let mut raw = Self::connected(daemon);
        match raw.ask(&Request::Hello { resume }) {
            (Reply::Welcome { client, .. }, image) => (raw.client, raw.image) = (client, image),
            (other, _) => return Err(Box::new(other)),
        }
        Ok(raw)
    }

    pub(crate) fn ask(&mut self, request: &Request) -> (Reply, Vec<OwnedFd>) {
        self.channel.send(&encode(1, request).expect("encode"), &[]).expect("send");
        self.answer().expect("an answer")
    }

    /// Asks for a psync of these bytes, in a transfer.
    pub(crate) fn psync(&mut self, bytes: &[u8], request: impl Fn(u64) -> Request) -> Reply {
        let (reply, files) = self.ask(&Request::Transfer);
        let Reply::Transfer { number } = reply else { panic!("{reply:?}") };
        let file = File::from(files.into_iter().next().expect("a descriptor"));
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).expect("written");
        self.ask(&request(number)).0
    }

    fn answer(&mut self) -> Option<(Reply, Vec<OwnedFd>)> {
        let mut buffer = vec![0; MESSAGE_LEN_MAX];
        let received =
            self.channel.receive(&mut buffer).ok().filter(|received| received.len > 0)?;
        Some((decode(&buffer[..received.len]).expect("decode").1, received.descriptors))
    }
}

pub(crate) fn refused(reply: &Reply) -> &Refusal {
    match reply {
        Reply::Refused(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn bytes_that_are_no_message_are_refused_and_end_the_connection() {
    let mut daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let pool = store.pool("numbers").expect("pool");
    make_counter(&pool);
    let ping = encode(1, &Request::Ping).expect("encode");
    let mut other_version = ping.clone();
    other_version[4] += 1;
    let mut seed = 1u64;
    let random =
        |len: usize| -> Vec<u8> { (0..len).map(|_| random::next(&mut seed) as u8).collect() };
    let mut packets =
        vec![ping[..7].to_vec(), [&ping[..], b"x"].concat(), other_version, vec![0; 60_000]];
    packets.extend((1..200).map(random));
    for packet in &packets {
        let mut raw = Raw::connect(&daemon);
        raw.channel.send(packet, &[]).expect("send");
        let (reply, _) = raw.answer().expect("why not");
        assert!(matches!(refused(&reply), Refusal::Malformed { .. }), "{reply:?}");
        assert!(raw.answer().is_none(), "the connection is over");
    }
    // Too long, without a hello, with descriptors where none belong.
    let mut raw = Raw::connect(&daemon);
    raw.channel.send(&vec![1; MESSAGE_LEN_MAX + 1], &[]).expect("send");
    assert!(matches!(refused(&raw.answer().expect("why").0), Refusal::Malformed { .. }));
    let mut raw = Raw::connect(&daemon);
    let file = File::open("/dev/null").expect("open");
    raw.channel.send(&ping, &[file.as_fd(), file.as_fd()]).expect("send");
    assert!(matches!(refused(&raw.answer().expect("why").0), Refusal::Malformed { .. }));
    let mut raw = Raw::connected(&daemon);
    let stat = encode(1, &Request::Stat).expect("encode");
    raw.channel.send(&stat, &[]).expect("send");
    assert!(matches!(refused(&raw.answer().expect("why").0), Refusal::Malformed { .. }));
    // But for the question whether the daemon lives, which ends the connection, too.
    let mut raw = Raw::connected(&daemon);
    raw.channel.send(&ping, &[]).expect("send");
    assert_eq!(raw.answer().expect("it lives").0, Reply::Done);
    assert!(raw.answer().is_none(), "the connection is over");
    assert!(daemon.is_running());
    assert_eq!(add(&pool), 1);
    store.create_pool("others", &cenote::PoolOptions::default()).expect("others are served");
}

#[test]
fn what_was_not_granted_cannot_be_asked_for() {
    let daemon = Daemon::start(&["--client-puddles", "5", "--client-bytes", "100000000"]);
    let store = daemon.connect();
    let pool = store.pool("numbers").expect("pool");
    make_counter(&pool);
    let (id, mut raw) = (pool.id(), Raw::connect(&daemon));
    for request in [
        Request::Puddles { pool: id, first: 0 },
        Request::Puddles { pool: PoolId(999), first: 0 },
        Request::TakePuddle { pool: id, index: 1, size: 2 << 20, metadata: false },
        Request::TraceDone { pool: id },
        Request::EnsureSpace { pool: id, addr: 0, len: u64::MAX },
        Request::LogPuddle { size: 1 << 60 },
        Request::LogPuddle { size: 4097 },
        Request::OpenPool { name: "numbers".into(), writable: false },
        Request::OpenPool { name: "x".repeat(10_000), writable: true },
        Request::Hello { resume: Some(store.uuid()) },
    ] {
        let (reply, descriptors) = raw.ask(&request);
        refused(&reply);
        assert!(descriptors.is_empty(), "{request:?}");
    }
    // A session that another connection has, one that another process has, and one whose name means
    // something else.
    let resume = |client| {
        let mut thief = Raw::connected(&daemon);
        thief.ask(&Request::Hello { resume: Some(client) }).0
    };
    assert_eq!(refused(&resume(raw.client)), &Refusal::Attached);
    let mut other = Actor::start("reader", &daemon);
    assert!(other.hear().starts_with("refused"));
    let held = store.lease_records();
    assert_eq!(refused(&resume(held[0].client)), &Refusal::Attached);
    assert!(other.ends());
    // Five puddles may be made, one of which a refused request has used up.
    let made = (0..10)
        .filter(|_| matches!(raw.ask(&Request::LogPuddle { size: 8192 }).0, Reply::Puddles { .. }))
        .count();
    assert!((1..=5).contains(&made), "{made}");
    assert!(matches!(
        refused(&raw.ask(&Request::LogPuddle { size: 8192 }).0),
        Refusal::Limit { .. }
    ));
    drop(pool);
    drop(store);
    // Granted for reading, it is not to be written.
    assert!(matches!(
        raw.ask(&Request::OpenPool { name: "numbers".into(), writable: false }).0,
        Reply::Pool { .. }
    ));
    let (reply, mut files) = raw.ask(&Request::Puddles { pool: id, first: 0 });
    assert!(matches!(reply, Reply::Puddles { .. }));
    let file = File::from(files.remove(0));
    assert!(file.write_at(b"x", 0).is_err() && file.set_len(0).is_err());
    for request in [
        Request::TakePuddle { pool: id, index: 1, size: 2 << 20, metadata: false },
        Request::TraceDone { pool: id },
        Request::EnsureSpace { pool: id, addr: 0, len: 4096 },
    ] {
        refused(&raw.ask(&request).0);
    }
    // The puddle that is there is not given again with more rights.
    let (reply, files) =
        raw.ask(&Request::TakePuddle { pool: id, index: 0, size: 2 << 20, metadata: false });
    if let Reply::Puddles { .. } = reply {
        assert!(files.into_iter().all(|file| File::from(file).write_at(b"x", 0).is_err()));
    }
}

/// Numbers and names that a hostile client sends: chance, and what is there.
struct Hostile(u64);

impl Source for Hostile {
    fn below(&mut self, end: u64) -> u64 {
        random::next(&mut self.0) % end
    }

    fn word(&mut self) -> u64 {
        const SIZES: [u64; 6] = [0, 8192, 65_536, 131_072, 2 << 20, 1 << 40];
        match self.below(3) {
            0 => SIZES[self.below(6) as usize],
            1 => random::mix(random::next(&mut self.0)),
            _ => self.below(6),
        }
    }

    fn text(&mut self) -> String {
        ["numbers", "a", "b", "c"][self.below(4) as usize].into()
    }
}

impl Hostile {
    /// A request of any kind; none that ends the session, and none by which the owner of the
    /// numbers, the user of this test, may remove them, move them or give them away.
    fn request(&mut self) -> Request {
        loop {
            let kind = self.below(Request::KINDS.len() as u64) as usize;
            match samples::request(kind, self) {
                None | Some(Request::Hello { .. } | Request::Goodbye) => {}
                Some(
                    Request::RemovePool { name }
                    | Request::RandomizePool { name }
                    | Request::SetPermissions { name, .. },
                ) if name == "numbers" => {}
                Some(request) => return request,
            }
        }
    }
}

/// Whether a part of the daemon got a request that another part answers.
fn is_misrouted(reply: &Reply) -> bool {
    let wrong = ["it is no request", "it names no", "it is no look", "the session has begun"];
    matches!(reply, Reply::Refused(Refusal::Malformed { detail })
        if wrong.iter().any(|wrong| detail.starts_with(wrong)))
}

/// Requests of every kind in any order, with ids and ranges of other clients, from several
/// connections at once: other clients' data stays, and the daemon lives.
#[test]
fn requests_in_any_order_change_nothing_of_others_and_the_daemon_lives() {
    let mut daemon = Daemon::start(&["--client-puddles", "200", "--client-bytes", "200000000"]);
    let store = daemon.connect();
    let pool = store.pool("numbers").expect("pool");
    make_counter(&pool);
    let asked = [const { AtomicU32::new(0) }; Request::KINDS.len()];
    std::thread::scope(|scope| {
        for thread in 1..=3 {
            let (socket, asked) = (&daemon, &asked);
            scope.spawn(move || {
                let mut hostile = Hostile(thread);
                let mut raw = Raw::connect(socket);
                let mut kept: Vec<OwnedFd> = Vec::new();
                for _ in 0..600 {
                    let request = hostile.request();
                    asked[request.kind()].fetch_add(1, Ordering::Relaxed);
                    let (reply, descriptors) = raw.ask(&request);
                    assert!(!is_misrouted(&reply), "{request:?}: {reply:?}");
                    kept.extend(descriptors);
                    if hostile.below(40) == 0 {
                        if hostile.below(2) == 0 {
                            raw.ask(&Request::Goodbye);
                        }
                        raw = Raw::connect(socket);
                        kept.clear();
                    }
                }
            });
        }
        (1..=500).for_each(|number| assert_eq!(add(&pool), number));
    });
    assert!(daemon.is_running());
    let sent = |kind: &usize| asked[*kind].load(Ordering::Relaxed) > 0;
    assert_eq!((0..asked.len()).filter(sent).count(), Request::KINDS.len() - 2);
    assert_eq!((count(&pool), pool.check().expect("check").leaked_blocks), (500, 0));
    drop((pool, store));
    // What they left is recovered by the next one, which starts.
    daemon.kill();
    daemon.restart();
    assert_eq!(count(&daemon.connect().pool("numbers").expect("pool")), 500);
}

#[test]
fn silent_clients_and_too_many_of_them_keep_no_other_waiting() {
    let daemon = Daemon::start(&["--clients", "40"]);
    let silent: Vec<Channel> =
        (0..30).map(|_| Channel::connect(&daemon.socket()).expect("connect")).collect();
    // Some that ask and never read an answer.
    let mut deaf: Vec<Raw> = (0..3).map(|_| Raw::connect(&daemon)).collect();
    for raw in &mut deaf {
        (0..5).for_each(|_| {
            raw.channel.send(&encode(1, &Request::Ping).expect("encode"), &[]).expect("send")
        });
    }
    let store = daemon.connect();
    let pool = store.pool("numbers").expect("pool");
    make_counter(&pool);
    assert_eq!(add(&pool), 1);
    let more: Vec<Channel> =
        (0..30).map(|_| Channel::connect(&daemon.socket()).expect("connect")).collect();
    let refused = more.iter().any(|channel| {
        let mut buffer = [0; 1024];
        // Those that were let in say nothing before the hello.
        let _ = channel.send(&encode(1, &Request::Hello { resume: None }).expect("encode"), &[]);
        let received = channel.receive(&mut buffer).expect("an answer");
        matches!(decode(&buffer[..received.len]), Ok((_, Reply::Refused(Refusal::Limit { .. }))))
    });
    assert!(refused, "there is no limit");
    assert_eq!(add(&pool), 2);
    drop((silent, deaf, more));
    store.create_pool("others", &cenote::PoolOptions::default()).expect("others are served");
}

#[test]
fn thousands_of_connections_come_and_go_and_nothing_of_them_stays() {
    let daemon = Daemon::start(&["--clients", "64"]);
    let pool = daemon.connect().pool("numbers").expect("pool");
    make_counter(&pool);
    let pid = daemon.pid().as_raw_nonzero();
    let count_in = |of: &str| std::fs::read_dir(format!("/proc/{pid}/{of}")).expect("proc").count();
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
        let line =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line").to_owned();
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    let (files, threads, kib) = (count_in("fd"), count_in("task"), resident());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let daemon = &daemon;
            scope.spawn(move || {
                for number in 0..rounds(1000) {
                    match (thread + number) % 4 {
                        // They come and say nothing, say hello and go, ask for something, say
                        // goodbye.
                        0 => drop(Channel::connect(&daemon.socket()).expect("connect")),
                        1 => drop(Raw::hello(daemon, None)),
                        _ => {
                            if let Ok(mut raw) = Raw::hello(daemon, None) {
                                assert!(matches!(
                                    raw.ask(&Request::LogSpace).0,
                                    Reply::Puddles { .. }
                                ));
                                raw.ask(&Request::Goodbye);
                            }
                        }
                    }
                }
            });
        }
        (1..=200).for_each(|number| assert_eq!(add(&pool), number));
    });
    daemon.wait_until("all of them are gone", |stat| stat.sessions == 2);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while (count_in("fd") > files + 4 || count_in("task") > threads + 2)
        && std::time::Instant::now() < end
    {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let now = (count_in("fd"), count_in("task"), resident());
    println!("{files} descriptors, {threads} threads, {kib} KiB before; {now:?} after");
    assert!(
        now.0 <= files + 4 && now.1 <= threads + 2 && now.2 <= kib + (16 << 10),
        "{files} {threads} {kib} {now:?}"
    );
    assert_eq!(add(&pool), 201);
}

/// A child: within a transaction, it takes its own mapping of the pool away, and touches it.
pub(crate) fn unmap(socket: &std::path::Path) {
    let store = cenote::Store::connect(socket).expect("connect");
    let pool = store.pool("numbers").expect("pool");
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Core, none).expect("no core files");
    let _ = pool.write(|tx| -> cenote::Result<()> {
        let at = tx.root::<crate::common::Counter>()?.expect("a counter");
        tx.get_mut(at)?.count += 1;
        // SAFETY: addresses, no values.
        let raw = unsafe { store.as_raw() };
        let puddle = raw.puddle_of(at.addr()).expect("its puddle");
        // SAFETY: none: this is a program that goes wrong, and dies of it.
        unsafe {
            cenote_sys::memory::unmap_to_reserved(puddle.addr() as usize, puddle.size() as usize)
        }
        .expect("unmapped");
        crate::common::say("unmapped");
        crate::common::listen();
        tx.get_mut(at)?.twice += 2;
        Ok(())
    });
}

#[test]
fn a_client_that_unmaps_what_it_was_given_harms_no_other() {
    let mut daemon = Daemon::start(&[]);
    let store = daemon.connect();
    {
        let pool = store.pool("numbers").expect("pool");
        make_counter(&pool);
        add(&pool);
    }
    drop(store);
    let store = daemon.connect();
    let other = store.pool("others").expect("pool");
    make_counter(&other);
    let mut child = Actor::start("unmapper", &daemon);
    assert_eq!(child.hear(), "unmapped");
    assert_eq!(add(&other), 1);
    child.tell("touch it");
    daemon.wait_until("it has died of it, and is recovered", |stat| stat.recoveries == 1);
    assert!(daemon.is_running());
    let pool = store.pool("numbers").expect("recovered");
    assert_eq!((count(&pool), add(&pool), add(&other)), (1, 2, 2));
}

/// A log that is no log, in a log space that names it: set aside whole, when its writer says
/// goodbye.
#[test]
fn a_log_that_fails_its_checks_is_set_aside_and_its_pools_are_for_looking_at() {
    let mut daemon = Daemon::start(&[]);
    {
        let pool = daemon.connect().pool("numbers").expect("pool");
        make_counter(&pool);
        add(&pool);
    }
    {
        let mut raw = Raw::connect(&daemon);
        let Reply::Pool { .. } =
            raw.ask(&Request::OpenPool { name: "numbers".into(), writable: true }).0
        else {
            panic!("not granted")
        };
        let one = |(reply, mut files): (Reply, Vec<OwnedFd>)| match reply {
            Reply::Puddles { records, .. } => (records[0], File::from(files.remove(0))),
            other => panic!("{other:?}"),
        };
        let (space, space_file) = one(raw.ask(&Request::LogSpace));
        let (log, log_file) = one(raw.ask(&Request::LogPuddle { size: 64 << 10 }));
        log_file.write_all_at(&[0x5a; 4096], header_space(log.size)).expect("write");
        let entry = LogSpaceEntry::new(ENTRY_HEAD, log.uuid, log.addr, 7, 0);
        let at = header_space(space.size) + LOG_SPACE_ENTRIES_OFFSET;
        space_file.write_all_at(zerocopy::IntoBytes::as_bytes(&entry), at).expect("write");
        assert_eq!(raw.ask(&Request::Goodbye).0, Reply::Done);
    }
    assert_eq!(daemon.stat().logs_set_aside, 1);
    for round in 0..2 {
        let store = daemon.connect();
        let refused = store.pool("numbers").expect_err("not to be written").to_string();
        assert!(refused.contains("numbers") || refused.contains("log"), "{refused}");
        let pool = store.pool_with("numbers", cenote::Access::ReadOnly).expect("to be looked at");
        assert!(
            matches!(pool.read(), Err(cenote::Error::NotWhole { .. })),
            "values are not to be believed"
        );
        drop((pool, store));
        if round == 0 {
            daemon.stop();
            daemon.restart();
        }
    }
}

/// A client that may write a puddle may cut its file short. The daemon replays into the file all
/// the same, and lives.
#[test]
fn files_that_are_cut_short_do_not_end_the_daemon() {
    let mut daemon = Daemon::start(&[]);
    {
        let pool = daemon.connect().pool("numbers").expect("pool");
        make_counter(&pool);
    }
    {
        let store = daemon.connect();
        let other = store.pool("others").expect("pool");
        make_counter(&other);
        let mut raw = Raw::connect(&daemon);
        let Reply::Pool { record, .. } =
            raw.ask(&Request::OpenPool { name: "numbers".into(), writable: true }).0
        else {
            panic!("not granted")
        };
        let (_, mut space) = raw.ask(&Request::LogSpace);
        File::from(space.remove(0)).set_len(4096).expect("cut short");
        let (_, mut files) = raw.ask(&Request::Puddles { pool: record.id, first: 0 });
        File::from(files.remove(0)).set_len(8192).expect("cut short");
        assert_eq!(raw.ask(&Request::Goodbye).0, Reply::Done);
        assert!(daemon.is_running());
        assert_eq!(add(&other), 1);
        assert_eq!(count(&other), 1);
    }
    let store = daemon.connect();
    assert!(store.pool("numbers").is_err(), "it is damaged");
    assert_eq!(count(&store.pool("others").expect("the other is not")), 1);
    assert!(daemon.is_running());
}

/// The same while the daemon reads: it looks at the length, maps, and then the end is gone.
#[test]
fn files_that_are_cut_short_under_recovery_do_not_end_the_daemon() {
    let mut daemon = Daemon::start(&[]);
    for _ in 0..60 {
        let mut raw = Raw::connect(&daemon);
        let (reply, mut files) = raw.ask(&Request::LogSpace);
        let Reply::Puddles { records, .. } = reply else { panic!("{reply:?}") };
        let file = File::from(files.remove(0));
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    file.set_len(4096).expect("cut short");
                    file.set_len(records[0].size).expect("made long again");
                }
            });
            let answer = raw.ask(&Request::Goodbye).0;
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(answer, Reply::Done);
        });
    }
    assert!(daemon.is_running());
    let pool = daemon.connect().pool("numbers").expect("pool");
    make_counter(&pool);
    assert_eq!(add(&pool), 1);
}
