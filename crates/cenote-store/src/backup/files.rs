//! Files of a backup: which there are, copies of them, and the directory that becomes the target.

use crate::kernel::catalog::CatalogState;
use crate::kernel::catalog::journals::JournalOf;
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::report::Damage;
use crate::kernel::puddles::puddle::{DIR, PRIMARY_DIR, file_name, primary_name, text};
use crate::kernel::puddles::verify::about_file;
use crate::kernel::store::{Control, Inner};
use crate::sealed_files::file_len;
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::{AtRest, PuddleRecord};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::Uuid;
use cenote_layout::puddle::Role;
use cenote_layout::superblock::JournalMark;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{
    FileHandle, LockKind, Medium, MediumError, MediumOptions, OwnedMedium, RealMedium,
};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// Directories of a store.
pub(super) const DIRS: [&str; 2] = [DIR, PRIMARY_DIR];
/// Bytes that are copied or compared at once.
const STEP: u64 = 1 << 20;
/// What stands in the name of a directory that becomes a backup.
const MARK: &str = ".cenote-backup-";
/// A file that says that a directory is a backup in the making: it is there before all others,
/// until the directory has its name. Only what has it is ever removed.
const UNFINISHED: &str = "backup-unfinished";

/// A file that is to be copied.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    /// Its name in the store.
    pub(super) from: String,
    /// Its name in the copy.
    to: String,
    /// A second one in the copy, of the same contents.
    twin: Option<String>,
    /// Its bytes.
    pub(super) len: u64,
}

/// A file that was copied.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) file: FileHandle,
    twin: Option<String>,
    pub(super) len: u64,
}

/// Tells a caller how far it has come.
pub(super) struct BackupProgress<'a> {
    pub(super) done: u64,
    pub(super) all: u64,
    pub(super) tell: &'a mut dyn FnMut(u64, u64) -> bool,
}

impl BackupProgress<'_> {
    fn more(&mut self, bytes: u64) -> Result<(), StoreError> {
        self.done += bytes;
        if (self.tell)(self.done, self.all.max(self.done)) {
            return Ok(());
        }
        Err(StoreError::Backup { kind: ErrorKind::Aborted, detail: "it was stopped".into() })
    }
}

/// Sessions that ended and whose logs are set aside: neither this one nor a client that lives.
pub(super) fn undecided_logs(control: &Control) -> BTreeSet<Uuid> {
    let clients = control.catalog.state.clients.keys().copied();
    clients
        .filter(|client| *client != control.client && !control.hosted().contains_key(client))
        .collect()
}

/// All files that the copy has, but for catalog and superblock; and what is damaged. A damaged file
/// that is as long as it should be is copied as it is, so that nothing of it is lost; of another
/// one the copy has no file. Either costs its pool, in the copy as in the store.
pub(super) fn plan(
    inner: &Inner,
    control: &Control,
) -> Result<(Vec<Planned>, Vec<Damage>), StoreError> {
    let state = &control.catalog.state;
    let (logs_go, lists) = (!undecided_logs(control).is_empty(), inner.lists(control)?);
    let (mut plan, mut damage) = (Vec::new(), Vec::new());
    for puddle in state.puddles.values() {
        let goes = match puddle.role {
            Role::Heap | Role::Metadata | Role::Object => true,
            Role::Log | Role::LogSpace => logs_go,
            Role::Spare => false,
        };
        if !goes {
            continue;
        }
        let (mut planned, mut problem) = self::planned(inner, state, puddle)?;
        // A device may fail once. The copy of what is taken for damaged is damaged for good.
        if problem.is_some() {
            (planned, problem) = self::planned(inner, state, puddle)?;
        }
        if problem.is_none() {
            problem = inner.not_listed(&lists, control, puddle)?;
        }
        if let Some(detail) = problem {
            damage.push(damage_of(state, puddle, detail));
            if !inner.medium.len(&planned.from).is_ok_and(|len| len == planned.len) {
                continue;
            }
        }
        plan.push(planned);
    }
    for (id, from, kept) in control.kept_files() {
        let (len, problem) = match inner.medium.len(&from) {
            Ok(len) => (Some(len), kept.as_ref().err().cloned()),
            Err(error) => (None, Some(about_file(error)?)),
        };
        // It costs its pool, in the copy as in the store.
        if let (Some(detail), Some(puddle)) = (problem, state.puddles.get(&id))
            && !planted(Bug::KeptGoneNotTold)
        {
            let (uuid, pool, index) = (puddle.uuid, puddle.pool, puddle.index);
            damage.push(Damage::Puddle { uuid, pool, index, detail });
        }
        plan.extend(len.map(|len| Planned { to: from.clone(), from, twin: None, len }));
    }
    for of in JournalOf::ALL {
        let journal = of.file();
        if inner.medium.exists(journal)? {
            let len = inner.medium.len(journal)?;
            plan.push(Planned { from: journal.into(), to: journal.into(), twin: None, len });
        } else if has_things_of(state, of)
            && control.superblock.journals[of as usize] != JournalMark::NONE
            && !planted(Bug::BackupUnchecked)
        {
            // What it covered could not be opened in the copy either.
            let detail = "the file is missing".into();
            return Err(StoreError::JournalDamaged { file: journal, detail });
        }
    }
    Ok((plan, damage))
}

