//! Files are cut short, and made long again, while a daemon serves requests of every kind about
//! them: the daemon goes on, and so do others. The client that asks has plain references into its
//! pools, and may end by `SIGBUS`; it is a child, and another one takes its place.

use crate::common::{Actor, Counter, Daemon, Heard, listen, make_counter, say};
use cenote::{
    Access, ExportOptions, ImportOptions, PermissionChange, Pool, PoolMode, PoolOptions, Reader,
    Store,
};
use cenote_object::{Objects, ObjectsOptions, Permission};
use cenote_testkit::{environment, random};
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Kinds of requests.
const KINDS: u64 = 12;
const PAGE: u64 = 4096;

/// A child: asks one thing after the other, whatever comes of it.
pub(crate) fn obey(socket: &Path) {
    say("0");
    let first: u64 = listen().parse().expect("a number");
    for round in first.. {
        let store = Store::connect(socket).expect("the daemon is there");
        let name = format!("cut {round}");
        let mode =
            if (round / KINDS).is_multiple_of(2) { PoolMode::Direct } else { PoolMode::Shadowed };
        let options = PoolOptions { puddle_size: 192 << 10, mode, ..PoolOptions::default() };
        let pool = store.create_pool(&name, &options).expect("a pool");
        fill(&pool).expect("filled");
        if mode == PoolMode::Shadowed {
            pool.psync().expect("psynced");
        }
        say(&(2 * round + 1).to_string());
        let _ = ask((store, pool), socket, (round % KINDS, &name, &format!("copy {round}")));
        say(&(2 * round + 2).to_string());
    }
}

fn ask(
    (store, pool): (Store, Pool),
    socket: &Path,
    (kind, name, copy): (u64, &str, &str),
) -> Option<()> {
    match kind {
        0 => drop(pool.check().ok()?),
        1 => drop(pool.trim().ok()?),
        2 => drop(store.backup(socket.with_file_name(copy)).ok()?),
        3 => (0..6).try_for_each(|_| fill(&pool))?,
        4 => {
            let change = PermissionChange { permissions: Some(0o640), ..Default::default() };
            store.set_permissions(name, change).ok()?;
        }
        5 => objects(&store, copy)?,
        // Its log is replayed.
        6 => pool
            .write(|tx| -> cenote::Result<()> {
                let at = tx.root::<Counter>()?.expect("a counter");
                tx.get_mut(at)?.count += 1;
                std::process::abort()
            })
            .ok()?,
        _ => {
            drop(pool);
            drop(store);
            elsewhere(&Store::connect(socket).ok()?, kind, name, copy)?;
        }
    }
    Some(())
}

/// What concerns a pool that the client has not open.
fn elsewhere(store: &Store, kind: u64, name: &str, copy: &str) -> Option<()> {
    match kind {
        7 => drop(store.clone_pool(name, copy).ok().and_then(|_| store.pool(copy).ok())?),
        8 => {
            let mut archive = Vec::new();
            store.export(&[name], &mut archive, ExportOptions::default()).ok()?;
            let options = ImportOptions { names: vec![copy.into()], ..ImportOptions::default() };
            store.import(&archive[..], options).ok()?;
            store.pool(copy).ok()?;
        }
        9 => {
            store.randomize_pool(name).ok()?;
            store.pool(name).ok()?;
        }
        10 => store.remove_pool(name).ok()?,
        _ => drop(store.pool_with(name, Access::Shared).ok()?.check().ok()?),
    }
    Some(())
}

fn fill(pool: &Pool) -> Option<()> {
    let filled = pool.write(|tx| -> cenote::Result<()> {
        let counter = tx.alloc(Counter { count: 1, twice: 2, list: None })?;
        for _ in 0..4 {
            tx.alloc([7u64; 2000])?;
        }
        tx.set_root(counter)
    });
    filled.ok()
}

fn objects(store: &Store, name: &str) -> Option<()> {
    let objects = Objects::open(&store.handle(), &ObjectsOptions::default()).ok()?;
    objects.pcreate(name, 16 * PAGE, None, 0o600).ok()?;
    let mut object = objects.attach(name, Permission::ReadWrite, None).ok()?;
    object.as_mut_slice().ok()?.fill(3);
    object.psync().ok()?;
    object.detach().ok()?;
    objects.pdestroy(name, None).ok()
}

fn files(daemon: &Daemon) -> BTreeSet<PathBuf> {
    let list = |dir| std::fs::read_dir(daemon.store().join(dir)).into_iter().flatten().flatten();
    ["puddles", "primary"].into_iter().flat_map(list).map(|entry| entry.path()).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        random::next(&mut self.0) % end.max(1)
    }
}

/// Cuts a file of the client short for a moment.
fn cut(files: &[&PathBuf], random: &mut Random) {
    let Some(path) = files.get(random.below(files.len() as u64) as usize) else { return };
    let Ok(file) = std::fs::File::options().write(true).open(path) else { return };
    let len = file.metadata().map_or(0, |file| file.len());
    let _ = file.set_len(random.below(len / PAGE) * PAGE);
    std::thread::sleep(Duration::from_micros(random.below(300)));
    let _ = file.set_len(len);
}

/// Takes no memory, so that no file is added to the pool.
fn count_up(pool: &Pool) -> u64 {
    pool.write(|tx| -> cenote::Result<u64> {
        let at = tx.root::<Counter>()?.expect("a counter");
        let counter = tx.get_mut(at)?;
        counter.count += 1;
        Ok(counter.count)
    })
    .expect("counted")
}

fn client(daemon: &Daemon, first: u64) -> Heard {
    let mut client = Actor::start("cut-client", daemon);
    assert_eq!(client.hear(), "0");
    client.tell(&first.to_string());
    client.in_background()
}

#[test]
fn files_that_are_cut_short_at_each_request_do_not_end_the_daemon() {
    let mut random = Random(environment::number("CENOTE_SEED", u64::from(std::process::id())));
    println!("CENOTE_SEED={}", random.0);
    let mut daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let pool = store.pool("others").expect("a pool");
    make_counter(&pool);
    let kept = files(&daemon);
    let (begun, mut next, mut added, mut cuts) = (Instant::now(), 0, 0, 0);
    let mut asks = client(&daemon, next);
    // All kinds, in both modes, by a machine that is slow, too.
    while begun.elapsed() < Duration::from_secs(3)
        || next < 2 * KINDS && begun.elapsed() < Duration::from_secs(60)
    {
        // What it asks about is there: from the number that is odd until the next one.
        let asking = asks.last();
        if asking % 2 == 1 {
            let all = files(&daemon);
            let of_client: Vec<_> = all.difference(&kept).collect();
            while asks.last() == asking && asks.ended().is_none() {
                cut(&of_client, &mut random);
                cuts += 1;
            }
        }
        assert!(daemon.is_running(), "the daemon has ended at request {next}");
        added += 1;
        assert_eq!(count_up(&pool), added);
        std::thread::yield_now();
        next = next.max(asks.last() / 2);
        if let Some(ended) = asks.ended() {
            // By a load of its own, or in a transaction, as it was told.
            let by = ended.signal();
            assert!(by == Some(7) || by == Some(6), "{ended} at request {next}");
            next += 1;
            asks = client(&daemon, next);
        }
    }
    asks.stop();
    assert!(next >= 2 * KINDS, "{next} requests");
    assert_eq!(count_up(&pool), added + 1);
    make_counter(&store.create_pool("later", &PoolOptions::default()).expect("a pool"));
    println!("{next} requests, {cuts} cuts, {added} transactions beside them");
}
