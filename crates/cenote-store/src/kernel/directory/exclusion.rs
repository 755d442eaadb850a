//! Takes the locks of an open (one writer, or many readers), and refuses what is opened only if the
//! caller asks for it.
//!
//! Five locks, taken in this order, all or none:
//!
//! 1. A record lock on the file `lock`. It names its holder, for messages. Code of this process
//!    that opens and closes the file drops it, and it does not exclude a program that removes the
//!    file.
//! 2. A lock on the store's directory, and 3. one on the file `superblock`. Nothing that a process
//!    does to files drops them ([`Medium::hold`]). Every opener of the store touches both inodes.
//!    So two openers that share one of them exclude each other, also by different paths and with
//!    different other files.
//! 4. A lock on the directory `puddles`, and 5. one on `primary`, where there is one. A bind mount
//!    puts them into a second store, which shares neither inode with the first. From then on names
//!    in them are looked up in what is locked, so a mount over them later changes nothing. A
//!    `primary` that a session makes is locked then ([`Inner::hold_primaries`]), before a file is
//!    made in it.
//!
//! A writer refuses, under these locks, a file that it writes and that has several names, since
//! another store may share it: here the superblock, the catalog and the journals, and puddles where
//! they are opened ([`crate::kernel::puddles::verify::verify_all`]).
//!
//! An opener that shares none of these inodes has a copy before it, or a store that was put back
//! from one: [`crate::kernel::superblock::origin`].

use crate::kernel::catalog;
use crate::kernel::catalog::journals::JournalOf;
use crate::kernel::interface::error::{OpenError, StoreError};
use crate::kernel::interface::options::CopyPolicy;
use crate::kernel::interface::report::Damage;
use crate::kernel::puddles::puddle::{DIR, PRIMARY_DIR};
use crate::kernel::store::{Inner, LOCK};
use crate::kernel::superblock::origin::{Origin, StorePlace, living_opener};
use crate::kernel::superblock::{FILE, FoundSuperblock, load};
use cenote_layout::id::Uuid;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{
    FileName, LockGuard, LockHolder, LockKind, MediumError, MediumInfo, OwnedMedium,
};
use cenote_sys::process;
use std::time::{Duration, Instant};

/// How often a lock is tried while waiting for it.
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// The locks of an open: the first four, and the one on `primary`. `None`: there was none.
pub(crate) type Locks = ([LockGuard; 4], Option<LockGuard>);

/// Takes all locks of an open, waiting at most `timeout`, and says where the store lies that they
/// are on.
pub(crate) fn take(
    medium: &OwnedMedium,
    exclusive: bool,
    timeout: Duration,
) -> Result<(Locks, StorePlace), OpenError> {
    let kind = if exclusive { LockKind::Exclusive } else { LockKind::Shared };
    let path = || medium.describe().path;
    let failed = |source| OpenError::Medium { path: path(), source: Box::new(source) };
    let started = Instant::now();
    loop {
        let holder = match try_take(medium, kind) {
            Ok(Ok(taken)) if exclusive => {
                return refuse_links(medium).map(|()| taken).map_err(failed);
            }
            Ok(Ok(taken)) => return Ok(taken),
            Ok(Err(holder)) => holder,
            Err(source) => return Err(failed(source)),
        };
        let waited = started.elapsed();
        if waited >= timeout {
            let LockHolder { pid, text } = named(medium, holder);
            return Err(OpenError::Locked { path: path(), pid, holder: text, waited });
        }
        std::thread::sleep(LOCK_RETRY.min(timeout - waited));
    }
}

/// Files of control data.
fn control_files() -> impl Iterator<Item = &'static str> {
    let journals = JournalOf::ALL.map(JournalOf::file);
    catalog::FILES.into_iter().chain(journals).chain([FILE])
}

/// Refuses a file that has several names.
fn refuse_link(medium: &OwnedMedium, name: &str) -> Result<(), MediumError> {
    match medium.stat(name) {
        // The journals come with the first psync; the code that needs another file reports it.
        Err(error) if error.is_not_found() => Ok(()),
        stat => stat?.refuse_links(name).map(drop),
    }
}