/// Whether the store has objects, or pools in shadowed mode, whose psyncs go to this journal.
fn has_things_of(state: &CatalogState, of: JournalOf) -> bool {
    match of {
        JournalOf::Objects => !state.object_names.is_empty(),
        JournalOf::Pools => state.pools.keys().any(|pool| state.is_shadowed(*pool)),
    }
}

/// What is said of a damaged file: of an object by its name.
fn damage_of(state: &CatalogState, puddle: &PuddleRecord, detail: String) -> Damage {
    match state.objects.get(&puddle.uuid) {
        Some(object) => Damage::Object { name: object.name.clone(), detail },
        None => {
            let (uuid, pool, index) = (puddle.uuid, puddle.pool, puddle.index);
            Damage::Puddle { uuid, pool, index, detail }
        }
    }
}

/// The file of a puddle, and what is wrong with it. Of one that has moved and is not rewritten
/// nothing is said.
fn planned(
    inner: &Inner,
    state: &CatalogState,
    puddle: &PuddleRecord,
) -> Result<(Planned, Option<String>), StoreError> {
    let to = text(&file_name(puddle.uuid)).to_owned();
    let of = |to: String, len: u64| Planned { from: to.clone(), to, twin: None, len };
    if !puddle.role.is_of_pool() {
        // An object may have regions of its protection behind its data.
        return Ok(match inner.medium.len(&to) {
            Ok(len) => {
                let problem = inner.check_stamp(state, puddle, &to)?;
                (of(to, len), problem)
            }
            Err(error) => (of(to, puddle.size), Some(error.to_string())),
        });
    }
    let looked = !state.pending.contains_key(&puddle.uuid);
    let at_rest = state.at_rest(puddle.pool);
    if at_rest != AtRest::None {
        let problem = if looked { inner.verify_sealed(puddle, at_rest)? } else { None };
        return Ok((of(to, file_len(puddle, at_rest).unwrap_or(puddle.size)), problem));
    }
    if state.is_shadowed(puddle.pool) {
        let primary = text(&primary_name(puddle.uuid)).to_owned();
        let problem = match looked {
            true => inner.check_primary(state, puddle)?,
            false => inner.check_stamp(state, puddle, &primary)?,
        };
        let (from, twin) = (primary.clone(), Some(primary));
        return Ok((Planned { from, to, twin, len: puddle.size }, problem));
    }
    let problem = match looked {
        true => inner.check_file(state, puddle)?,
        false => inner.check_stamp(state, puddle, &to)?,
    };
    Ok((of(to, puddle.size), problem))
}

