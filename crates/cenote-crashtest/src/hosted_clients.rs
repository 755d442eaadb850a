//! Crashes everywhere what a daemon does for its clients: grants, log spaces and logs, ends, and
//! decisions about logs that are set aside.
//!
//! A *script* of steps runs on one simulated medium. The test plays the clients: the code that
//! writes logs stores into the puddles that they were granted. After any crash the next open
//!
//! * finds each pool as the last transaction that was over left it; or, if its log was damaged,
//!   sets the log aside and opens its pool to look;
//! * has all that was acknowledged;
//! * leaves no file that the store does not know.
//!
//! *Pools in shadowed mode* are stored into without transactions, and psynced as a client does it:
//! by a transfer. After a loss of power each is as its last psync left it, those of one psync
//! together (states P and C of the paper; D, R and W where the journal has none of it yet). After a
//! crash of processes it has all that was stored. The journal is small, so its halves are reused
//! often.
//!
//! *Clients that live* while the daemon is killed are this process. The next daemon must know them
//! and leave their pools alone until it is told that they have ended.

mod check;

use self::check::Check;
use crate::explore::{ExploreTally, ExploreWhen};
use crate::rig::{SMALL_LOG, WINDOW_LEN, pool_options};
use crate::tier::Sampled;
use crate::walk::Walk;
use cenote_journal::Transfer;
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::{HostedClientRecord, PoolMode, PuddleRecord};
use cenote_layout::id::Uuid;
use cenote_layout::log::EntryKind;
use cenote_layout::log_space::{ENTRY_HEAD, LOG_SPACE_ENTRIES_OFFSET, LogSpaceEntry};
use cenote_layout::puddle::{Role, header_space};
use cenote_log::{Body, LogWriter, SegmentSource, format_segment};
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Image, SimMedium, SimOptions};
use cenote_medium::{Durability, MapMode, Medium, MediumError, Operation};
use cenote_store::{
    Access, Credentials, FormatOptions, LogDecision, OpenOptions, PoolOptions, Store, StoreError,
};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;
use zerocopy::IntoBytes;

/// One step of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientStep {
    /// A daemon opens the store, and knows the clients of before that live.
    Serve,
    /// A pool is made.
    Create(&'static str),
    /// One in shadowed mode.
    CreateShadowed(&'static str),
    /// A client stores a value into pools in shadowed mode.
    Store(u8, &'static [&'static str], u64),
    /// It psyncs them together.
    Psync(u8, &'static [&'static str]),
    /// What was psynced of a pool is brought to its primary, for a client that looks at that.
    Settle(u8, &'static str),
    /// A client is granted a pool, the first time it is admitted too.
    Grant(u8, &'static str, Access),
    /// A client gets its log space and a log.
    Log(u8),
    /// A client does a transaction on a pool.
    Commit(u8, &'static str),
    /// A client does half of one.
    Half(u8, &'static str),
    /// The log of that is damaged.
    Damage(u8),
    /// What was damaged is brought back.
    Repair(u8),
    /// A client has ended, `true`: with a goodbye.
    End(u8, bool),
    /// An operator decides about a client's logs.
    Decide(u8, LogDecision),
    /// The daemon ends by itself.
    Stop,
    /// It is killed.
    Kill,
}

/// What is known of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Pool {
    /// Transactions that are over.
    value: u64,
    /// A client is within one.
    half: bool,
    /// Its log is damaged, or set aside.
    aside: bool,
    /// Its logs were discarded.
    torn: bool,
    /// An operator has decided, so that it must be traced.
    due: bool,
    /// A client may write it, or has and it was not closed since.
    leased: bool,
    /// What it holds, if it is in shadowed mode.
    shadowed: Option<Shadowed>,
}

/// Values of a pool in shadowed mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Shadowed {
    /// What was stored last; and before, which some words may hold as long as the next value is
    /// being stored.
    stored: u64,
    before: u64,
    /// What the last psync took.
    psynced: u64,
}

/// What is known to be in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct KnownClients {
    pools: BTreeMap<&'static str, Pool>,
    /// Clients that were granted something and have not ended, and their pools.
    hosted_clients: BTreeMap<u8, BTreeSet<&'static str>>,
}

/// What half a transaction adds to a pool's words.
const HALF: u64 = 1 << 32;
/// No process has this number.
const DEAD: u32 = 0x7fff_ffff;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn options() -> OpenOptions {
    let journal_half_len = 2 * PAGE_SIZE;
    OpenOptions {
        log_puddle_size: SMALL_LOG,
        spare_bytes_max: 0,
        journal_half_len,
        ..OpenOptions::default()
    }
}

