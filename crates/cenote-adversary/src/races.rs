//! Races of processes for one store: they open, create, write, remove, check, close and are killed,
//! at random.
//!
//! Each writes what it does to a *witness*, a file outside the store that all of them append to.
//! What is judged from it, line by line:
//!
//! * **One writer at a time.** A writer writes lines only between the end of its open and the
//!   beginning of its close. So once the lines of one session have begun, no line of an earlier one
//!   may follow. (Appends are atomic and ordered, and no clock is needed.)
//! * **Nothing acknowledged is lost.** A line says what is tried, another that it is done; each
//!   session begins with a line of what it found. That must be what was done before, except that
//!   the last thing that a killed session tried may be done or not.
//! * **Errors.** The only error is that the store is in use; everything else ends the session with
//!   a line that begins with `bad`.

use crate::child::{self, Child};
use crate::round::{Outcome, Round, Trouble, found, require};
use cenote::{Access, Error, OpenOptions, Persist, Pool, PoolOptions, Reader, Result, Store};
use cenote_fuzz::Random;
use cenote_store::OpenError;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Processes at a time.
const RACERS: usize = 4;
/// Kills of one round.
const KILLS: u64 = 25;
/// Names of pools.
const NAMES: [&str; 4] = ["ash", "birch", "cedar", "dogwood"];

#[derive(Persist)]
#[persist(name = "adversary::Count")]
struct Count {
    count: u64,
    twice: u64,
}

/// Pools with what each has counted.
type Pools = BTreeMap<String, u64>;

/// A racer: what it needs all the time.
struct Racer {
    dir: PathBuf,
    random: Random,
    witness: File,
    session: String,
}

impl Racer {
    fn below(&mut self, n: u64) -> u64 {
        self.random.next_word() % n
    }

    /// One line of this session, in one write.
    fn tell(&mut self, line: &str) -> Outcome {
        let line = format!("{} {line}\n", self.session);
        Ok(self.witness.write_all(line.as_bytes())?)
    }
}

/// A child: `STORE WITNESS SEED COPIES`.
pub(crate) fn racer(args: &[String]) -> Outcome {
    let seed = child::number(args, 2)?;
    let witness = File::options().append(true).open(&args[1])?;
    let mut racer = Racer {
        dir: PathBuf::from(&args[0]),
        random: Random(seed),
        witness,
        session: String::new(),
    };
    for number in 0u64.. {
        racer.session = format!("{seed}.{number}");
        let ended = match racer.below(8) {
            0 => look(&mut racer),
            1 => command(&mut racer),
            _ => write(&mut racer),
        };
        if let Err(Trouble::Found(what)) = ended {
            racer.tell(&format!("bad {}", what.replace('\n', " ")))?;
            return found(what);
        }
    }
    Ok(())
}

/// Whether a store was not opened because another process has it.
fn is_in_use(error: &Error) -> bool {
    matches!(error, Error::Open(OpenError::Locked { .. }))
}

/// Opens the store to look at it: nothing may be half done.
fn look(racer: &mut Racer) -> Outcome {
    let store = match Store::open_with(&racer.dir, &OpenOptions::read_only()) {
        Err(error) if is_in_use(&error) => return Ok(()),
        store => store?,
    };
    require(store.report().damage.is_empty(), || format!("damage: {:?}", store.report().damage))?;
    pools(&store, Access::ReadOnly).map(drop)
}

/// A backup, as an operator makes it beside running programs: it is whole, or refused.
fn back_up(racer: &mut Racer) -> Outcome {
    let target = racer.dir.with_file_name(format!("backup-{}", racer.session));
    let ran = child::cenote().arg("backup").arg(&racer.dir).arg(&target).output()?;
    if ran.status.code() == Some(4) {
        return Ok(());
    }
    require(ran.status.success(), || {
        format!("backup ended with {}: {}", ran.status, String::from_utf8_lossy(&ran.stderr))
    })?;
    let store = Store::open_with(&target, &OpenOptions::read_only())?;
    pools(&store, Access::ReadOnly)?;
    drop(store);
    Ok(std::fs::remove_dir_all(target)?)
}

