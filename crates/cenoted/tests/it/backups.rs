//! A backup of a store that a daemon keeps, while its clients write: of one moment, or not there,
//! whichever process is stopped or killed in between; and clients go on.

use crate::common::{Actor, Counter, Daemon, Heard, add, count, listen, make_counter, say};
use cenote::{Error, ErrorKind, Pool, PoolMode, PoolOptions, Reader, Store, field};
use cenote_medium::planted::{Bug, plant};
use cenote_store::StoreError;
use cenote_testkit::environment;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes that make a backup take long enough to be met in the middle.
const BULK: usize = 24 << 20;

/// Changes the counters of two pools in one transaction: adds so much to each.
fn change(store: &Store, [a, b]: [&Pool; 2], [to_a, to_b]: [u64; 2]) -> u64 {
    let changed = store.write(&[a, b], |tx| -> cenote::Result<u64> {
        let mut last = 0;
        for (pool, by) in [(a, to_a), (b, to_b)] {
            let at = tx.root_in::<Counter>(pool, 0)?.expect("a counter");
            last = tx.get(at)?.count.wrapping_add(by);
            tx.set(at, field!(Counter, count), last)?;
        }
        Ok(last)
    });
    changed.expect("changed")
}

/// The counter's value; its pool may hold other things too.
fn counted(pool: &Pool) -> u64 {
    let view = pool.read().expect("read");
    let at = view.root::<Counter>().expect("root").expect("a counter");
    view.get(at).expect("the counter").count
}

/// A child: has two pools alone, and counts in both.
pub(crate) fn count_in_two(socket: &Path) {
    let store = Store::connect(socket).expect("connect");
    let (x, y) = (store.pool("x").expect("pool"), store.pool("y").expect("pool"));
    loop {
        say(&change(&store, [&x, &y], [1, 1]).to_string());
    }
}

