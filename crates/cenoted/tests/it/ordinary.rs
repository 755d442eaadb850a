//! Ordinary use at random: programs and clients of daemons that make pools, write, psync, grow,
//! copy, archive, move, trim and back them up, and that are killed at any moment; and what
//! operators do to the files in between. The next program finds every pool, with every value that
//! was acknowledged.
//!
//! `CENOTE_ORDINARY_ROUNDS` asks for more rounds, `CENOTE_ORDINARY_SEED` for other ones. A failure
//! prints the seed of its round and what was done.

use crate::common::{Actor, Counter, Daemon, add, count, listen, make_counter, say};
use cenote::{
    Access, AtRest, Error, ExportOptions, ImportOptions, Keyring, Locking, MasterKey, OpenOptions,
    Persist, Pool, PoolMode, PoolOptions, Reader, Result, Store,
};
use cenote_testkit::environment::number;
use cenote_testkit::random;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 256 << 10;
/// Most pools of a store.
const POOLS_MAX: usize = 6;

/// What a pool grows by.
#[derive(Persist)]
#[persist(name = "ordinary::Ballast")]
struct Ballast {
    words: [u64; 2048],
}

fn key(number: u8) -> Arc<Keyring> {
    let mut bytes = *b"a key of thirty-two bytes, known";
    bytes[0] = number;
    let key = MasterKey::with_locking(&mut bytes, Locking::IfPossible).expect("a key");
    Arc::new(Keyring::new(key).locking(Locking::IfPossible))
}

/// A pool's kind is the first letter of its name.
fn options(name: &str) -> PoolOptions {
    let (mode, at_rest) = match &name[..1] {
        "d" => (PoolMode::Direct, AtRest::None),
        "s" => (PoolMode::Shadowed, AtRest::None),
        _ => (PoolMode::Shadowed, AtRest::EncryptionIntegrity),
    };
    let key = is_sealed(name).then(|| key(1));
    PoolOptions { mode, at_rest, key, puddle_size: SIZE, ..PoolOptions::default() }
}

fn is_sealed(name: &str) -> bool {
    name.starts_with('p')
}

/// The programs of this store, and its backups.
fn opening(access: Access) -> OpenOptions {
    let key = Some(key(1));
    OpenOptions { access, key, accept_unprotected: true, ..OpenOptions::default() }
}

/// A pool for writing; one that was not used yet gets its counter.
fn used(store: &Store, name: &str) -> Result<Pool> {
    let pool = store.pool(name)?;
    if !has_counter(&pool)? {
        make_counter(&pool);
    }
    Ok(pool)
}

fn has_counter(pool: &Pool) -> Result<bool> {
    Ok(pool.read()?.root::<Counter>()?.is_some())
}

/// Every pool with its value.
fn seen(store: &Store, access: Access, is_client: bool) -> Result<String> {
    let mut seen = Vec::new();
    for info in store.pools() {
        let name = &*info.record.name;
        if is_client && is_sealed(name) {
            continue;
        }
        let pool = store.pool_with(name, access)?;
        let value = if has_counter(&pool)? { count(&pool) } else { 0 };
        seen.push(format!("{name}={value}"));
    }
    Ok(seen.join(" "))
}

/// A child: opens the store, or connects to its daemon, and does what it is told.
pub(crate) fn obey(socket: &Path) {
    let dir = socket.with_file_name("store");
    let is_client = listen() == "client";
    let access = if listen() == "write" { Access::ReadWrite } else { Access::ReadOnly };
    let store = match is_client {
        true => Store::connect(socket),
        false => Store::open_with(&dir, &opening(Access::ReadWrite)),
    };
    let found = store.and_then(|store| Ok((seen(&store, access, is_client)?, store)));
    let store = match found {
        Ok((seen, store)) => {
            say(&format!("ok {seen}"));
            store
        }
        Err(error) => return say(&format!("no {error}")),
    };
    loop {
        let order = listen();
        let words: Vec<&str> = order.split(' ').collect();
        let done = match words[..] {
            ["close"] => return say(&said(store.close())),
            [what, name, other] => act(&store, (what, name, other), &dir),
            _ => return,
        };
        say(&said(done));
    }
}

/// A client has what it has opened once, until it ends.
fn is_in_use(said: &str) -> bool {
    said.starts_with("no ") && said.contains("is in use")
}

