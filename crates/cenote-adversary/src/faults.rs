//! One fault at one system call of one operation: an I/O error, a full disk, SIGKILL.
//!
//! An operation is run once untouched under `strace`, which lists its system calls; then again for
//! each call, with the fault injected there (`strace` injects the n-th call of a name, in each
//! thread). After each:
//!
//! * the operation ended with an exit status that it documents, or by the kill, without a panic;
//! * the store opens, is sound, and what is in it is as before the operation or as after it,
//!   nothing between;
//! * success means after; an error for want of space means before, unless the message says that it,
//!   or its first step, is done. After an I/O error it is unknown what the device has, and the next
//!   open decides: before or after;
//! * what was not done can be done now.

use crate::child::{self, Ended};
use crate::round::{Outcome, Round, Trouble, found, require};
use crate::sample::{self, Digest};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::Command;

/// Operations on the store of [`sample`], as arguments of `cenote`.
const OPERATIONS: [&str; 32] = [
    "create {s} fresh --size 256K --mode direct",
    "create {s} fresh --size 256K --mode shadowed",
    "create {s} fresh --size 256K --key-file {d}/key0",
    "clone {s} direct copy",
    "clone {s} shadow copy --eager",
    "clone {s} sealed copy",
    "randomize {s} direct --eager --key-file {d}/key0",
    "randomize {s} shadow",
    "import {s} {d}/direct.archive --as copy",
    "import {s} {d}/direct.archive --as copy --eager",
    "import {s} {d}/sealed.archive --as copy",
    "rm {s} -y direct",
    "rm {s} -y shadow",
    "rm {s} -y sealed",
    "rekey {s} sealed --key-file {d}/key0 --new-key-file {d}/key1",
    "rekey {s} box --key-file {d}/key0 --new-key-file {d}/key1",
    "trim {s} --key-file {d}/key0",
    "chmod {s} direct 640",
    "object create {s} fresh --size 64K",
    "object create {s} fresh --size 64K --key-file {d}/key0",
    "object rm {s} -y plain",
    "object import {s} plain --input {d}/data",
    "object import {s} box --input {d}/data --key-file {d}/key0",
    "restore {s} {d}/snapshot --as fresh",
    "reclaim {s} --key-file {d}/key0",
    "format {d}/fresh",
    "relocate {s} --key-file {d}/key0",
    "backup {s} {d}/fresh",
    "export {s} direct {d}/out",
    "export {s} sealed {d}/out",
    "snapshot {s} plain {d}/out",
    "snapshot {s} plain {d}/out --copy",
];

/// A snapshot of which only a part is there.
const CUT_SHORT: &str = "cut short";

/// What a session without objects does after a kill, and changes nothing that a digest has.
const BETWEEN: [&str; 4] = [
    "trim {s} --key-file {d}/key0",
    "reclaim {s} --key-file {d}/key0",
    "relocate {s} --key-file {d}/key0",
    "check {s} --key-file {d}/key0",
];

/// Calls that can fail for want of a device that works, and those for want of space. What only
/// writes messages is not among them.
const IO: [&str; 19] = [
    "openat",
    "read",
    "pread64",
    "pwrite64",
    "fsync",
    "fdatasync",
    "ftruncate",
    "fallocate",
    "mmap",
    "rename",
    "renameat",
    "renameat2",
    "unlinkat",
    "mkdir",
    "mkdirat",
    "linkat",
    "getdents64",
    "copy_file_range",
    "msync",
];
const SPACE: [&str; 10] = [
    "pwrite64",
    "ftruncate",
    "fallocate",
    "mkdir",
    "mkdirat",
    "rename",
    "renameat",
    "renameat2",
    "linkat",
    "copy_file_range",
];
/// Where it is killed: at these too.
const KILL: [&str; 5] = ["fcntl", "madvise", "munmap", "close", "mprotect"];

/// Faults of a round that is not thorough.
const SAMPLE: u64 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Io,
    Space,
    Kill,
}

impl Fault {
    const ALL: [Self; 3] = [Self::Io, Self::Space, Self::Kill];