/// Copies a file. It has its space taken, unless the original has holes: then those are holes in
/// the copy, too.
pub(super) fn copy_whole(
    source: &OwnedMedium,
    target: &OwnedMedium,
    planned: &Planned,
    progress: &mut BackupProgress<'_>,
) -> Result<Copied, StoreError> {
    let from = FileHandle::open(source, &planned.from)?;
    for dir in DIRS.iter().filter(|dir| !target.exists(dir).unwrap_or(true)) {
        target.make_dir(dir)?;
    }
    crate::kernel::catalog::remove_if_there(target, &planned.to)?;
    create(target, &planned.to, planned.len, from.has_holes()?)?;
    let file = FileHandle::open(target, &planned.to)?;
    let mut buffer = vec![0; STEP as usize];
    let mut at = 0;
    while let Some((start, end)) = from.next_data(at, planned.len)? {
        let end = end.min(start + STEP);
        let bytes = &mut buffer[..(end - start) as usize];
        from.read_exact_at(start, bytes)?;
        file.write_at(start, bytes)?;
        progress.more(end - at)?;
        at = end;
    }
    progress.more(planned.len - at)?;
    Ok(Copied { file, twin: planned.twin.clone(), len: planned.len })
}

fn create(medium: &OwnedMedium, name: &str, len: u64, sparse: bool) -> Result<(), MediumError> {
    if !sparse {
        return medium.create(name, len);
    }
    medium.create(name, 0)?;
    medium.truncate(name, len)
}

/// Writes again what differs from the copy; the bytes of that.
pub(super) fn copy_changed(
    source: &OwnedMedium,
    name: &str,
    copied: &Copied,
    progress: &mut BackupProgress<'_>,
) -> Result<u64, StoreError> {
    let from = FileHandle::open(source, name)?;
    let (mut new, mut old) = (vec![0; STEP as usize], vec![0; STEP as usize]);
    let (mut at, mut written) = (0, 0);
    while at < copied.len {
        // A part that is a hole in both is zeros in both.
        let data = [from.next_data(at, copied.len)?, copied.file.next_data(at, copied.len)?];
        let Some(start) = data.iter().flatten().map(|(start, _)| *start).min() else { break };
        let end = data.iter().flatten().map(|(_, end)| *end).max().unwrap_or(start);
        let end = end.min(start + STEP).min(copied.len);
        let len = (end - start) as usize;
        from.read_exact_at(start, &mut new[..len])?;
        copied.file.read_exact_at(start, &mut old[..len])?;
        for (number, (new, old)) in new[..len]
            .chunks(PAGE_SIZE as usize)
            .zip(old[..len].chunks(PAGE_SIZE as usize))
            .enumerate()
        {
            if new != old {
                copied.file.write_at(start + number as u64 * PAGE_SIZE, new)?;
                written += new.len() as u64;
            }
        }
        progress.more(end - at)?;
        at = end;
    }
    Ok(written)
}

impl Copied {
    /// Makes it durable, and its twin.
    pub(super) fn finish(&self, medium: &OwnedMedium) -> Result<(), StoreError> {
        self.file.sync()?;
        let Some(twin) = &self.twin else { return Ok(()) };
        create(medium, twin, self.len, self.file.has_holes()?)?;
        let target = FileHandle::open(medium, twin)?;
        let mut buffer = vec![0; STEP as usize];
        let mut at = 0;
        while let Some((start, end)) = self.file.next_data(at, self.len)? {
            let end = end.min(start + STEP);
            let bytes = &mut buffer[..(end - start) as usize];
            self.file.read_exact_at(start, bytes)?;
            target.write_at(start, bytes)?;
            at = end;
        }
        Ok(target.sync()?)
    }
}

fn failed(path: &Path, what: &str, error: &io::Error) -> StoreError {
    let advice = match error.kind() {
        io::ErrorKind::NotFound => "make the directory that it lies in first".into(),
        io::ErrorKind::PermissionDenied => {
            let user = cenote_sys::process::uid();
            format!("name a directory in one that user {user} may write")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space, or name a directory on another file system".into()
        }
        io::ErrorKind::ReadOnlyFilesystem => "name a directory that can be written".into(),
        _ => "name another directory".to_owned(),
    };
    StoreError::Backup {
        kind: ErrorKind::of_system(error),
        detail: format!("{} cannot be {what}: {error}: {advice}", path.display()),
    }
}