/// The command, as an operator calls it beside running programs.
fn command(racer: &mut Racer) -> Outcome {
    if racer.below(3) == 0 {
        return back_up(racer);
    }
    let words: &[&str] = [&["check"][..], &["ls"], &["info"], &["stats"]][racer.below(4) as usize];
    let ran = child::cenote().args(words).arg(&racer.dir).output()?;
    require(matches!(ran.status.code(), Some(0 | 4)), || {
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        format!(
            "cenote {words:?} ended with {}: {said}{}",
            ran.status,
            String::from_utf8_lossy(&ran.stdout)
        )
    })
}

/// What each pool has counted.
fn pools(store: &Store, access: Access) -> Outcome<Pools> {
    let mut out = Pools::new();
    for info in store.pools() {
        let name = info.record.name;
        let pool = store.pool_with(&name, access)?;
        out.insert(name, count(&pool)?);
    }
    Ok(out)
}

fn count(pool: &Pool) -> Outcome<u64> {
    let view = pool.read()?;
    // A pool whose maker was killed before it had a root.
    let Some(at) = view.root::<Count>()? else { return Ok(0) };
    let at = view.get(at)?;
    require(at.twice == 2 * at.count, || {
        format!("half of a transaction: {} and {}", at.count, at.twice)
    })?;
    Ok(at.count)
}

fn count_up(pool: &Pool) -> Result<u64> {
    pool.write(|tx| -> Result<u64> {
        let at = match tx.root::<Count>()? {
            Some(at) => at,
            None => {
                let at = tx.alloc(Count { count: 0, twice: 0 })?;
                tx.set_root(at)?;
                at
            }
        };
        let count = tx.get(at)?.count + 1;
        *tx.get_mut(at)? = Count { count, twice: 2 * count };
        Ok(count)
    })
}

/// One session of a writer.
fn write(racer: &mut Racer) -> Outcome {
    let patience = Duration::from_millis(racer.below(30));
    let options = OpenOptions { lock_timeout: patience, ..OpenOptions::default() };
    let store = match Store::open_with(&racer.dir, &options) {
        Err(error) if is_in_use(&error) => return Ok(()),
        store => store?,
    };
    require(store.report().damage.is_empty(), || format!("damage: {:?}", store.report().damage))?;
    let mut there = pools(&store, Access::ReadWrite)?;
    let listed: Vec<String> = there.iter().map(|(name, count)| format!("{name}={count}")).collect();
    racer.tell(&format!("in {}", listed.join(" ")))?;
    for _ in 0..racer.below(6) {
        step(racer, &store, &mut there)?;
    }
    racer.tell("out")?;
    if racer.below(4) == 0 {
        store.abandon();
        return Ok(());
    }
    Ok(store.close()?)
}

/// Reads every file of the store, as a program does that makes a copy: closing them must not open
/// the door to others.
fn copy(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let _ = std::fs::read(entry.path());
    }
}

/// One thing that a writer does.
fn step(racer: &mut Racer, store: &Store, there: &mut Pools) -> Outcome {
    if racer.below(4) == 0 {
        copy(&racer.dir);
    }
    let name = NAMES[racer.below(NAMES.len() as u64) as usize];
    if !there.contains_key(name) {
        racer.tell(&format!("try create {name}"))?;
        let options = PoolOptions { puddle_size: 192 << 10, ..PoolOptions::default() };
        store.create_pool(name, &options)?;
        there.insert(name.into(), 0);
        return racer.tell("done");
    }
    if racer.below(6) == 0 {
        racer.tell(&format!("try remove {name}"))?;
        store.remove_pool(name)?;
        there.remove(name);
        return racer.tell("done");
    }
    let pool = store.pool(name)?;
    for _ in 0..1 + racer.below(4) {
        racer.tell(&format!("try count {name}"))?;
        let count = count_up(&pool)?;
        let before = there.insert(name.into(), count).unwrap_or_default();
        require(count == before + 1, || {
            format!("{name} had counted {before}, and counts {count}")
        })?;
        racer.tell("done")?;
    }
    Ok(())
}

/// What the witness says has been done, as far as it was read.
#[derive(Debug, Default)]
struct Judge {
    pools: Pools,
    /// What the writer tries, or a killed one has tried last.
    tried: Option<(String, String)>,
    /// The session whose lines were read last; those that may say nothing more.
    session: String,
    ended: std::collections::BTreeSet<String>,
    acknowledged: u64,
    sessions: u64,
}

