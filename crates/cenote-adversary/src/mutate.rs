//! Damage under right checksums: by a writer that knows the format, or a release with a bug.
//!
//! A store of [`sample`], closed or as a kill left it, gets one to three fields changed in one kind
//! of place (superblock, catalog, headers, logs, journals, protection headers, archives,
//! snapshots), and the checksums put right. Then everything opens it:
//!
//! * no command and no program dies of a signal, panics, or goes on for ever; errors are typed,
//!   with a documented exit status;
//! * pools and objects whose files were not touched are read as before, unless superblock or
//!   catalog are what was changed;
//! * an archive or snapshot that is refused changes nothing.

use crate::child::{self, Child, Ended};
use crate::round::{Outcome, Round, found, require};
use crate::sample::{self, Digest};
use cenote::{Access, Store};
use cenote_fuzz::{Input, forge};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Mutations of a round, and of one that is thorough.
const MUTATIONS: [u64; 2] = [4, 40];

/// What looks at a store and must change nothing.
const LOOKING: [&str; 9] = [
    "ls {s}",
    "info {s}",
    "check {s} --key-file {d}/key0",
    "stats {s} --key-file {d}/key0",
    "dump {s}",
    "dump {s} --pool shadow --blocks",
    "verify {s} --key-file {d}/key0",
    "logs list {s}",
    "object ls {s}",
];
/// What changes it.
const CHANGING: [&str; 9] = [
    "trim {s} --key-file {d}/key0",
    "reclaim {s} --key-file {d}/key0",
    "relocate {s} --key-file {d}/key0",
    "clone {s} shadow copy --eager",
    "create {s} fresh",
    "object import {s} plain --input {d}/data",
    "snapshot {s} box {d}/second",
    "export {s} checked {d}/second.archive",
    "rm {s} -y direct sealed",
];

/// Where a mutation is, by file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MutationPlace {
    Superblock,
    Catalog,
    /// Headers in the files of puddles and primaries.
    Puddle,
    Log,
    Journal,
    Archive,
    Snapshot,
    /// Any byte of what is protected, whose checksums stay as they are.
    Sealed,
}

impl MutationPlace {
    const ALL: [Self; 10] = [
        Self::Superblock,
        Self::Catalog,
        Self::Puddle,
        Self::Puddle,
        Self::Log,
        Self::Journal,
        Self::Archive,
        Self::Snapshot,
        Self::Sealed,
        Self::Sealed,
    ];
}

impl MutationPlace {
    /// Whether what is changed belongs to one pool or object.
    fn is_of_one(self) -> bool {
        matches!(self, Self::Puddle | Self::Sealed)
    }
}

/// What is protected at rest.
const PROTECTED: [&str; 5] =
    ["pool checked", "pool secret", "pool both", "pool sealed", "object box"];

/// See the module.
pub(crate) fn round(round: &mut Round<'_>) -> Outcome {
    let template = round.dir.join("template");
    std::fs::create_dir(&template)?;
    sample::make(&template, round.seed)?;
    if round.below(2) == 0 {
        leave_open(round, &template)?;
    }
    let before = recovered(round.dir, &template)?;
    let files = owners(&template.join("store"))?;
    for _ in 0..MUTATIONS[usize::from(round.thorough)] {
        let place = MutationPlace::ALL[round.below(MutationPlace::ALL.len() as u64) as usize];
        round.counts.add("mutations", 1);
        let work = copy(round.dir, &template)?;
        let scene = Scene { dir: round.dir, work, before: &before, files: &files };
        let bytes: Vec<u8> = (0..64).flat_map(|_| round.random.next_word().to_le_bytes()).collect();
        let mut input = Input::new(&bytes);
        let Some(touched) = scene.mutate(&mut input, place)? else { continue };
        let outcome = scene.judge(place, &touched);
        round.counts.add(
            outcome.map_err(|trouble| trouble.at(format_args!("{place:?} of {touched:?}")))?,
            1,
        );
    }
    Ok(())
}

/// A child: `STORE`. Works on the pools in direct and in shadowed mode until it is killed.
pub(crate) fn busy(args: &[String]) -> Outcome {
    let store = Store::open(&args[0])?;
    let pools = [store.pool("direct")?, store.pool("shadow")?];
    for step in 0u64.. {
        for (pool, seed) in pools.iter().zip([step, !step]) {
            sample::push(pool, seed)?;
        }
        if step % 3 == 2 {
            pools[1].psync()?;
        }
        child::say(step)?;
    }
    Ok(())
}

/// Leaves the store as a kill does.
pub(crate) fn leave_open(round: &mut Round<'_>, template: &Path) -> Outcome {
    let mut child = Child::start(round.dir, "busy", &[&template.join("store")])?;
    child.hear()?;
    std::thread::sleep(round.moment(5_000));
    child.kill().map(drop)
}