/// Where a value is kept in a puddle of a pool in shadowed mode: in two pages, which do not lie
/// side by side.
fn places(size: u64) -> [u64; 2] {
    [size - 8, size - 2 * PAGE_SIZE - 8]
}

fn hosting() -> OpenOptions {
    // SAFETY: pools are opened by no process here: their files are read.
    let hosting = Some(unsafe { cenote_store::Hosting::new() });
    OpenOptions { hosting, ..options() }
}

fn root() -> Credentials {
    Credentials { uid: 0, gid: 0, groups: Vec::new() }
}

fn client(hosted_client: u8) -> Uuid {
    Uuid::from_random_bytes([0x40 + hosted_client; 16])
}

fn file(puddle: &PuddleRecord) -> String {
    file_in("puddles", puddle.uuid)
}

fn file_in(dir: &str, uuid: Uuid) -> String {
    format!("{dir}/{}", String::from_utf8_lossy(&uuid.to_hex()))
}

/// A log of one segment.
struct Short;

impl SegmentSource for Short {
    fn segment(&mut self, _: u32) -> Result<(u64, Body), Box<dyn std::error::Error + Send + Sync>> {
        Err("the scripts' transactions fit into one segment".into())
    }
}

/// A client's side.
#[derive(Default)]
struct HostedClient {
    mapped: Vec<PuddleRecord>,
    pools: BTreeMap<&'static str, PuddleRecord>,
    log: Option<LogWriter>,
    /// Where the first entry of half a transaction has its data: file and offset.
    entry: Option<(String, u64)>,
}

struct Run {
    sim: Arc<SimMedium>,
    alive: bool,
    store: Option<Store>,
    hosted_clients: BTreeMap<u8, HostedClient>,
    known: KnownClients,
}

impl Run {
    fn store(&self) -> Result<Store, String> {
        self.store.clone().ok_or_else(|| "there is no daemon".into())
    }

    fn hosted_client(&mut self, hosted_client: u8) -> &mut HostedClient {
        self.hosted_clients.entry(hosted_client).or_default()
    }

    /// A client maps what it was given.
    fn map(&mut self, hosted_client: u8, puddle: PuddleRecord) -> Result<(), String> {
        // SAFETY: the daemon has nothing of a client's puddles mapped, but while it replays; the
        // client has ended then.
        unsafe { self.sim.map(&file(&puddle), puddle.addr, puddle.size, MapMode::ReadWrite) }
            .map_err(text)?;
        self.hosted_client(hosted_client).mapped.push(puddle);
        Ok(())
    }

    /// Its mappings go.
    fn unmap(&mut self, hosted_client: u8) -> Result<(), String> {
        let hosted_client = self.hosted_clients.entry(hosted_client).or_default();
        hosted_client.log = None;
        for puddle in hosted_client.mapped.drain(..) {
            // SAFETY: the client's own, which does nothing any more.
            unsafe { self.sim.unmap(puddle.addr, puddle.size) }.map_err(text)?;
        }
        Ok(())
    }