fn said(done: Result<()>) -> String {
    done.map_or_else(|error| format!("no {error}"), |()| "ok".into())
}

fn act(store: &Store, (what, name, other): (&str, &str, &str), dir: &Path) -> Result<()> {
    match what {
        "add" => {
            let pool = used(store, name)?;
            let times: u64 = other.parse().expect("a number");
            for _ in 0..times {
                add(&pool);
            }
        }
        "bare" => drop(store.add_pool(name, &options(name))?),
        "make" => make_counter(&store.create_pool(name, &options(name))?),
        "grow" => {
            let pool = used(store, name)?;
            pool.write(|tx| -> Result<()> {
                (0..24).try_for_each(|_| tx.alloc(Ballast { words: [7; 2048] }).map(drop))
            })?;
        }
        "psync" => drop(used(store, name)?.psync()?),
        "collect" => drop(used(store, name)?.collect()?),
        "trim" => drop(used(store, name)?.trim()?),
        "settle" => {
            drop(used(store, name)?.finish_relocation(&mut |_| ControlFlow::Continue(()))?);
        }
        "remove" => store.remove_pool(name)?,
        "clone" => drop(store.clone_pool(name, other)?),
        "share" => drop(store.clone_pool_sharing(name, other)?),
        "randomize" => store.randomize_pool(name)?,
        "rekey" => drop(store.rekey_pool(name, &key(1), &key(1))?),
        "archive" => {
            let (archive, _) = store.export(&[name], Vec::new(), ExportOptions::default())?;
            let names = vec![other.to_owned()];
            store.import(&archive[..], ImportOptions { names, ..ImportOptions::default() })?;
        }
        _ => {
            let target = dir.with_file_name("backup");
            let _ = std::fs::remove_dir_all(&target);
            let _ = store.backup(&target)?;
            // A second store in this process; twice, because it is closed in between.
            for _ in 0..2 {
                let copy = Store::open_with(&target, &opening(Access::ReadWrite))?;
                seen(&copy, Access::ReadWrite, false)?;
                copy.close()?;
            }
        }
    }
    Ok(())
}

/// What is known of a pool: its least and greatest value, and whether it may not be there.
#[derive(Clone, Copy, Debug)]
struct Known {
    least: u64,
    most: u64,
    perhaps: bool,
}

struct Round {
    random: u64,
    daemon: Daemon,
    known: BTreeMap<String, Known>,
    names: u64,
    done: Vec<String>,
    /// Whether the last session closed the store.
    closed: bool,
}

impl Round {
    fn below(&mut self, most: u64) -> u64 {
        random::next(&mut self.random) % most
    }

    fn one_in(&mut self, number: u64) -> bool {
        self.below(number) == 0
    }

    fn note(&mut self, done: String) {
        self.done.push(done);
    }

    /// Compares what a program found with what is known.
    fn compare(&mut self, said: &str, is_client: bool) -> core::result::Result<(), String> {
        let Some(seen) = said.strip_prefix("ok") else { return Err(format!("refused: {said}")) };
        let seen: BTreeMap<&str, u64> = seen
            .split_whitespace()
            .filter_map(|one| one.split_once('='))
            .map(|(name, value)| (name, value.parse().expect("a number")))
            .collect();
        if let Some(name) = seen.keys().find(|name| !self.known.contains_key(**name)) {
            return Err(format!("{name} was removed"));
        }
        let mut wrong = None;
        self.known.retain(|name, known| {
            let value = seen.get(&**name);
            match value {
                None if is_client && is_sealed(name) => return true,
                None if known.perhaps => return false,
                Some(value) if (known.least..=known.most).contains(value) => {
                    *known = Known { least: *value, most: *value, perhaps: false };
                }
                _ => wrong = Some(format!("{name} is {value:?}, not {known:?}")),
            }
            true
        });
        wrong.map_or(Ok(()), Err)
    }