/// What a recovery makes of the template.
fn recovered(dir: &Path, template: &Path) -> Outcome<Digest> {
    let work = copy(dir, template)?;
    let digest = sample::digest_of(dir, &work.join("store"))?;
    let bad = digest.parts.iter().find(|(_, what)| what.contains("error"));
    require(bad.is_none(), || format!("before any mutation: {bad:?}"))?;
    Ok(digest)
}

/// The template again.
fn copy(dir: &Path, template: &Path) -> Outcome<PathBuf> {
    let work = dir.join("work");
    if work.exists() {
        std::fs::remove_dir_all(&work)?;
    }
    let done = Command::new("cp").arg("-a").arg(template).arg(&work).output()?;
    require(done.status.success(), || String::from_utf8_lossy(&done.stderr).into_owned())?;
    crate::power::no_place(&work.join("store"))?;
    Ok(work)
}

/// Of each puddle's file the pool or object that it belongs to, as parts of a digest are named.
fn owners(at: &Path) -> Outcome<BTreeMap<String, String>> {
    let medium = cenote::RealMedium::open(
        at,
        &cenote::MediumOptions { read_only: true, ..Default::default() },
    )?;
    let (store, _) =
        cenote_store::Store::open(std::sync::Arc::new(medium), cenote::OpenOptions::read_only())?;
    let mut out = BTreeMap::new();
    for puddle in store.puddle_records() {
        let pool = store.pools().into_iter().find(|pool| pool.record.id == puddle.pool);
        let owner =
            pool.map_or_else(|| "other".into(), |pool| format!("pool {}", pool.record.name));
        out.insert(puddle.uuid.to_string().replace('-', ""), owner);
    }
    for object in store.objects() {
        let record = &object.record;
        out.insert(record.puddle.to_string().replace('-', ""), format!("object {}", record.name));
    }
    Ok(out)
}

/// One mutated store.
struct Scene<'a> {
    dir: &'a Path,
    work: PathBuf,
    before: &'a Digest,
    files: &'a BTreeMap<String, String>,
}

