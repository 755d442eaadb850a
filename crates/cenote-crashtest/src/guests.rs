//! What a daemon does for its guests, crashed everywhere: grants, log spaces and logs, ends, and decisions about logs that are set aside.
//!
//! A *script* of steps runs on one simulated medium. The guests are played: what they store goes into the puddles that they were granted, by the code that writes
//! logs. Whatever a crash leaves, the next open finds each pool as the last transaction that was over left it, or, if the log that would say so was damaged, set aside with its pool
//! for looking at only; what was acknowledged is there, and nothing is left that nobody knows.
//!
//! *Guests that live* while the daemon is killed are this process itself. Then the next daemon must know them, and leave alone what they are doing, until it is told that they have ended.

use crate::explore::{Tally, When};
use crate::rig::{SMALL_LOG, WINDOW_LEN, pool_options};
use crate::walk::Walk;
use cenote_layout::catalog::{GuestRecord, PuddleRecord};
use cenote_layout::id::Uuid;
use cenote_layout::log::Kind;
use cenote_layout::log_space::{ENTRY_HEAD, LOG_SPACE_ENTRIES_OFFSET, LogSpaceEntry};
use cenote_layout::puddle::{Role, header_space};
use cenote_log::{Body, LogWriter, SegmentSource, format_segment};
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Image, SimMedium, SimOptions};
use cenote_medium::{Durability, MapMode, Medium};
use cenote_store::{Access, Credentials, Damage, FormatOptions, LogDecision, OpenOptions, Store, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;
use zerocopy::IntoBytes;

/// One step of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A daemon opens the store, and knows the guests of before that live.
    Serve,
    /// A pool is made.
    Create(&'static str),
    /// A guest is granted a pool, the first time it is admitted too.
    Grant(u8, &'static str, Access),
    /// A guest gets its log space and a log.
    Log(u8),
    /// A guest does a transaction on a pool.
    Commit(u8, &'static str),
    /// A guest does half of one.
    Half(u8, &'static str),
    /// The log of that is damaged.
    Damage(u8),
    /// What was damaged is brought back.
    Repair(u8),
    /// A guest has ended, `true`: with a goodbye.
    End(u8, bool),
    /// Somebody decides about a guest's logs.
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
    /// Somebody is within one.
    half: bool,
    /// Its log is damaged, or set aside.
    aside: bool,
    /// Somebody has decided, so that it must be traced.
    due: bool,
    /// Somebody may write it, or has and it was not closed since.
    leased: bool,
}

/// What is known to be in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Known {
    pools: BTreeMap<&'static str, Pool>,
    /// Guests that were granted something and have not ended, and their pools.
    guests: BTreeMap<u8, BTreeSet<&'static str>>,
}

/// What half a transaction adds to a pool's words.
const HALF: u64 = 1 << 32;
/// No process has this number.
const DEAD: u32 = 0x7fff_ffff;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn options() -> OpenOptions {
    OpenOptions { log_puddle_size: SMALL_LOG, spare_bytes_max: 0, ..OpenOptions::default() }
}

fn hosting() -> OpenOptions {
    OpenOptions { hosting: true, ..options() }
}

fn root() -> Credentials {
    Credentials { uid: 0, gid: 0, groups: Vec::new() }
}

fn client(guest: u8) -> Uuid {
    Uuid::from_random_bytes([0x40 + guest; 16])
}

fn file(puddle: &PuddleRecord) -> String {
    format!("puddles/{}", String::from_utf8_lossy(&puddle.uuid.to_hex()))
}

/// A log of one segment.
struct Short;

impl SegmentSource for Short {
    fn segment(&mut self, _: u32) -> Result<(u64, Body), Box<dyn std::error::Error + Send + Sync>> {
        Err("the scripts' transactions fit into one segment".into())
    }
}

/// A guest's side.
#[derive(Default)]
struct Guest {
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
    guests: BTreeMap<u8, Guest>,
    known: Known,
}

impl Run {
    fn store(&self) -> Result<Store, String> {
        self.store.clone().ok_or_else(|| "there is no daemon".into())
    }

    fn guest(&mut self, guest: u8) -> &mut Guest {
        self.guests.entry(guest).or_default()
    }

    /// A guest maps what it was given.
    fn map(&mut self, guest: u8, puddle: PuddleRecord) -> Result<(), String> {
        // SAFETY: the daemon has nothing of a guest's puddles mapped, but while it replays; the guest has ended then.
        unsafe { self.sim.map(&file(&puddle), puddle.addr, puddle.size, MapMode::ReadWrite) }
            .map_err(text)?;
        self.guest(guest).mapped.push(puddle);
        Ok(())
    }

    /// Its mappings go.
    fn unmap(&mut self, guest: u8) -> Result<(), String> {
        let guest = self.guests.entry(guest).or_default();
        guest.log = None;
        for puddle in guest.mapped.drain(..) {
            // SAFETY: the guest's own, which does nothing any more.
            unsafe { self.sim.unmap(puddle.addr, puddle.size) }.map_err(text)?;
        }
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Serve => self.store = Some(Store::open(self.sim.clone(), hosting()).map_err(text)?.0),
            Step::Create(name) => {
                self.store()?.create_pool(name, &pool_options(1)).map_err(text)?;
            }
            Step::Grant(guest, name, access) => self.grant(guest, name, access)?,
            Step::Log(guest) => self.log(guest)?,
            Step::Commit(guest, name) => {
                self.change(guest, name, 1)?;
                let log = self.guest(guest).log.as_mut().ok_or("no log")?;
                log.mark_committed();
                log.fence();
                log.finish();
                log.fence();
            }
            Step::Half(guest, name) => self.change(guest, name, HALF)?,
            Step::Damage(guest) | Step::Repair(guest) => {
                let (file, at) = self.guest(guest).entry.clone().ok_or("no entry")?;
                let mut byte = [0];
                self.sim.read_at(&file, at, &mut byte).map_err(text)?;
                self.sim.write_at(&file, at, &[byte[0] ^ 0x10]).map_err(text)?;
                self.sim.sync(&file).map_err(text)?;
            }
            Step::End(guest, well) => {
                self.unmap(guest)?;
                let end = self.store()?.guest_end(client(guest), well).map_err(text)?;
                let aside = self.known.guests.get(&guest).into_iter().flatten();
                let aside = aside.filter(|name| self.known.pools[**name].aside).count() > 0;
                if end.damage.is_empty() == aside {
                    return Err(format!("the end of guest {guest} finds {end:?}"));
                }
            }
            Step::Decide(guest, decision) => {
                self.store()?.decide_logs(&root(), client(guest), decision).map_err(text)?;
            }
            Step::Stop => self.store.take().ok_or("no daemon")?.end_hosting().map_err(text)?,
            Step::Kill => self.stop(),
        }
        self.known = after(&self.known, step);
        Ok(())
    }

    fn grant(&mut self, guest: u8, name: &'static str, access: Access) -> Result<(), String> {
        let store = self.store()?;
        if !self.guests.contains_key(&guest) {
            let pid = if self.alive { std::process::id() } else { DEAD };
            let start_ticks = cenote_sys::process::start_ticks(pid).unwrap_or(7);
            let record = GuestRecord { client: client(guest), pid, start_ticks, uid: 0, gid: 0 };
            store.admit(record).map_err(text)?;
        }
        let grant = store.guest_open(client(guest), &root(), name, access).map_err(text)?;
        let (puddles, writable) = store.guest_puddles(client(guest), grant.record.id, 0, 1).map_err(text)?;
        let puddle = *puddles.first().ok_or("a pool without a puddle")?;
        let new = self.guest(guest).pools.insert(name, puddle).is_none();
        if writable && new && access == Access::ReadWrite {
            self.map(guest, puddle)?;
        }
        Ok(())
    }

    fn log(&mut self, guest: u8) -> Result<(), String> {
        let store = self.store()?;
        let persistence = store.persistence();
        let space = store.guest_log(client(guest), Role::LogSpace, 0).map_err(text)?;
        let log = store.guest_log(client(guest), Role::Log, SMALL_LOG).map_err(text)?;
        self.map(guest, space)?;
        self.map(guest, log)?;
        let head = header_space(log.size);
        let body = Body { ptr: (log.addr + head) as *mut u8, len: log.size - head };
        let log_id = 0x1000 + u64::from(guest);
        let entry = LogSpaceEntry::new(ENTRY_HEAD, log.uuid, log.addr, log_id, 0);
        // SAFETY: mapped just now, by the guest alone; the first entry lies in the log space.
        unsafe {
            format_segment(body, client(guest), log_id, 0, persistence);
            let at = (space.addr + header_space(space.size) + LOG_SPACE_ENTRIES_OFFSET) as *mut u8;
            let unnamed = LogSpaceEntry { state: 0, ..entry };
            at.copy_from_nonoverlapping(unnamed.as_bytes().as_ptr(), size_of::<LogSpaceEntry>());
            persistence.persist(at, size_of::<LogSpaceEntry>());
            at.copy_from_nonoverlapping(entry.as_bytes().as_ptr(), size_of::<LogSpaceEntry>());
            persistence.persist(at, size_of::<LogSpaceEntry>());
            let writer = LogWriter::attach(body, persistence, Box::new(Short)).map_err(text)?;
            self.guest(guest).log = Some(writer);
        }
        Ok(())
    }

    /// Adds to the two words at a pool's end, each after its undo entry.
    fn change(&mut self, guest: u8, name: &'static str, by: u64) -> Result<(), String> {
        let persistence = self.store()?.persistence();
        let guest = self.guest(guest);
        let pool = *guest.pools.get(name).ok_or("not granted")?;
        let log = guest.log.as_mut().ok_or("no log")?;
        for word in 1..=2 {
            let at = (pool.addr + pool.size - 8 * word) as *mut u64;
            // SAFETY: a word of a puddle that this guest has mapped for writing.
            unsafe {
                let data = log.append(Kind::Undo, at as u64, 8, at.cast()).map_err(text)?;
                log.fence();
                if word == 1 {
                    let puddle =
                        guest.mapped.iter().find(|p| (p.addr..p.addr + p.size).contains(&(data as u64)));
                    guest.entry = puddle.map(|puddle| (file(puddle), data as u64 - puddle.addr));
                }
                at.write(at.read() + by);
                persistence.persist(at.cast(), 8);
            }
        }
        Ok(())
    }

    fn stop(&mut self) {
        for guest in self.guests.values_mut() {
            (guest.log, guest.mapped) = (None, Vec::new());
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

fn after(known: &Known, step: Step) -> Known {
    let mut known = known.clone();
    let pools_of = |known: &mut Known, guest: u8, change: &dyn Fn(&mut Pool)| {
        for name in known.guests.get(&guest).cloned().unwrap_or_default() {
            change(known.pools.entry(name).or_default());
        }
    };
    match step {
        Step::Create(name) => {
            known.pools.insert(name, Pool::default());
        }
        Step::Grant(guest, name, access) => {
            known.guests.entry(guest).or_default().insert(name);
            known.pools.entry(name).or_default().leased |= access != Access::ReadOnly;
        }
        Step::Commit(_, name) => known.pools.entry(name).or_default().value += 1,
        Step::Half(_, name) => known.pools.entry(name).or_default().half = true,
        Step::Damage(guest) => pools_of(&mut known, guest, &|pool| pool.aside = true),
        Step::End(guest, _) => {
            pools_of(&mut known, guest, &|pool| pool.half &= pool.aside);
            if !known.guests.get(&guest).into_iter().flatten().any(|name| known.pools[name].aside) {
                known.guests.remove(&guest);
            }
        }
        Step::Decide(guest, decision) => {
            pools_of(&mut known, guest, &|pool| {
                if decision == LogDecision::Discard && pool.half {
                    pool.value += HALF;
                }
                (pool.half, pool.aside, pool.due) = (false, false, true);
            });
            known.guests.remove(&guest);
        }
        Step::Stop => known.pools.values_mut().for_each(|pool| pool.leased = false),
        Step::Serve | Step::Log(_) | Step::Repair(_) | Step::Kill => {}
    }
    known
}

/// Runs a script, and checks every crash of every step; one image in `recovery_every` has its recovery crashed as well. `alive`: the guests are a process that lives.
///
/// # Errors
/// The first thing that does not hold.
pub fn run(
    script: &[Step],
    level: Durability,
    window: u64,
    alive: bool,
    (bug, when): (Bug, When),
    recovery_every: u64,
) -> Result<Tally, String> {
    let began = Instant::now();
    let mut walk = Walk::new(recovery_every);
    for (number, &step) in script.iter().enumerate() {
        let sim = SimMedium::new(SimOptions::new(level));
        let format = FormatOptions { window_base: Some(window), window_len: WINDOW_LEN, uuid: None };
        cenote_store::format(sim.clone(), &format).map_err(text)?;
        let (store, guests, known) = (None, BTreeMap::new(), Known::default());
        let mut run = Run { sim: sim.clone(), alive, store, guests, known };
        let mut before = Known::default();
        plant(if when == When::Recovering { Bug::None } else { bug });
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
        if let Step::Decide(_, LogDecision::Apply) = step {
            // The log has lost its mark, and whoever opens the store replays it as any other.
            let mut replayed = run.known.clone();
            replayed.pools.values_mut().for_each(|pool| pool.due = false);
            in_flight.push(replayed);
        }
        let acknowledged = [run.known.clone()];
        run.stop();
        walk.tally.histories += 1;
        let check = Check { level, alive };
        plant(if when == When::Running { Bug::None } else { bug });
        let walked = (1..=events).try_for_each(|event| {
            let state = sim.state_after(event);
            let over = state.note() == 1;
            let may: &[Known] = if over { &acknowledged } else { &in_flight };
            let mut requirement = DefaultHasher::new();
            may.hash(&mut requirement);
            let look = |image: &Image, crashed: Option<&Image>| {
                let lost = crashed.is_some_and(|crashed| check.loses(crashed));
                let lives = alive && crashed.is_none_or(|crashed| crashed.kind() == CrashKind::Process);
                check.image(image, may, lost, lives)
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

struct Check {
    level: Durability,
    alive: bool,
}

impl Check {
    /// Whether open pools may be torn.
    fn loses(&self, image: &Image) -> bool {
        self.level == Durability::Process && image.kind() == CrashKind::Power
    }

    /// The next open of an image, and what it finds; `lost` if pools may have been torn before, `lives` if guests that were this process live on.
    fn image(&self, image: &Image, may: &[Known], lost: bool, lives: bool) -> Result<(), String> {
        let sim = SimMedium::from_image_unrecorded(image);
        let lost = lost || self.loses(image);
        let lives = lives && image.kind() == CrashKind::Process;
        let opens = if self.alive { hosting() } else { options() };
        let (store, report) = Store::open(sim.clone(), opens).map_err(|e| format!("open: {e}"))?;
        let mut damage = report.damage;
        if lives {
            let there: BTreeSet<Uuid> = store.guests().iter().map(|guest| guest.client).collect();
            let known = |k: &Known| {
                k.guests
                    .keys()
                    .all(|guest| there.contains(&client(*guest)) || k.pools.values().any(|p| p.aside))
            };
            if !may.iter().any(known) {
                return Err(format!("guests that live are not known: {there:?}, {may:?}"));
            }
            for guest in there {
                damage.extend(store.guest_end(guest, false).map_err(|e| format!("end: {e}"))?.damage);
            }
        }
        let found = may.iter().map(|known| self.fits(&sim, &store, &damage, known, lost));
        let mut why = Vec::new();
        for fits in found {
            match fits {
                Ok(()) => why.clear(),
                Err(what) => {
                    why.push(what);
                    continue;
                }
            }
            break;
        }
        if !why.is_empty() {
            return Err(why.join("; or "));
        }
        let files = sim.list("puddles").map_err(text)?.len() as u64;
        if files != store.info().puddles {
            return Err(format!("{files} puddle files, {} records", store.info().puddles));
        }
        let undecided = !store.set_aside().map_err(text)?.is_empty();
        store.end_hosting().map_err(|e| format!("close: {e}"))?;
        drop(store);
        let (store, report) = Store::open(sim, options()).map_err(|e| format!("open again: {e}"))?;
        let logs = report.damage.iter().all(|damage| matches!(damage, Damage::Log { .. }));
        let fine =
            report.clean && report.orphans_removed == 0 && logs && report.damage.is_empty() != undecided;
        store.abandon();
        if fine { Ok(()) } else { Err(format!("the second open finds {report:?}")) }
    }

    /// Whether a store is as this says.
    fn fits(
        &self,
        sim: &SimMedium,
        store: &Store,
        damage: &[Damage],
        known: &Known,
        lost: bool,
    ) -> Result<(), String> {
        let names: BTreeSet<String> = store.pools().into_iter().map(|pool| pool.record.name).collect();
        if !names.iter().map(String::as_str).eq(known.pools.keys().copied()) {
            return Err(format!("the pools are {names:?}"));
        }
        let aside = known.pools.values().any(|pool| pool.aside);
        if damage.is_empty() == aside && !lost {
            return Err(format!("a log is {}set aside: {damage:?}", if aside { "not " } else { "" }));
        }
        let due = store.pools_due();
        for (name, pool) in &known.pools {
            let handle = match store.open_pool(name, Access::ReadOnly) {
                Err(StoreError::PoolNotCovered { .. }) if lost && pool.leased => continue,
                other => other.map_err(|e| format!("pool {name}: {e}"))?,
            };
            let puddle = handle.puddles().pop().ok_or("no puddle")?;
            let mut words = [0u64; 2];
            let name_of = format!("puddles/{}", String::from_utf8_lossy(&puddle.uuid().to_hex()));
            sim.read_at(&name_of, puddle.size() - 16, words.as_mut_bytes()).map_err(text)?;
            let value = pool.value + if pool.aside && pool.half { HALF } else { 0 };
            // A log that is set aside says nothing of how far its transaction had come on the medium.
            let half = pool.aside && pool.half;
            if words != [value; 2] && !(half && words.iter().all(|w| *w == value || *w + HALF == value)) {
                return Err(format!("pool {name} holds {words:x?}, not {value:x}"));
            }
            if pool.due && !due.contains(&handle.id()) {
                return Err(format!("pool {name} is not to be traced"));
            }
            drop(handle);
            let writable = store.open_pool(name, Access::ReadWrite);
            if matches!(writable, Err(StoreError::PoolLogDamaged { .. })) != pool.aside {
                return Err(format!("pool {name} for writing: {writable:?}"));
            }
        }
        Ok(())
    }
}