    /// An order that makes sense.
    fn order(&mut self, is_client: bool) -> (&'static str, String, String) {
        let usable = |name: &&String| !is_client || !is_sealed(name);
        let names: Vec<String> = self
            .known
            .iter()
            .filter(|(n, k)| usable(n) && !k.perhaps)
            .map(|(n, _)| n.clone())
            .collect();
        if names.is_empty() || (self.known.len() < POOLS_MAX && self.one_in(4)) {
            self.names += 1;
            let kind = ["d", "s", "p"][self.below(if is_client { 2 } else { 3 }) as usize];
            let what = if self.one_in(2) { "bare" } else { "make" };
            return (what, format!("{kind}{}", self.names), "-".into());
        }
        let name = names[self.below(names.len() as u64) as usize].clone();
        let copies = self.known.len() < POOLS_MAX;
        let what = match self.below(18) {
            0..=5 => "add",
            6 => "grow",
            7 | 8 if !name.starts_with('d') => "psync",
            9 if copies => "clone",
            10 if copies => "archive",
            11 if copies && !is_client => "share",
            12 => "randomize",
            13 if is_sealed(&name) => "rekey",
            13 => "settle",
            14 => "trim",
            15 if !is_client => "collect",
            16 => "remove",
            17 if !is_client => "backup",
            _ => "add",
        };
        self.names += 1;
        let other = match what {
            "add" => (1 + self.below(4)).to_string(),
            "clone" | "archive" | "share" => format!("{}{}", &name[..1], self.names),
            _ => "-".into(),
        };
        (what, name, other)
    }

    /// What is known after an order, of which it is only known that it was given.
    fn given(&mut self, (what, name, other): &(&str, String, String)) {
        let of = self.known.get(name).copied();
        match *what {
            "bare" | "make" => {
                self.known.insert(name.clone(), Known { least: 0, most: 0, perhaps: true });
            }
            "clone" | "archive" | "share" => {
                let of = of.expect("it is known");
                self.known.insert(other.clone(), Known { perhaps: true, ..of });
            }
            "add" => {
                let known = self.known.get_mut(name).expect("it is known");
                known.most += other.parse::<u64>().expect("a number");
            }
            "remove" => self.known.get_mut(name).expect("it is known").perhaps = true,
            _ => {}
        }
    }

    /// The same after it is acknowledged.
    fn acknowledged(&mut self, (what, name, other): &(&str, String, String)) {
        match *what {
            "bare" | "make" => self.known.get_mut(name).expect("given").perhaps = false,
            "clone" | "archive" | "share" => {
                // Of a sealed pool it has the last psync: all that a close of the pool left.
                self.known.get_mut(other).expect("given").perhaps = false;
            }
            "remove" => drop(self.known.remove(name)),
            "add" if is_sealed(name) => {}
            "add" | "psync" => {
                let known = self.known.get_mut(name).expect("it is known");
                known.least = known.most;
            }
            _ => {}
        }
    }

    /// A program that has opened all pools.
    fn begun(&mut self, is_client: bool) -> core::result::Result<Actor, String> {
        let (kind, access) = (
            if is_client { "client" } else { "direct" },
            if self.one_in(2) { "write" } else { "read" },
        );
        self.note(format!("{kind}, looks to {access}"));
        loop {
            let mut actor = Actor::start("ordinary", &self.daemon);
            actor.tell(kind);
            actor.tell(access);
            let said = actor.hear();
            // By a client that was killed, and is being recovered.
            if is_client && is_in_use(&said) {
                actor.kill();
                continue;
            }
            return self.compare(&said, is_client).map(|()| actor);
        }
    }

    /// One program; whether it closed the store, or its connection.
    fn session(&mut self, is_client: bool) -> core::result::Result<bool, String> {
        let mut actor = self.begun(is_client)?;
        for _ in 0..self.below(6) {
            let order = self.order(is_client);
            self.note(format!("  {} {} {}", order.0, order.1, order.2));
            actor.tell(&format!("{} {} {}", order.0, order.1, order.2));
            let before = self.known.clone();
            self.given(&order);
            if self.one_in(10) {
                std::thread::sleep(Duration::from_micros(self.below(4000)));
                self.note("  killed within".into());
                actor.kill();
                return Ok(false);
            }
            let said = actor.hear();
            if is_in_use(&said) {
                self.note("  in use".into());
                self.known = before;
                continue;
            }
            if said != "ok" {
                return Err(format!("{order:?}: {said}"));
            }
            self.acknowledged(&order);
            if is_client && self.one_in(2) {
                // The daemon makes a puddle ahead.
                std::thread::sleep(Duration::from_millis(self.below(12)));
            }
        }
        if self.one_in(3) {
            self.note("  killed".into());
            actor.kill();
            return Ok(false);
        }
        self.note("  close".into());
        actor.tell("close");
        let said = actor.hear();
        if said != "ok" {
            return Err(format!("close: {said}"));
        }
        assert!(actor.ends());
        let psynced = |name: &str| !is_client || !is_sealed(name);
        for (_, known) in self.known.iter_mut().filter(|(name, _)| psynced(name)) {
            known.least = known.most;
        }
        Ok(true)
    }