/// A child: counts in a pool in shadowed mode, and psyncs.
pub(crate) fn count_and_psync(socket: &Path) {
    let store = Store::connect(socket).expect("connect");
    let pool = store.pool("shadowed").expect("pool");
    loop {
        let number = add(&pool);
        pool.psync().expect("psync");
        say(&number.to_string());
        // Its list grows.
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A child: has the store copied, and says how that went.
pub(crate) fn ask(socket: &Path) {
    let store = Store::connect(socket).expect("connect");
    say("connected");
    let target = listen();
    match store.backup(target) {
        Ok(made) => say(&format!("made {}", made.report().pools)),
        Err(error) => say(&format!("failed {error}")),
    }
}

/// The pools, and clients that change them.
struct Scene {
    daemon: Daemon,
    two: Heard,
    movers: [Heard; 2],
    psyncer: Heard,
}

impl Scene {
    /// Kills or stops the victim; another takes its place.
    fn harm(&mut self, victim: &Victim, asker: &mut Actor) {
        let restart = |role| Actor::start(role, &self.daemon).in_background();
        match victim {
            Victim::Writer => {
                let next = restart("count-in-two-later");
                core::mem::replace(&mut self.two, next).kill();
            }
            Victim::Sharer => {
                let next = restart("mover");
                core::mem::replace(&mut self.movers[0], next).kill();
            }
            Victim::SharerForAWhile => {
                self.movers[1].signal(Signal::STOP);
                std::thread::sleep(Duration::from_millis(300));
                self.movers[1].signal(Signal::CONT);
            }
            Victim::Daemon => {
                self.daemon.kill();
                self.daemon.restart();
            }
            Victim::Command => asker.signal(Signal::KILL),
        }
    }

    fn start() -> Self {
        let daemon = Daemon::start(&[]);
        let store = daemon.connect();
        let small = |mode| PoolOptions { puddle_size: 192 << 10, mode, ..PoolOptions::default() };
        for name in ["a", "b", "x", "y"] {
            make_counter(&store.create_pool(name, &small(PoolMode::Direct)).expect("pool"));
        }
        let shadowed = store.create_pool("shadowed", &small(PoolMode::Shadowed)).expect("pool");
        make_counter(&shadowed);
        shadowed.psync().expect("psync");
        let bulk = store.create_pool("bulk", &PoolOptions::default()).expect("pool");
        for _ in 0..BULK / (512 << 10) {
            bulk.write(|tx| tx.alloc([7_u64; 64 << 10]).map(drop)).expect("written");
        }
        drop((bulk, shadowed));
        store.close().expect("closed");
        let start = |role| Actor::start(role, &daemon).in_background();
        let (two, psyncer) = (start("count-in-two"), start("count-and-psync"));
        let movers = [(); 2].map(|()| start("mover"));
        let scene = Self { daemon, two, movers, psyncer };
        scene.goes_on();
        scene
    }

    fn clients(&self) -> [&Heard; 4] {
        [&self.two, &self.movers[0], &self.movers[1], &self.psyncer]
    }

    /// Each client commits something from now on.
    fn goes_on(&self) {
        let before = self.clients().map(Heard::last);
        let end = Instant::now() + Duration::from_secs(60);
        while self.clients().iter().zip(before).any(|(client, before)| client.last() < before + 3) {
            assert!(
                Instant::now() < end,
                "a client does not go on: {before:?}, {:?}",
                self.numbers()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until a client that commits all the time does not: clients stand still, perhaps. Not
    /// for long, as a backup may be over already.
    fn wait_for_standstill(&self) {
        let end = Instant::now() + Duration::from_secs(1);
        let (mut last, mut since) = (self.two.last(), Instant::now());
        while since.elapsed() < Duration::from_millis(5) && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(200));
            if self.two.last() != last {
                (last, since) = (self.two.last(), Instant::now());
            }
        }
    }

    /// Ends the clients.
    fn end(self) {
        let [one, other] = self.movers;
        [self.two, one, other, self.psyncer].into_iter().for_each(|client| _ = client.kill());
    }

    /// What was acknowledged: in `x` and `y`, and psynced.
    fn numbers(&self) -> [u64; 2] {
        [self.two.last(), self.psyncer.last()]
    }

    fn target(&self, number: u64) -> PathBuf {
        self.daemon.path("copies").join(format!("copy{number}"))
    }

    /// The daemon ends the killed command's backup, leaves nothing of it, and then makes the next
    /// one.
    fn after_a_killed_command(&self, target: &Path, round: u64, from: [u64; 2]) {
        let next = self.target(round + 100);
        let said = asked(&self.daemon, &next);
        assert!(said.starts_with("made"), "after a killed command: {said}");
        self.whole(&next, from);
        let end = Instant::now() + Duration::from_secs(20);
        while left_of(target) > 0 {
            assert!(Instant::now() < end, "something is left, though the command has ended");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A copy that was begun after `from` was acknowledged.
    fn whole(&self, copy: &Path, from: [u64; 2]) {
        whole(copy, Some(from));
        std::fs::remove_dir_all(copy).expect("removed");
    }
}

/// Transactions are there wholly or not at all, over pools of one client and of several.
fn whole(copy: &Path, from: Option<[u64; 2]>) {
    // The daemon lets go of it a moment after it has its name.
    let options =
        cenote::OpenOptions { lock_timeout: Duration::from_secs(10), ..Default::default() };
    let store = Store::open_with(copy, &options).expect("it opens");
    let report = store.report();
    assert!(report.clean && !report.copied && report.damage.is_empty(), "{report:?}");
    let pool = |name| store.pool(name).expect("pool");
    let [a, b, x, y] = ["a", "b", "x", "y"].map(|name| {
        let pool = pool(name);
        let report = pool.check().expect("checked");
        assert!(report.is_sound(), "{name}: {report:?}");
        counted(&pool)
    });
    assert_eq!(a.wrapping_add(b), 0, "half of a transaction of two that share");
    assert_eq!(x, y, "half of a transaction of one");
    let psynced = count(&pool("shadowed"));
    if let Some([two, at_least]) = from {
        assert!(x >= two && psynced >= at_least, "{x} >= {two}, {psynced} >= {at_least}");
    }
    // It is a store to go on with.
    add(&pool("shadowed"));
    change(&store, [&pool("x"), &pool("y")], [1, 1]);
    store.close().expect("closed");
}

/// Directories that were to become this copy.
fn left_of(target: &Path) -> usize {
    let name = format!(".{}.", target.file_name().expect("a name").to_string_lossy());
    let entries =
        std::fs::read_dir(target.parent().expect("a parent")).expect("the directory").flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&name)).count()
}

#[test]
fn a_backup_while_clients_commit_is_of_one_moment() {
    let scene = Scene::start();
    std::fs::create_dir(scene.daemon.path("copies")).expect("made");
    let store = scene.daemon.connect();
    for round in 0..4 {
        let (target, from) = (scene.target(round), scene.numbers());
        let report = store.backup(&target).expect("made").durable().expect("durable");
        assert_eq!((report.pools, left_of(&target)), (6, 0), "{report:?}");
        let to = scene.numbers();
        scene.whole(&target, from);
        scene.goes_on();
        println!(
            "round {round}: {from:?} to {to:?}, held {:?}, {} again",
            report.held, report.again_bytes
        );
    }
    // Not empty, not from the root, inside the store: an error that says so, and nothing is made.
    let full = scene.target(9);
    std::fs::create_dir_all(full.join("x")).expect("made");
    let inside = scene.daemon.store().join("inside");
    for (target, wanted, why) in
        [(&full, ErrorKind::Exists, "not empty"), (&inside, ErrorKind::Misuse, "inside the store")]
    {
        let refused = store.backup(target);
        assert!(
            matches!(
                &refused,
                Err(Error::Store(StoreError::Backup { kind, detail }))
                    if *kind == wanted && detail.contains(why)
            ),
            "{refused:?}"
        );
    }
    scene.goes_on();
    scene.end();
}

/// A client that is in a transaction, and one that is stopped, are named; and nothing is left.
#[test]
fn a_client_that_does_not_stand_still_is_named_and_the_others_go_on() {
    let scene = Scene::start();
    std::fs::create_dir(scene.daemon.path("copies")).expect("made");
    let store = scene.daemon.connect();
    make_counter(&store.create_pool("numbers", &PoolOptions::default()).expect("pool"));
    store.close().expect("closed");
    let store = scene.daemon.connect();
    let target = scene.target(0);
    let not_still = |pid: u32| {
        let began = Instant::now();
        let refused = store.backup(&target);
        assert!(
            matches!(
                &refused,
                Err(Error::Store(StoreError::NotStill { pids, .. })) if *pids == [pid]
            ),
            "{pid}: {refused:?}"
        );
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        assert!(!target.exists() && left_of(&target) == 0);
    };
    let mut holder = Actor::start("holder", &scene.daemon);
    assert_eq!(holder.hear(), "inside");
    not_still(holder.pid());
    scene.goes_on();
    holder.signal(Signal::STOP);
    not_still(holder.pid());
    holder.signal(Signal::CONT);
    holder.tell("go on");
    assert!(holder.ends());
    let _ = store.backup(&target).expect("made");
    scene.whole(&target, [0; 2]);
    // One that shares a pool is in the way only if it is in a transaction.
    scene.movers[0].signal(Signal::STOP);
    let stopped = store.backup(&target);
    match stopped {
        Ok(_) => scene.whole(&target, [0; 2]),
        Err(Error::Store(StoreError::NotStill { pids, .. })) => {
            assert_eq!(pids, [scene.movers[0].pid()])
        }
        other => panic!("{other:?}"),
    }
    scene.movers[0].signal(Signal::CONT);
    scene.goes_on();
    let _ = store.backup(&target).expect("made");
    scene.whole(&target, [0; 2]);
    scene.end();
}

#[test]
fn while_a_client_waits_for_its_backup_another_one_is_refused() {
    let scene = Scene::start();
    std::fs::create_dir(scene.daemon.path("copies")).expect("made");
    let store = scene.daemon.connect();
    make_counter(&store.create_pool("numbers", &PoolOptions::default()).expect("pool"));
    store.close().expect("closed");
    // It stays in its transaction, so the first backup waits for it, and ends with an error.
    let mut holder = Actor::start("holder", &scene.daemon);
    assert_eq!(holder.hear(), "inside");
    let mut asker = Actor::start("backup-asker", &scene.daemon);
    assert_eq!(asker.hear(), "connected");
    let mut other = Actor::start("backup-asker", &scene.daemon);
    assert_eq!(other.hear(), "connected");
    let (first, second) = (scene.target(1), scene.target(2));
    asker.tell(first.to_str().expect("text"));
    let end = Instant::now() + Duration::from_secs(20);
    while left_of(&first) == 0 {
        assert!(Instant::now() < end, "no backup has begun");
        std::thread::sleep(Duration::from_millis(1));
    }
    other.tell(second.to_str().expect("text"));
    let said = other.hear();
    assert!(said.starts_with("failed") && said.contains("another backup is running"), "{said}");
    let said = asker.hear();
    assert!(said.starts_with("failed") && said.contains("process"), "{said}");
    assert!(!first.exists() && !second.exists());
    holder.tell("go on");
    assert!(holder.ends());
    scene.end();
}

/// The process that is killed, or stopped for a while, at a random moment of a backup.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Writer,
    Sharer,
    SharerForAWhile,
    Daemon,
    Command,
}

#[test]
fn any_process_killed_in_a_backup_leaves_a_whole_copy_or_none_and_clients_go_on() {
    const VICTIMS: [Victim; 5] =
        [Victim::Writer, Victim::Sharer, Victim::SharerForAWhile, Victim::Daemon, Victim::Command];
    let mut scene = Scene::start();
    std::fs::create_dir(scene.daemon.path("copies")).expect("made");
    let mut made = 0;
    let rounds = VICTIMS.len() as u64 * environment::rounds(4);
    for round in 0..rounds {
        let victim = VICTIMS[round as usize % VICTIMS.len()];
        let (target, from) = (scene.target(round), scene.numbers());
        let mut asker = Actor::start("backup-asker", &scene.daemon);
        assert_eq!(asker.hear(), "connected");
        asker.tell(target.to_str().expect("text"));
        match round % 2 {
            0 => scene.wait_for_standstill(),
            _ => std::thread::sleep(Duration::from_millis(10 + round * 37 % 170)),
        }
        scene.harm(&victim, &mut asker);
        let said = match victim {
            Victim::Command => {
                asker.kill();
                String::from("killed")
            }
            _ => asker.hear(),
        };
        println!("round {round}: {victim:?}: {said}");
        if matches!(victim, Victim::Command) {
            scene.after_a_killed_command(&target, round, from);
        }
        if matches!(victim, Victim::Writer) {
            assert!(said.starts_with("made") || said.contains("process"), "{said}");
        }
        assert!(!said.starts_with("made") || target.exists(), "{said}");
        assert!(!said.starts_with("failed") || !target.exists(), "{said}");
        if target.exists() {
            made += 1;
            let from = if matches!(victim, Victim::Writer) { [0, from[1]] } else { from };
            scene.whole(&target, from);
        }
        scene.goes_on();
    }
    println!("{made} copies were made");
    assert!(made > 0);
    // What daemons have left is removed by the next backup to that target.
    let store = scene.daemon.connect();
    for number in [3, 8, 13, 18].into_iter().filter(|number| *number < rounds) {
        let target = scene.target(number);
        let _ = store.backup(&target).expect("made");
        assert_eq!(left_of(&target), 0);
        scene.whole(&target, [0; 2]);
    }
    scene.end();
}

/// A child: as [`count_in_two`], when the pools can be had.
pub(crate) fn count_in_two_later(socket: &Path) {
    let store = Store::connect(socket).expect("connect");
    let patient = |name| {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            match store.pool(name) {
                Ok(pool) => return pool,
                Err(error) => assert!(Instant::now() < end, "{name}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let (x, y) = (patient("x"), patient("y"));
    loop {
        say(&change(&store, [&x, &y], [1, 1]).to_string());
    }
}

/// What another process says that has the store copied.
fn asked(daemon: &Daemon, target: &Path) -> String {
    let mut asker = Actor::start("backup-asker", daemon);
    assert_eq!(asker.hear(), "connected");
    asker.tell(target.to_str().expect("text"));
    asker.hear()
}

/// An idle client of a daemon that was killed is found by the next one.
#[test]
fn an_idle_client_of_an_earlier_daemon_stands_still_for_the_next_one() {
    let mut daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let pool = store.pool("numbers").expect("pool");
    make_counter(&pool);
    add(&pool);
    std::fs::create_dir(daemon.path("copies")).expect("made");
    daemon.kill();
    daemon.restart();
    // By another process: this one asks nothing.
    let copy = daemon.path("copies").join("copy");
    assert_eq!(asked(&daemon, &copy), "made 1");
    assert_eq!(count(&Store::open(&copy).expect("opens").pool("numbers").expect("pool")), 1);
    // A pool that was opened and closed again is no obstacle, nor is the end of the session.
    drop(pool);
    assert_eq!(asked(&daemon, &daemon.path("copies").join("again")), "made 1");
    store.close().expect("closed");
    assert_eq!(asked(&daemon, &daemon.path("copies").join("last")), "made 1");
    let own = daemon.connect();
    let pool = own.pool("numbers").expect("pool");
    let inside = pool.write(|_| own.backup(daemon.path("copies").join("inside")).map(drop));
    assert!(matches!(inside, Err(Error::WouldDeadlock { .. })), "{inside:?}");
}

/// Backups while this process counts in two pools at once: both counters in each copy.
fn copies_of_two(bug: Bug, rounds: usize) -> Vec<(u64, u64)> {
    let daemon = Daemon::start(&[]);
    let store = daemon.connect();
    plant(bug);
    let (x, y) = (store.pool("x").expect("pool"), store.pool("y").expect("pool"));
    plant(Bug::None);
    make_counter(&x);
    make_counter(&y);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                change(&store, [&x, &y], [1, 1]);
            }
        });
        let copy = |round: usize| daemon.path(&format!("copy{round}"));
        let made: Result<Vec<()>, Error> =
            (0..rounds).map(|round| store.backup(copy(round)).map(drop)).collect();
        stop.store(true, Ordering::Relaxed);
        made.expect("made");
        (0..rounds)
            .map(|round| {
                let store = Store::open(copy(round)).expect("opens");
                let of = |name| store.pool(name).map_or(u64::MAX, |pool| counted(&pool));
                (of("x"), of("y"))
            })
            .collect()
    })
}

#[test]
fn planted_a_client_that_does_not_stand_still_is_found() {
    let whole = copies_of_two(Bug::None, 3);
    assert!(whole.iter().all(|(x, y)| x == y), "{whole:?}");
    // A race: some copies may be whole.
    assert!((0..20).any(|_| copies_of_two(Bug::ClientNotStill, 5).iter().any(|(x, y)| x != y)));
}