    fn hits(self, call: &str) -> bool {
        match self {
            Self::Io => IO.contains(&call),
            Self::Space => SPACE.contains(&call),
            Self::Kill => IO.contains(&call) || KILL.contains(&call),
        }
    }

    fn injection(self, call: &str, number: u64) -> String {
        let what = match self {
            Self::Io => "error=EIO",
            Self::Space => "error=ENOSPC",
            Self::Kill => "signal=SIGKILL",
        };
        format!("inject={call}:{what}:when={number}")
    }
}

/// See the module. One operation and one fault for each seed.
pub(crate) fn round(round: &mut Round<'_>) -> Outcome {
    if Command::new("strace").arg("--version").output().is_err() {
        return Err(Trouble::Skipped("there is no strace".into()));
    }
    let number = round.seed as usize;
    let operation = OPERATIONS[number % OPERATIONS.len()];
    let fault =
        Fault::ALL[(number % OPERATIONS.len() + number / OPERATIONS.len()) % Fault::ALL.len()];
    let template = round.dir.join("template");
    std::fs::create_dir(&template)?;
    sample::make(&template, round.seed)?;
    // One of four stores has to be recovered first: the fault may come then.
    if round.thorough && round.below(4) == 0 {
        crate::mutate::leave_open(round, &template)?;
        round.counts.add("stores that were left open", 1);
    }
    let scene = Scene::new(round.dir, &template, operation)?;
    let mut points: Vec<(String, u64)> = Vec::new();
    for (call, numbers) in scene.calls.iter().filter(|(call, _)| fault.hits(call)) {
        points.extend(numbers.clone().map(|number| (call.clone(), number)));
    }
    if !round.thorough {
        points = (0..SAMPLE.min(points.len() as u64))
            .map(|_| points[(round.random.next_word() % points.len() as u64) as usize].clone())
            .collect();
    }
    for (call, number) in points {
        round.counts.add("faults", 1);
        let outcome = scene.fault(fault, &call, number);
        let what = outcome.map_err(|trouble| {
            trouble.at(format_args!("{operation}, {}", fault.injection(&call, number)))
        })?;
        round.counts.add(what, 1);
    }
    Ok(())
}

/// An operation, and what is there before and after it.
struct Scene<'a> {
    dir: &'a Path,
    template: &'a Path,
    operation: &'static str,
    /// Calls by name: which of them may fail.
    calls: BTreeMap<String, RangeInclusive<u64>>,
    before: Digest,
    after: Digest,
}

impl<'a> Scene<'a> {
    fn new(dir: &'a Path, template: &'a Path, operation: &'static str) -> Outcome<Self> {
        let mut scene = Self {
            dir,
            template,
            operation,
            calls: BTreeMap::new(),
            before: Digest::default(),
            after: Digest::default(),
        };
        let work = scene.copy()?;
        scene.before = scene.look(&work)?;
        let work = scene.copy()?;
        let log = dir.join("calls");
        let mut command = scene.traced(&work, &["-o".as_ref(), log.as_os_str()]);
        let ended = child::run(&mut command, dir, child::LIMIT)?;
        if ended.err.starts_with("strace:") {
            return Err(Trouble::Skipped(format!("strace may not trace: {}", ended.err.trim())));
        }
        require(ended.code == Some(0), || format!("{operation}, untouched: {ended:?}"))?;
        scene.calls = calls(&std::fs::read_to_string(&log)?, &work);
        scene.after = scene.look(&work)?;
        Ok(scene)
    }

    /// The template again.
    fn copy(&self) -> Outcome<std::path::PathBuf> {
        let work = self.dir.join("work");
        if work.exists() {
            std::fs::remove_dir_all(&work)?;
        }
        let done = Command::new("cp").arg("-a").arg(self.template).arg(&work).output()?;
        require(done.status.success(), || String::from_utf8_lossy(&done.stderr).into_owned())?;
        crate::power::no_place(&work.join("store"))?;
        Ok(work)
    }