    fn step(&mut self, step: ClientStep) -> Result<(), String> {
        match step {
            ClientStep::Serve => {
                self.store = Some(Store::open(self.sim.clone(), hosting()).map_err(text)?.0)
            }
            ClientStep::Create(name) => {
                self.store()?.create_pool(name, &pool_options(1)).map_err(text)?;
            }
            ClientStep::CreateShadowed(name) => {
                let options = PoolOptions { mode: PoolMode::Shadowed, ..pool_options(1) };
                self.store()?.create_pool(name, &options).map_err(text)?;
            }
            ClientStep::Store(hosted_client, names, value) => {
                for name in names {
                    let pool =
                        *self.hosted_client(hosted_client).pools.get(name).ok_or("not granted")?;
                    // SAFETY: words of a puddle that this client has mapped for writing.
                    places(pool.size)
                        .iter()
                        .for_each(|at| unsafe { ((pool.addr + at) as *mut u64).write(value) });
                }
            }
            ClientStep::Psync(hosted_client, names) => self.psync(hosted_client, names)?,
            ClientStep::Settle(hosted_client, name) => {
                let pool =
                    *self.hosted_client(hosted_client).pools.get(name).ok_or("not granted")?;
                // The simulated medium has no descriptors to give away; everything before that is
                // done.
                match self.store()?.client_primary(client(hosted_client), &pool) {
                    Err(StoreError::Medium(MediumError::Io { op: Operation::Examine, .. })) => {}
                    other => drop(other.map_err(text)?),
                }
            }
            ClientStep::Grant(hosted_client, name, access) => {
                self.grant(hosted_client, name, access)?
            }
            ClientStep::Log(hosted_client) => self.log(hosted_client)?,
            ClientStep::Commit(hosted_client, name) => {
                self.change(hosted_client, name, 1)?;
                let log = self.hosted_client(hosted_client).log.as_mut().ok_or("no log")?;
                log.mark_committed();
                log.fence();
                log.finish();
                log.fence();
            }
            ClientStep::Half(hosted_client, name) => self.change(hosted_client, name, HALF)?,
            ClientStep::Damage(hosted_client) | ClientStep::Repair(hosted_client) => {
                self.flip(hosted_client)?;
            }
            ClientStep::End(hosted_client, well) => {
                self.unmap(hosted_client)?;
                let end = self.store()?.client_end(client(hosted_client), well).map_err(text)?;
                let aside = self.known.hosted_clients.get(&hosted_client).into_iter().flatten();
                let aside = aside.filter(|name| self.known.pools[**name].aside).count() > 0;
                if end.damage.is_empty() == aside {
                    return Err(format!("the end of client {hosted_client} finds {end:?}"));
                }
            }
            ClientStep::Decide(hosted_client, decision) => {
                let store = self.store()?;
                store.decide_logs(&root(), client(hosted_client), decision).map_err(text)?;
            }
            ClientStep::Stop => {
                self.store.take().ok_or("no daemon")?.end_hosting().map_err(text)?
            }
            ClientStep::Kill => self.stop(),
        }
        self.known = after(&self.known, step);
        Ok(())
    }

    /// Flips a bit of a client's log, or flips it back.
    fn flip(&mut self, hosted_client: u8) -> Result<(), String> {
        let (file, at) = self.hosted_client(hosted_client).entry.clone().ok_or("no entry")?;
        let mut byte = [0];
        self.sim.read_at(&file, at, &mut byte).map_err(text)?;
        // SAFETY: a client's log, of which no reference is held here.
        unsafe { self.sim.write_at(&file, at, &[byte[0] ^ 0x10]) }.map_err(text)?;
        self.sim.sync(&file).map_err(text)
    }

    fn grant(
        &mut self,
        hosted_client: u8,
        name: &'static str,
        access: Access,
    ) -> Result<(), String> {
        let store = self.store()?;
        if !self.hosted_clients.contains_key(&hosted_client) {
            let pid = if self.alive { std::process::id() } else { DEAD };
            let start_ticks = cenote_sys::process::start_ticks(pid).unwrap_or(7);
            let record = HostedClientRecord {
                client: client(hosted_client),
                pid,
                start_ticks,
                uid: 0,
                gid: 0,
            };
            store.admit(record).map_err(text)?;
        }
        let grant =
            store.client_open(client(hosted_client), &root(), name, access).map_err(text)?;
        let (puddles, writable) =
            store.client_puddles(client(hosted_client), grant.record.id, 0, 1).map_err(text)?;
        let puddle = *puddles.first().ok_or("a pool without a puddle")?;
        let new = self.hosted_client(hosted_client).pools.insert(name, puddle).is_none();
        if writable && new && access == Access::ReadWrite {
            self.map(hosted_client, puddle)?;
        }
        Ok(())
    }

    fn log(&mut self, hosted_client: u8) -> Result<(), String> {
        let store = self.store()?;
        let persistence = store.persistence();
        let space = store.client_log(client(hosted_client), Role::LogSpace, 0).map_err(text)?;
        let log = store.client_log(client(hosted_client), Role::Log, SMALL_LOG).map_err(text)?;
        self.map(hosted_client, space)?;
        self.map(hosted_client, log)?;
        let head = header_space(log.size);
        let body = Body::new((log.addr + head) as *mut u8, log.size - head);
        let log_id = 0x1000 + u64::from(hosted_client);
        let entry = LogSpaceEntry::new(ENTRY_HEAD, log.uuid, log.addr, log_id, 0);
        // SAFETY: mapped just now, by the client alone; the first entry lies in the log space.
        unsafe {
            format_segment(body, client(hosted_client), log_id, 0, persistence);
            let at = (space.addr + header_space(space.size) + LOG_SPACE_ENTRIES_OFFSET) as *mut u8;
            let unnamed = LogSpaceEntry { state: 0, ..entry };
            at.copy_from_nonoverlapping(unnamed.as_bytes().as_ptr(), size_of::<LogSpaceEntry>());
            persistence.persist(at, size_of::<LogSpaceEntry>());
            at.copy_from_nonoverlapping(entry.as_bytes().as_ptr(), size_of::<LogSpaceEntry>());
            persistence.persist(at, size_of::<LogSpaceEntry>());
            let writer = LogWriter::attach(body, persistence, Box::new(Short)).map_err(text)?;
            self.hosted_client(hosted_client).log = Some(writer);
        }
        Ok(())
    }