impl Judge {
    fn hear(&mut self, line: &str) -> Outcome {
        let mut words = line.split(' ');
        let (session, what) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if what == "bad" {
            return found(line);
        }
        if session != self.session {
            require(what == "in" && !self.ended.contains(session), || {
                format!(
                    "two writers at a time: session {session} says {line:?} after session {}",
                    self.session
                )
            })?;
            self.ended.insert(std::mem::replace(&mut self.session, session.into()));
        }
        match what {
            "in" => self.compare(words),
            "try" => {
                let (what, name) =
                    (words.next().unwrap_or_default(), words.next().unwrap_or_default());
                self.tried = Some((what.into(), name.into()));
                Ok(())
            }
            "done" => {
                let tried = self.tried.take();
                self.acknowledged += 1;
                apply(&mut self.pools, tried.as_ref())
            }
            "out" => Ok(()),
            _ => found(format!("no line: {line:?}")),
        }
    }

    /// What a session has found, with what was done before.
    fn compare<'a>(&mut self, words: impl Iterator<Item = &'a str>) -> Outcome {
        self.sessions += 1;
        let pairs = words.filter_map(|word| word.split_once('='));
        let there: Pools =
            pairs.map(|(name, count)| (name.into(), count.parse().unwrap_or(u64::MAX))).collect();
        let mut perhaps = self.pools.clone();
        apply(&mut perhaps, self.tried.take().as_ref())?;
        require(there == self.pools || there == perhaps, || {
            format!(
                "session {} found {there:?} where {:?} or {perhaps:?} must be",
                self.session, self.pools
            )
        })?;
        self.pools = there;
        Ok(())
    }
}

fn apply(pools: &mut Pools, tried: Option<&(String, String)>) -> Outcome {
    match tried.map(|(what, name)| (what.as_str(), name)) {
        Some(("create", name)) => drop(pools.insert(name.clone(), 0)),
        Some(("remove", name)) => drop(pools.remove(name)),
        Some(("count", name)) => *pools.entry(name.clone()).or_default() += 1,
        Some((what, _)) => return found(format!("nothing is called {what:?}")),
        None => {}
    }
    Ok(())
}

/// See the module.
pub(crate) fn round(round: &mut Round<'_>) -> Outcome {
    let (store, witness) = (round.dir.join("store"), round.dir.join("witness"));
    child::format(&store)?;
    File::create(&witness)?;
    let mut next = round.seed << 16;
    let mut start = |dir: &Path| {
        next += 1;
        Child::start(dir, "racer", &[&store, &witness, &next.to_string()])
    };
    let mut racers = Vec::new();
    for _ in 0..RACERS {
        racers.push(start(round.dir)?);
    }
    for _ in 0..KILLS {
        std::thread::sleep(round.moment(20_000));
        let victim = round.below(RACERS as u64) as usize;
        racers.remove(victim).kill()?;
        racers.insert(victim, start(round.dir)?);
        round.counts.add("kills", 1);
    }
    racers.into_iter().try_for_each(|racer| racer.kill().map(drop))?;
    let mut judge = Judge::default();
    let text = std::fs::read_to_string(&witness)?;
    text.lines().try_for_each(|line| judge.hear(line))?;
    round.counts.add("operations acknowledged", judge.acknowledged);
    round.counts.add("sessions", judge.sessions);
    end(&store, judge)
}

/// What is there when all are dead.
fn end(dir: &Path, mut judge: Judge) -> Outcome {
    // A command that a racer had started may outlive it.
    let options = OpenOptions { lock_timeout: child::LIMIT, ..OpenOptions::default() };
    let store = Store::open_with(dir, &options)?;
    require(store.report().damage.is_empty(), || {
        format!("damage at the end: {:?}", store.report().damage)
    })?;
    let there: Vec<String> = pools(&store, Access::ReadWrite)?
        .iter()
        .map(|(name, count)| format!("{name}={count}"))
        .collect();
    judge.compare(there.iter().map(String::as_str))?;
    for name in judge.pools.keys() {
        let report = store.pool(name)?.check()?;
        require(report.is_sound(), || format!("pool {name} at the end: {report:?}"))?;
    }
    store.close()?;
    let mut check = child::cenote();
    check.args(["check", "--wait", "30"]).arg(dir);
    let ended = child::run(&mut check, dir.parent().unwrap_or(dir), Duration::from_secs(60))?;
    require(ended.code == Some(0), || format!("cenote check at the end: {ended:?}"))
}