    fn traced(&self, work: &Path, options: &[&std::ffi::OsStr]) -> Command {
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-e", "signal=none"]).args(options);
        // By a link of that name, since strace knows no other way.
        let link = self.dir.join(child::COMMAND);
        if !link.exists() {
            let _ = std::env::current_exe().and_then(|own| std::os::unix::fs::symlink(own, &link));
        }
        command.arg(link).args(child::words(self.operation, work));
        command
    }

    /// The store that the operation is about, and the file that it makes.
    fn look(&self, work: &Path) -> Outcome<Digest> {
        let fresh = self.operation.ends_with("{d}/fresh");
        let mut digest =
            sample::digest_of(self.dir, &work.join(if fresh { "fresh" } else { "store" }))?;
        if self.operation.contains("{d}/out") {
            digest.parts.insert("out".into(), self.out(work)?.into());
        }
        Ok(digest)
    }

    /// What there is of the archive or snapshot: it is taken into a copy of the store.
    fn out(&self, work: &Path) -> Outcome<&'static str> {
        if !work.join("out").exists() {
            return Ok("none");
        }
        let probe = self.dir.join("probe");
        if probe.exists() {
            std::fs::remove_dir_all(&probe)?;
        }
        let done = Command::new("cp").arg("-a").arg(work).arg(&probe).output()?;
        require(done.status.success(), || String::from_utf8_lossy(&done.stderr).into_owned())?;
        let line = match self.operation.starts_with("export") {
            true => "import {s} {d}/out --as probe",
            false => "restore {s} {d}/out --as probe",
        };
        let ended = child::run(&mut child::cenote_line(line, &probe), self.dir, child::LIMIT)?;
        // The caller of a snapshot that was killed removes what is left of it.
        if line.starts_with("restore") && ended.err.contains("cut short") {
            return Ok(CUT_SHORT);
        }
        require(ended.code == Some(0), || format!("half a file: {ended:?}"))?;
        Ok("whole")
    }

    fn is_before(&self, digest: &Digest) -> bool {
        *digest == self.before
    }

    /// Addresses are chosen anew each time.
    fn is_after(&self, digest: &Digest) -> bool {
        digest.parts == self.after.parts
            && self.after.addresses.iter().all(|(name, after)| {
                let moved = self.before.addresses.get(name).is_some_and(|before| before != after);
                !moved || digest.addresses.get(name) != self.before.addresses.get(name)
            })
    }

    /// One fault. What came of it.
    fn fault(&self, fault: Fault, call: &str, number: u64) -> Outcome<&'static str> {
        let work = self.copy()?;
        let injection = fault.injection(call, number);
        let log = self.dir.join("calls");
        let options = ["-o".as_ref(), log.as_os_str(), "-e".as_ref(), injection.as_ref()];
        let ended = child::run(&mut self.traced(&work, &options), self.dir, child::LIMIT)?;
        let is_killed =
            fault == Fault::Kill && (ended.signal == Some(9) || ended.code == Some(128 + 9));
        let documented =
            is_documented(&ended) || (is_rekey(self.operation) && ended.code == Some(5));
        require(is_killed || documented, || format!("it ended badly: {ended:?}"))?;
        if is_killed && number.is_multiple_of(2) {
            let line = BETWEEN[(number / 2) as usize % BETWEEN.len()];
            let between = child::run(&mut child::cenote_line(line, &work), self.dir, child::LIMIT)?;
            let other_key = is_rekey(self.operation) && between.code == Some(1);
            require(between.code == Some(0) || other_key, || format!("then {line}: {between:?}"))?;
        }
        let mut digest = self.look(&work)?;
        if is_killed && digest.parts.get("out").is_some_and(|out| out == CUT_SHORT) {
            std::fs::remove_file(work.join("out"))?;
            digest.parts.insert("out".into(), "none".into());
        }
        let (before, after) = (self.is_before(&digest), self.is_after(&digest));
        require(before || after, || {
            format!(
                "{ended:?}; neither before nor after: {}",
                difference(&digest, &self.before, &self.after)
            )
        })?;
        match ended.code {
            Some(code) if is_rekey(self.operation) && after != matches!(code, 0 | 5) => {
                return found(format!("it says that another key opens it: {ended:?}"));
            }
            Some(0) if !after => {
                return found(format!("it says that it is done, and is not: {ended:?}"));
            }
            Some(code) if code != 0 && fault == Fault::Space && !before && !says_done(&ended) => {
                return found(format!("it says that it failed, and is done: {ended:?}"));
            }
            _ => {}
        }
        self.check(&work)?;
        if !before || self.is_after(&self.before) {
            return Ok(match ended.code {
                Some(0) => "done all the same",
                _ if is_killed => "killed, done",
                _ => "failed, done",
            });
        }
        let again =
            child::run(&mut child::cenote_line(self.operation, &work), self.dir, child::LIMIT)?;
        require(again.code == Some(0), || format!("{ended:?}; again, untouched: {again:?}"))?;
        let digest = self.look(&work)?;
        require(self.is_after(&digest), || {
            format!("done again: {}", difference(&digest, &self.before, &self.after))
        })?;
        Ok(if is_killed { "killed, not done" } else { "failed, not done" })
    }

    /// `cenote check` finds nothing.
    fn check(&self, work: &Path) -> Outcome {
        let mut check = child::cenote_line("check {s} --key-file {d}/key0", work);
        let ended = child::run(&mut check, self.dir, child::LIMIT)?;
        // Of what is under the other key it can say only that.
        let other_key = ended.out.contains("key1") || is_rekey(self.operation);
        require(other_key || ended.code == Some(0), || format!("check: {ended:?}"))
    }
}