    /// A daemon with some clients, one after the other.
    fn hosted(&mut self) -> core::result::Result<bool, String> {
        self.note("daemon".into());
        self.daemon.restart();
        for _ in 0..=self.below(2) {
            self.session(true)?;
            // A client that was killed is recovered by and by; the question is a session, too.
            self.daemon.wait_until("no client", |stat| stat.sessions <= 1);
        }
        if self.one_in(3) {
            self.note("daemon killed".into());
            self.daemon.kill();
            return Ok(false);
        }
        self.note("daemon ends".into());
        self.daemon.stop();
        Ok(true)
    }

    /// What an operator does in between, which changes no byte.
    fn between(&mut self) {
        const SCRIPTS: [&str; 8] = [
            r#"chown -R "$(id -u):$(id -g)" "$1""#,
            r#"chmod -R u+rwX,go-w "$1""#,
            r#"find "$1" -exec touch {} +"#,
            r#"rm "$1/lock" && : > "$1/lock""#,
            r#"cp -al "$1" "$1.links" && rm -r "$1.links""#,
            r#"mv "$1/lock" "$1.lock" && mv "$1.lock" "$1/lock""#,
            r#"mv "$1" "$1.away" && mv "$1.away" "$1""#,
            // Of a store that was closed alone.
            r#"cp -a "$1" "$1.copy" && rm -r "$1" && mv "$1.copy" "$1""#,
        ];
        let most = SCRIPTS.len() as u64 - u64::from(!self.closed);
        let script = SCRIPTS[self.below(most) as usize];
        self.note(script.into());
        let dir = self.daemon.store();
        let done = Command::new("sh").args(["-c", script, "sh"]).arg(&dir).status().expect("sh");
        assert!(done.success(), "{script}");
    }

    /// Opens it for reading, which changes nothing.
    fn look(&mut self) -> core::result::Result<(), String> {
        self.note("look".into());
        let store = Store::open_with(self.daemon.store(), &opening(Access::ReadOnly));
        let found = store.and_then(|store| seen(&store, Access::ReadOnly, false));
        match found {
            // A log that is to be replayed, or a pool that is to be traced, waits for a writer.
            Err(Error::HeapOpen { .. } | Error::HeapRecover { .. }) if !self.closed => Ok(()),
            found => {
                let said = found.map_or_else(|e| format!("no {e}"), |seen| format!("ok {seen}"));
                self.compare(&said, false)
            }
        }
    }

    fn run(&mut self) -> core::result::Result<(), String> {
        for _ in 0..3 + self.below(5) {
            self.closed = if self.one_in(2) { self.hosted()? } else { self.session(false)? };
            if self.one_in(3) {
                self.between();
            }
            if self.one_in(4) {
                self.look()?;
            }
        }
        // All that was written is found by a program, and by the one after it.
        for _ in 0..2 {
            self.look()?;
            let mut actor = self.begun(false)?;
            actor.tell("close");
            assert_eq!(actor.hear(), "ok");
            assert!(actor.ends());
            self.closed = true;
        }
        Ok(())
    }
}

#[test]
fn ordinary_use_is_never_refused_and_loses_nothing() {
    let (rounds, seed) = (number("CENOTE_ORDINARY_ROUNDS", 2), number("CENOTE_ORDINARY_SEED", 1));
    let mut failed = Vec::new();
    for seed in seed..seed + rounds {
        let mut round = Round {
            random: seed,
            daemon: Daemon::prepare(&[]),
            known: BTreeMap::new(),
            names: 0,
            done: Vec::new(),
            closed: true,
        };
        if let Err(wrong) = round.run() {
            failed.push(format!("seed {seed}: {wrong}; after\n{}", round.done.join("\n")));
        }
    }
    assert!(failed.is_empty(), "{} of {rounds}:\n{}", failed.len(), failed.join("\n\n"));
}