    /// Adds to the two words at a pool's end, each after its undo entry.
    fn change(&mut self, hosted_client: u8, name: &'static str, by: u64) -> Result<(), String> {
        let persistence = self.store()?.persistence();
        let hosted_client = self.hosted_client(hosted_client);
        let pool = *hosted_client.pools.get(name).ok_or("not granted")?;
        let log = hosted_client.log.as_mut().ok_or("no log")?;
        for word in 1..=2 {
            let at = (pool.addr + pool.size - 8 * word) as *mut u64;
            // SAFETY: a word of a puddle that this client has mapped for writing.
            unsafe {
                let data = log.append(EntryKind::Undo, at as u64, 8, at.cast()).map_err(text)?;
                log.fence();
                if word == 1 {
                    let puddle = hosted_client
                        .mapped
                        .iter()
                        .find(|p| (p.addr..p.addr + p.size).contains(&(data as u64)));
                    hosted_client.entry =
                        puddle.map(|puddle| (file(puddle), data as u64 - puddle.addr));
                }
                at.write(at.read() + by);
                persistence.persist(at.cast(), 8);
            }
        }
        Ok(())
    }

    /// Psyncs pools as a client does: whole pages, in a transfer.
    fn psync(&mut self, hosted_client: u8, names: &[&'static str]) -> Result<(), String> {
        let store = self.store()?;
        let mut transfer = Transfer::new(2 * names.len()).map_err(text)?;
        let mut puddles = Vec::new();
        for (object, name) in names.iter().enumerate() {
            let pool = *self.hosted_client(hosted_client).pools.get(name).ok_or("not granted")?;
            let pages = places(pool.size).map(|at| at / PAGE_SIZE..at / PAGE_SIZE + 1);
            transfer.add_pages(object as u32, pool.addr as usize, &pages).map_err(text)?;
            puddles.push(pool.uuid);
        }
        let (file, runs) = transfer.finish().map_err(text)?;
        store.client_psync(client(hosted_client), &puddles, (&file, runs)).map(drop).map_err(text)
    }

    fn stop(&mut self) {
        for hosted_client in self.hosted_clients.values_mut() {
            (hosted_client.log, hosted_client.mapped) = (None, Vec::new());
        }
        if let Some(store) = self.store.take() {
            store.abandon();
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stop();
    }
}

impl KnownClients {
    /// Changes the pools of a client.
    fn change_pools(&mut self, hosted_client: u8, change: impl Fn(&mut Pool)) {
        for name in self.hosted_clients.get(&hosted_client).cloned().unwrap_or_default() {
            change(self.pools.entry(name).or_default());
        }
    }

    fn change_shadowed(&mut self, names: &[&'static str], change: impl Fn(&mut Shadowed)) {
        for name in names {
            if let Some(shadowed) = self.pools.get_mut(name).and_then(|p| p.shadowed.as_mut()) {
                change(shadowed);
            }
        }
    }
}

fn after(known: &KnownClients, step: ClientStep) -> KnownClients {
    let mut known = known.clone();
    for shadowed in known.pools.values_mut().filter_map(|pool| pool.shadowed.as_mut()) {
        shadowed.before = shadowed.stored;
    }
    match step {
        ClientStep::Create(name) => {
            known.pools.insert(name, Pool::default());
        }
        ClientStep::CreateShadowed(name) => {
            known
                .pools
                .insert(name, Pool { shadowed: Some(Shadowed::default()), ..Pool::default() });
        }
        ClientStep::Store(_, names, value) => {
            known.change_shadowed(names, |pool| pool.stored = value)
        }
        ClientStep::Psync(_, names) => {
            known.change_shadowed(names, |pool| pool.psynced = pool.stored)
        }
        ClientStep::Grant(hosted_client, name, access) => {
            known.hosted_clients.entry(hosted_client).or_default().insert(name);
            known.pools.entry(name).or_default().leased |= access != Access::ReadOnly;
        }
        ClientStep::Commit(_, name) => known.pools.entry(name).or_default().value += 1,
        ClientStep::Half(_, name) => known.pools.entry(name).or_default().half = true,
        ClientStep::Damage(hosted_client) => {
            known.change_pools(hosted_client, |pool| pool.aside = true)
        }
        ClientStep::End(hosted_client, _) => {
            known.change_pools(hosted_client, |pool| pool.half &= pool.aside);
            if !known
                .hosted_clients
                .get(&hosted_client)
                .into_iter()
                .flatten()
                .any(|name| known.pools[name].aside)
            {
                known.hosted_clients.remove(&hosted_client);
            }
        }
        ClientStep::Decide(hosted_client, decision) => {
            known.change_pools(hosted_client, |pool| {
                if decision == LogDecision::Discard && pool.half {
                    pool.value += HALF;
                }
                pool.torn |= decision == LogDecision::Discard;
                (pool.half, pool.aside, pool.due) = (false, false, true);
            });
            known.hosted_clients.remove(&hosted_client);
        }
        ClientStep::Stop => known.pools.values_mut().for_each(|pool| pool.leased = false),
        ClientStep::Serve
        | ClientStep::Log(_)
        | ClientStep::Repair(_)
        | ClientStep::Kill
        | ClientStep::Settle(..) => {}
    }
    known
}

/// Runs a script, and checks every crash of every step; those of `recoveries` have their
/// recovery crashed as well. `alive`: the clients are a process that lives.
///
/// # Errors
/// The first thing that does not hold.
pub fn run(
    script: &[ClientStep],
    level: Durability,
    window: u64,
    alive: bool,
    (bug, when): (Bug, ExploreWhen),
    recoveries: Sampled,
) -> Result<ExploreTally, String> {
    let began = Instant::now();
    let mut walk = Walk::new(recoveries);
    if script.iter().any(|step| matches!(step, ClientStep::CreateShadowed(_))) {
        // The sectors of a record are some ten units, besides words of shadows, which are void.
        walk.exhaustive = 7;
    }
    for (number, &step) in script.iter().enumerate() {
        let sim = SimMedium::new(SimOptions::new(level));
        let format =
            FormatOptions { window_base: Some(window), window_len: WINDOW_LEN, uuid: None };
        cenote_store::format(sim.clone(), &format).map_err(text)?;
        let (store, hosted_clients, known) = (None, BTreeMap::new(), KnownClients::default());
        let mut run = Run { sim: sim.clone(), alive, store, hosted_clients, known };
        let mut before = KnownClients::default();
        plant(if when == ExploreWhen::Recovering { Bug::None } else { bug });
        let done = script[..=number].iter().try_for_each(|&step| {
            before = run.known.clone();
            sim.forget_trace();
            sim.note(0);
            run.step(step)
        });
        plant(Bug::None);
        let named = |what: String| format!("{step:?} (step {number}): {what}");
        done.map_err(named)?;
        sim.note(1);
        let events = sim.trace_len();
        let mut in_flight = vec![before, run.known.clone()];
        if let ClientStep::Decide(_, LogDecision::Apply) = step {
            // The log has lost its mark, and the next open replays it as any other.
            let mut replayed = run.known.clone();
            replayed.pools.values_mut().for_each(|pool| pool.due = false);
            in_flight.push(replayed);
        }
        let acknowledged = [run.known.clone()];
        run.stop();
        walk.tally.histories += 1;
        let check = Check { level, alive };
        plant(if when == ExploreWhen::Running { Bug::None } else { bug });
        let walked = (1..=events).try_for_each(|event| {
            let state = sim.state_after(event);
            let over = state.note() == 1;
            let may: &[KnownClients] = if over { &acknowledged } else { &in_flight };
            let mut requirement = DefaultHasher::new();
            may.hash(&mut requirement);
            let look = |image: &Image, crashed: Option<&Image>| {
                let lost = crashed.is_some_and(|crashed| check.loses(crashed));
                let power = crashed.is_some_and(|crashed| crashed.kind() == CrashKind::Power);
                check.image(image, may, (lost, power), alive && !power)
            };
            walk.state(&state, requirement.finish(), &look, &|sim| {
                Store::open(sim.clone(), hosting()).map(|(store, _)| store.abandon()).is_ok()
            })
        });
        plant(Bug::None);
        walked.map_err(named)?;
    }
    walk.tally.took = began.elapsed();
    Ok(walk.tally)
}

/// The values of a pool in shadowed mode in one of its files.
fn words(sim: &SimMedium, name: &str, size: u64) -> Result<[u64; 2], String> {
    let mut words = [0u64; 2];
    for (word, at) in words.iter_mut().zip(places(size)) {
        sim.read_at(name, at, word.as_mut_bytes()).map_err(text)?;
    }
    Ok(words)
}