/// A change of a key says which key it is, whatever fails.
fn is_rekey(operation: &str) -> bool {
    operation.starts_with("rekey")
}

/// An exit status that `--help` names, or 127 of the loader, and no panic.
fn is_documented(ended: &Ended) -> bool {
    let quiet = !ended.err.contains("panicked") && !ended.err.contains("internal error");
    quiet && matches!(ended.code, Some(0 | 1 | 3 | 4 | 127))
}

/// Whether it says that its work, or a first step of it, is done although an error came then.
fn says_done(ended: &Ended) -> bool {
    ended.out.contains("done:") || ended.err.contains("done, but")
}

/// Parts that are neither as before nor as after.
fn difference(digest: &Digest, before: &Digest, after: &Digest) -> String {
    let mut names: Vec<&String> =
        [digest, before, after].iter().flat_map(|digest| digest.parts.keys()).collect();
    names.sort();
    names.dedup();
    let part = |digest: &Digest, name: &String| {
        digest.parts.get(name).cloned().unwrap_or_else(|| "nothing".into())
    };
    let differ = names.into_iter().filter(|name| part(before, name) != part(digest, name));
    let told: Vec<String> = differ
        .map(|name| {
            format!(
                "{name} is {}, was {}, was to be {}",
                part(digest, name),
                part(before, name),
                part(after, name)
            )
        })
        .collect();
    format!(
        "{}; lists at {:x?}, were at {:x?}",
        told.join("; "),
        digest.addresses,
        before.addresses
    )
}

/// Of each name the number of the first call that is about the files in `work`, or comes after one
/// that is, and of the last one that a thread made. Calls before those are of the loader and of
/// what begins a process.
fn calls(log: &str, work: &Path) -> BTreeMap<String, RangeInclusive<u64>> {
    let work = format!("\"{}", work.display());
    let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut started: Option<BTreeMap<(&str, &str), u64>> = None;
    for line in log.lines() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let Some((call, args)) = rest.trim_start().split_once('(') else { continue };
        if !call.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            continue;
        }
        if started.is_none() && call != "execve" && args.contains(&work) {
            started = Some(counts.clone());
        }
        *counts.entry((thread, call)).or_default() += 1;
    }
    let started = started.unwrap_or_default();
    let mut out: BTreeMap<String, RangeInclusive<u64>> = BTreeMap::new();
    for ((thread, call), last) in counts {
        let first = 1 + started.get(&(thread, call)).copied().unwrap_or_default();
        let range = out.entry(call.into()).or_insert(first..=last);
        *range = *range.start().max(&first)..=*range.end().max(&last);
    }
    out
}