/// The parent of a target, and the target's name.
fn parts(target: &Path) -> Result<(PathBuf, String), StoreError> {
    let name = target.file_name().ok_or_else(|| StoreError::Backup {
        kind: ErrorKind::Misuse,
        detail: format!("{} names no directory that could be made: name one", target.display()),
    })?;
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok((parent.unwrap_or(Path::new(".")).to_owned(), name.to_string_lossy().into_owned()))
}

/// Makes the directory that becomes `target`, beside it, after removing those that a crash left.
pub(super) fn make_directory(target: &Path, store: &Path) -> Result<PathBuf, StoreError> {
    let (parent, name) = parts(target)?;
    if let Ok(mut entries) = std::fs::read_dir(target)
        && let Some(Ok(entry)) = entries.next()
    {
        let detail = format!(
            "{} is not empty ({:?}): name a new directory",
            target.display(),
            entry.file_name()
        );
        return Err(StoreError::Backup { kind: ErrorKind::Exists, detail });
    }
    if std::fs::symlink_metadata(target).is_ok_and(|found| !found.is_dir()) {
        let detail = format!("{} is no directory: name a new one", target.display());
        return Err(StoreError::Backup { kind: ErrorKind::Exists, detail });
    }
    let inside = |store: &Path| parent.canonicalize().is_ok_and(|parent| parent.starts_with(store));
    if store.canonicalize().is_ok_and(|store| inside(&store)) {
        return Err(StoreError::Backup {
            kind: ErrorKind::Misuse,
            detail: format!("{} is inside the store: name one outside it", target.display()),
        });
    }
    let prefix = format!(".{name}{MARK}");
    for entry in std::fs::read_dir(&parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(&prefix));
        if number.is_some_and(|number| {
            number.len() == 16 && number.bytes().all(|b| b.is_ascii_hexdigit())
        }) {
            remove_abandoned(&entry.path());
        }
    }
    let random =
        cenote_sys::process::random_bytes16().map_err(|error| failed(&parent, "named", &error))?;
    let path = parent.join(format!("{prefix}{:016x}", u128::from_le_bytes(random) as u64));
    std::fs::create_dir(&path).map_err(|error| failed(&path, "made", &error))?;
    Ok(path)
}

/// Says in a directory that was just made that it may be removed.
pub(super) fn mark_unfinished(medium: &OwnedMedium) -> Result<(), MediumError> {
    medium.create(UNFINISHED, 0)
}

/// Takes the mark away: the directory has its name. A mark that stays, in a store, means nothing.
pub(super) fn unmark(target: &Path) {
    let _ = std::fs::remove_file(target.join(UNFINISHED));
}

/// Removes what a crash left: an empty directory, or one that says that it is a backup in the
/// making, unless a process holds it.
fn remove_abandoned(path: &Path) {
    if std::fs::remove_dir(path).is_ok() || !path.join(UNFINISHED).is_file() {
        return;
    }
    let Ok(medium) = RealMedium::open(path, &MediumOptions::default()) else { return };
    if let Ok(Ok(_held)) = medium.hold("", LockKind::Exclusive) {
        let _ = std::fs::remove_dir_all(path);
    }
}

/// Gives a directory its name. The target is not there, or empty. An error means that it has not
/// got that name: a network file system may report one for a renaming that its server made, so the
/// old name is looked for.
pub(super) fn rename_directory(from: &Path, target: &Path) -> Result<(), StoreError> {
    let Err(error) = std::fs::rename(from, target) else { return Ok(()) };
    let is_gone =
        std::fs::symlink_metadata(from).is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
    if is_gone && target.join(crate::kernel::superblock::FILE).exists() {
        return Ok(());
    }
    Err(failed(target, "made", &error))
}

/// Makes the name durable.
pub(super) fn sync_parent(target: &Path) -> Result<(), StoreError> {
    let (parent, _) = parts(target)?;
    let synced = std::fs::File::open(&parent).and_then(|parent| parent.sync_all());
    match synced {
        Err(error)
            if !matches!(
                error.kind(),
                io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
            ) =>
        {
            let detail = format!(
                "{} cannot be synced: {error}: look at its disk, and sync it (`sync`)",
                parent.display()
            );
            Err(StoreError::BackupUnsynced { detail })
        }
        _ => Ok(()),
    }
}