/// Refuses a store whose files have several names.
fn refuse_links(medium: &OwnedMedium) -> Result<(), MediumError> {
    control_files().try_for_each(|name| refuse_link(medium, name))
}

/// Those that an open for writing refuses, all of them.
pub(crate) fn linked(medium: &OwnedMedium) -> Result<Vec<Damage>, MediumError> {
    let mut found = Vec::new();
    for name in control_files() {
        match refuse_link(medium, name) {
            Err(error @ MediumError::Linked { .. }) => {
                found.push(Damage::Control { name, detail: error.to_string() });
            }
            looked => looked?,
        }
    }
    Ok(found)
}

type TakenLocks = Result<(Locks, StorePlace), LockHolder>;

fn try_take(medium: &OwnedMedium, kind: LockKind) -> Result<TakenLocks, MediumError> {
    let lock = match medium.lock(LOCK, kind)? {
        Ok(guard) => guard,
        Err(holder) => return Ok(Err(holder)),
    };
    let (held, directory) = match medium.hold("", kind)? {
        Ok(held) => held,
        Err(holder) => return Ok(Err(holder)),
    };
    let (also, superblock) = match medium.hold(FILE, kind)? {
        Ok(held) => held,
        Err(holder) => return Ok(Err(holder)),
    };
    let puddles = match medium.hold_dir(DIR, kind)? {
        Ok(guard) => guard.unwrap_or_else(|| LockGuard::new(())),
        Err(holder) => return Ok(Err(holder)),
    };
    let all = [lock, held, also, puddles];
    Ok(medium
        .hold_dir(PRIMARY_DIR, kind)?
        .map(|primaries| ((all, primaries), StorePlace { directory, superblock })))
}

impl Inner {
    /// Makes the directory of primaries, if there is none yet, durably, and locks it: before this
    /// session makes a file there.
    ///
    /// States: no directory; an empty one, which the next open locks; **one that is locked**.
    pub(crate) fn hold_primaries(&self) -> Result<(), StoreError> {
        let mut held = self.primaries();
        if held.is_some() {
            return Ok(());
        }
        if !self.medium.exists(PRIMARY_DIR)? {
            self.medium.make_dir(PRIMARY_DIR)?;
            self.medium.sync_dir("").map_err(|error| self.failed(error))?;
        }
        if planted(Bug::NewDirectoryNotHeld) {
            return Ok(());
        }
        match self.medium.hold_dir(PRIMARY_DIR, LockKind::Exclusive)? {
            Ok(guard) => *held = guard,
            Err(_) => {
                let detail = "another store has locked the directory, which is mounted there";
                let name = FileName::new(PRIMARY_DIR);
                return Err(self.failed(MediumError::Replaced { name, detail }));
            }
        }
        Ok(())
    }
}

/// A holder that its lock does not name: a writer, by what the superblock says.
fn named(medium: &OwnedMedium, holder: LockHolder) -> LockHolder {
    if holder.pid.is_some() {
        return holder;
    }
    let found = load(medium, false).ok().filter(|found| !found.clean);
    match found.and_then(|found| living_opener(&found.newest)) {
        Some(pid) => LockHolder { pid: Some(pid), text: in_words(pid) },
        None => holder,
    }
}

fn in_words(pid: u32) -> String {
    match process::program(pid) {
        Some(name) => format!("process {pid} ({})", name.escape_debug()),
        None => format!("process {pid}"),
    }
}

/// Refuses a copy of an open store, unless the policy allows it. Whether it is one.
pub(crate) fn recognise(
    info: &MediumInfo,
    found: &FoundSuperblock,
    place: StorePlace,
    now: (Uuid, u64),
    policy: CopyPolicy,
) -> Result<bool, OpenError> {
    let block = &found.newest;
    let path = info.path.clone();
    match place.compare(block, found.clean, now, info.kind) {
        Origin::Own => Ok(false),
        Origin::OfLiving(pid) => Err(OpenError::CopyOfOpen { path, pid, holder: in_words(pid) }),
        Origin::Copy if policy == CopyPolicy::Refuse => Err(OpenError::Copied { path }),
        Origin::Copy => Ok(true),
    }
}