impl Scene<'_> {
    /// Changes something in a place. The owner of what was changed; `None`: there is nothing.
    fn mutate(&self, input: &mut Input<'_>, place: MutationPlace) -> Outcome<Option<String>> {
        let store = self.work.join("store");
        let of = |names: &[&str]| names.iter().map(|name| store.join(name)).collect::<Vec<_>>();
        let files = match place {
            MutationPlace::Superblock => of(&["superblock"]),
            MutationPlace::Catalog => of(&["catalog.0", "catalog.1"]),
            MutationPlace::Journal => of(&["journal", "journal.pools"]),
            MutationPlace::Puddle | MutationPlace::Log => {
                self.puddles(place == MutationPlace::Log)?
            }
            MutationPlace::Sealed => {
                let of = |part: &&str| self.files.iter().find(|(_, owner)| *owner == *part);
                PROTECTED
                    .iter()
                    .filter_map(of)
                    .map(|(name, _)| store.join("puddles").join(name))
                    .collect()
            }
            MutationPlace::Archive => {
                vec![self.work.join("direct.archive"), self.work.join("sealed.archive")]
            }
            MutationPlace::Snapshot => vec![self.work.join("snapshot")],
        };
        let files: Vec<PathBuf> = files.into_iter().filter(|file| file.exists()).collect();
        if files.is_empty() {
            return Ok(None);
        }
        let chosen = input.below(files.len());
        // Catalogs are two, and one is enough: both are changed, mostly.
        let both = place == MutationPlace::Catalog && !input.one_in(4);
        for (number, file) in files.iter().enumerate() {
            if number != chosen && !both {
                continue;
            }
            let mut bytes = std::fs::read(file)?;
            for _ in 0..1 + input.below(3) {
                change(input, place, &mut bytes);
            }
            std::fs::write(file, bytes)?;
        }
        let name = files[chosen].file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Some(self.files.get(&name).cloned().unwrap_or(name)))
    }

    fn puddles(&self, logs: bool) -> Outcome<Vec<PathBuf>> {
        let mut out = Vec::new();
        for dir in ["puddles", "primary"] {
            let Ok(entries) = std::fs::read_dir(self.work.join("store").join(dir)) else {
                continue;
            };
            for entry in entries {
                let entry = entry?;
                let owner = self.files.get(&*entry.file_name().to_string_lossy());
                if owner.is_none_or(|owner| owner == "other") == logs {
                    out.push(entry.path());
                }
            }
        }
        // By owner: names of files are other ones in each run.
        out.sort_by_key(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (self.files.get(&name), path.parent().map(Path::to_owned))
        });
        Ok(out)
    }

    /// Lets everything open it. What came of it.
    fn judge(&self, place: MutationPlace, touched: &str) -> Outcome<&'static str> {
        if matches!(place, MutationPlace::Archive | MutationPlace::Snapshot) {
            return self.judge_archived(place, touched);
        }
        for line in LOOKING {
            self.command(line)?;
        }
        let looked = self.digest(Access::ReadOnly, place, touched)?;
        let recovered = self.digest(Access::ReadWrite, place, touched)?;
        for line in CHANGING {
            self.command(line)?;
        }
        Ok(match (looked, recovered) {
            (_, None) => "refused",
            (_, Some(digest)) if digest.parts == self.before.parts => "no effect",
            _ => "found or taken",
        })
    }

    /// The digest, which must have what was not touched.
    fn digest(
        &self,
        access: Access,
        place: MutationPlace,
        touched: &str,
    ) -> Outcome<Option<Digest>> {
        let digest = match sample::digest_by_child(self.dir, &self.work.join("store"), access)? {
            Ok(digest) => digest,
            Err(ended) => {
                typed(&ended).map_err(|trouble| trouble.at(format_args!("digest, {access:?}")))?;
                // Without its superblock or catalog nothing can be said of a store. A psync that
                // cannot be brought to the primary keeps writers out; what is there can be read.
                let kept_out =
                    access == Access::ReadWrite && ended.err.contains("the journal of psyncs");
                require(!place.is_of_one() || kept_out, || {
                    format!("the whole store is refused: {ended:?}")
                })?;
                return Ok(None);
            }
        };
        for (name, was) in &self.before.parts {
            let is_own = name == touched || !place.is_of_one();
            let is = digest.parts.get(name);
            require(is_own || is == Some(was), || {
                format!("{access:?}: {name} was not touched, and is {is:?} where it was {was:?}")
            })?;
        }
        Ok(Some(digest))
    }

    /// Takes a changed archive or snapshot in.
    fn judge_archived(&self, place: MutationPlace, touched: &str) -> Outcome<&'static str> {
        let lines = match place {
            MutationPlace::Archive => [
                format!("import {{s}} {{d}}/{touched} --dry-run"),
                format!("import {{s}} {{d}}/{touched} --as copy"),
            ],
            _ => ["restore {s} {d}/snapshot --as copy", "object info {s} copy"].map(String::from),
        };
        let mut taken = false;
        for line in lines {
            taken = self.command(&line)?.code == Some(0);
        }
        let Some(mut digest) = self.digest(Access::ReadWrite, MutationPlace::Puddle, "copy")?
        else {
            return found("the store is refused after an import");
        };
        digest.parts.retain(|name, _| !name.ends_with(" copy"));
        require(digest.parts == self.before.parts, || {
            format!("{digest:?} where {:?} was", self.before)
        })?;
        self.command("check {s} --key-file {d}/key0")?;
        Ok(if taken { "taken in" } else { "refused" })
    }

    fn command(&self, line: &str) -> Outcome<Ended> {
        let ended = child::run(&mut child::cenote_line(line, &self.work), self.dir, child::LIMIT)
            .map_err(|trouble| trouble.at(line))?;
        typed(&ended).map_err(|trouble| trouble.at(line))?;
        Ok(ended)
    }
}

/// It ended by itself, without a panic, and says why if it failed.
fn typed(ended: &Ended) -> Outcome {
    let panicked = ended.err.contains("panicked") || ended.err.contains("internal error");
    let known = matches!(ended.code, Some(0..=4));
    require(known && !panicked, || format!("it died: {ended:?}"))?;
    require(ended.code == Some(0) || !(ended.out.is_empty() && ended.err.is_empty()), || {
        format!("it does not say why: {ended:?}")
    })
}

/// One change under a right checksum; now and then one that is not.
fn change(input: &mut Input<'_>, place: MutationPlace, bytes: &mut Vec<u8>) {
    if input.one_in(16) {
        let reach = bytes.len().min(8192);
        return input.spoil(&mut bytes[..reach]);
    }
    match place {
        MutationPlace::Sealed => {
            let page = input.below(bytes.len() / 4096) * 4096;
            input.spoil(&mut bytes[page..page + 4096]);
        }
        MutationPlace::Catalog => forge::catalog(input, bytes),
        MutationPlace::Journal if !input.one_in(4) => drop(forge::journal(input, bytes)),
        MutationPlace::Log if !input.one_in(3) => forge::log(input, bytes),
        MutationPlace::Archive => {
            if let Some(changed) = forge::archive(input, bytes) {
                *bytes = changed;
            }
        }
        _ => drop(forge::header(input, bytes)),
    }
}
