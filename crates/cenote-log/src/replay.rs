//! Application-independent recovery of one log (PUD-2, PUD-3; Puddles paper, 4.1 "Recovery").
//!
//! # What is decided
//!
//! | range | seal | then |
//! | --- | --- | --- |
//! | running | none, or not the contents of memory | roll back: undo-class entries, last first |
//! | running | fits the contents of memory | committed: roll forward |
//! | committed | fits the entries, or there is none | roll forward: redo-class entries, in order |
//!
//! A committed log must be complete. After a crash of processes the tail word has its count. After
//! a loss of power redo data must be sealed; without any, nothing is missing that counts.
//!
//! *Marks* of allocation are written in either direction, as all else: forward, blocks that the
//! transaction took become allocated, and those that it freed, free; back, the other way round,
//! last entry first, so that a block that it took and freed ends as free. They are flushed: after a
//! loss of power they are believed.
//!
//! # States of a replay, and the store that commits it
//!
//! 1. Every entry is checked, and every range that will be written is shown to be the owner's;
//!    nothing has changed. A failure here marks the log as set aside (one store) and ends.
//! 2. The log's entries, and the contents that a seal covers, are flushed and fenced: after a crash
//!    of processes they were seen, but need not be durable, and a loss of power during 3 must find
//!    the same evidence and decide the same.
//! 3. Ranges are written, flushed, fenced. A crash in between starts again at 1: applying the same
//!    entries twice gives the same bytes, and a half-done roll-back is never taken for a commit:
//!    the seal fits only if *every* range holds its new contents, and then memory holds exactly the
//!    committed state.
//! 4. The range moves on by one 8-byte store, flushed and fenced: **this store ends the replay**.
//!
//! The range moves on even when nothing was to do, and by two transactions: entries may exist
//! behind a torn one; and where the store that finished a transaction was not fenced, the range on
//! media is that one's while entries of the *next* are already in the other half. Neither must ever
//! count for a later transaction.
//!
//! *A page that is lost meanwhile*, of the log or of a range, is read as other bytes, and takes
//! stores that go nowhere ([`ReplayTarget::is_lost`]). That is asked before 2 ends, before 4 and
//! after it. Then the replay ends in the state that it is in, and the log is not marked.

use crate::body::{Body, next_epoch};
use crate::damage::{CrashKind, LogDamage, Refusal};
use crate::scan::{LogScan, ScannedEntry, scan};
use cenote_layout::id::Uuid;
use cenote_layout::log::{
    ContentHash, EntryKind, LAST_BASE, LOG_QUARANTINED, LogRange, SequenceRange, Stage, TailWord,
};
use cenote_medium::Persistence;
use cenote_medium::planted::{Bug, Step, planted, reach};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

/// What a replay did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No transaction was running.
    Idle,
    /// A running transaction was undone.
    RolledBack {
        /// Entries applied.
        entries: u64,
    },
    /// A committed transaction was completed.
    RolledForward {
        /// Entries applied.
        entries: u64,
    },
    /// The log failed its checks: it is marked and kept, nothing was applied.
    Quarantined(LogDamage),
    /// An earlier recovery had set the log aside.
    AlreadyQuarantined,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle => f.write_str("idle"),
            Self::RolledBack { entries } => write!(f, "rolled back {entries} entries"),
            Self::RolledForward { entries } => write!(f, "rolled forward {entries} entries"),
            Self::Quarantined(damage) => write!(f, "set aside: {damage}"),
            Self::AlreadyQuarantined => f.write_str("set aside by an earlier recovery"),
        }
    }
}

/// The memory that a replay may touch. Code that has the store implements it.
pub trait ReplayTarget {
    /// A pointer to the mapped, writable range, if all of it lies in one puddle that `owner` held a
    /// writable lease on; never memory of a log. Asked for every entry before any is applied.
    ///
    /// `owner` comes from the log's header, and every process that can write the log can write the
    /// header. So an implementation compares it with the client whose log space names the log, and
    /// refuses others (PUD-3).
    ///
    /// # Errors
    /// Why not.
    fn writable(&mut self, owner: Uuid, addr: u64, len: u64) -> Result<*mut u8, Refusal>;

    /// The body of the log puddle at this address, if it is one of `owner`'s; `owner` is to be
    /// doubted as in [`ReplayTarget::writable`].
    fn segment(&mut self, owner: Uuid, puddle_addr: u64) -> Option<Body>;

    /// How writes to the ranges are made durable.
    fn persistence(&self) -> Persistence;

    /// Whether a page of what this gave, or of the log's head, was lost, and memory that goes to no
    /// file has taken its place. It says so before an access to that memory can succeed.
    fn is_lost(&self) -> bool {
        false
    }
}

/// An entry with the checked pointer to what it changes.
struct Action {
    entry: ScannedEntry,
    /// The bits of the word at `target` that it sets (true) or clears; otherwise `target` is its
    /// range.
    bits: Option<(u64, bool)>,
    target: *mut u8,
}

/// Recovers the log whose head segment is `head`: exclusively, idempotently, after any crash,
/// including one of an earlier replay.
///
/// # Safety
/// `head` is mapped for writing. The pointers and bodies that `target` gives are mapped for writing
/// (bodies at least for reading). No other thread uses any of them until the replay returns.
pub unsafe fn replay(head: Body, crash: CrashKind, target: &mut dyn ReplayTarget) -> Outcome {
    // SAFETY: mapped by contract.
    if unsafe { head.state().load(Ordering::Relaxed) } == LOG_QUARANTINED {
        return Outcome::AlreadyQuarantined;
    }
    // SAFETY: the caller's promise.
    match unsafe { attempt(head, crash, target) } {
        Ok(outcome) => outcome,
        // What a newer release wrote is not for us to mark.
        Err(damage @ LogDamage::Unsupported(_)) => Outcome::Quarantined(damage),
        // Nor what was not seen.
        Err(_) if target.is_lost() && !planted(Bug::LostReplayBelieved) => {
            Outcome::Quarantined(LogDamage::PageLost)
        }
        Err(damage) => {
            // SAFETY: mapped for writing by contract. One 8-byte store: the log is set aside, or
            // not yet.
            unsafe {
                let state = head.state();
                state.store(LOG_QUARANTINED, Ordering::Release);
                target.persistence().flush(core::ptr::from_ref(state).cast(), 8);
            }
            target.persistence().fence();
            Outcome::Quarantined(damage)
        }
    }
}

/// Scans, decides, checks all, applies all, moves the range on.
unsafe fn attempt(
    head: Body,
    crash: CrashKind,
    target: &mut dyn ReplayTarget,
) -> Result<Outcome, LogDamage> {
    // SAFETY: the caller's promise.
    let scan = unsafe { scan(head, crash, true, &mut |owner, addr| target.segment(owner, addr))? };
    let forward = match scan.range.stage() {
        Stage::Committed => {
            // The redo data was durable before the range said so; how much there is, the seal says
            // (always there at `power`), or the tail word, which `scan` has compared if
            // it is exact.
            let redo = scan.entries.iter().any(|entry| entry.kind == EntryKind::Redo);
            if scan.seal.is_none() && crash == CrashKind::Power && redo {
                return Err(LogDamage::Uncounted);
            }
            true
        }
        Stage::Running => match scan.seal {
            // SAFETY: the caller's promise.
            Some(contents) => unsafe { contents_fit(&scan, contents, target)? },
            None => false,
        },
    };
    let actions = check(&scan, forward, target)?;
    let persistence = target.persistence();
    if persistence.is_power() && !scan.entries.is_empty() {
        // SAFETY: the log and its ranges are mapped.
        unsafe { persist_evidence(&scan, forward, persistence, target)? };
    }
    reach(Step::LogRead);
    // The files have what was decided from.
    refuse_lost(target)?;
    // SAFETY: every action's pointer was checked to be a writable mapping of its range; no other
    // thread uses it.
    unsafe {
        if forward {
            actions.iter().for_each(|action| apply(action, persistence));
        } else if planted(Bug::UndoAppliedForward) {
            actions.iter().for_each(|action| apply(action, persistence));
        } else {
            actions.iter().rev().for_each(|action| apply(action, persistence));
        }
    }
    if !planted(Bug::ReplayNotFenced) {
        persistence.fence();
    }
    reach(Step::LogApplied);
    // What was written is in the files.
    refuse_lost(target)?;
    // SAFETY: mapped for writing by contract.
    unsafe { move_on(head, scan.range.base(), persistence) };
    // The range too: else the log would be replayed over what comes later.
    refuse_lost(target)?;
    let entries = actions.len() as u64;
    Ok(if scan.entries.is_empty() {
        Outcome::Idle
    } else if forward {
        Outcome::RolledForward { entries }
    } else {
        Outcome::RolledBack { entries }
    })
}

/// Fails if a page was lost. What was done until then is a state of the replay, and is repeated.
fn refuse_lost(target: &dyn ReplayTarget) -> Result<(), LogDamage> {
    match target.is_lost() && !planted(Bug::LostReplayBelieved) {
        true => Err(LogDamage::PageLost),
        false => Ok(()),
    }
}

/// Whether memory holds what the seal's transaction wrote.
unsafe fn contents_fit(
    scan: &LogScan,
    contents: u64,
    target: &mut dyn ReplayTarget,
) -> Result<bool, LogDamage> {
    if planted(Bug::SealContentsIgnored) {
        return Ok(true);
    }
    let mut hash = ContentHash::EMPTY;
    for (pointer, len) in covered(scan, target)? {
        // SAFETY: a mapped range of `len` bytes, by the target's promise.
        hash = hash.with(unsafe { core::slice::from_raw_parts(pointer, len) });
    }
    Ok(hash.0 == contents)
}

/// The ranges that a seal covers, in order, each shown to be the owner's.
fn covered(
    scan: &LogScan,
    target: &mut dyn ReplayTarget,
) -> Result<Vec<(*mut u8, usize)>, LogDamage> {
    let entries = scan.entries.iter().enumerate();
    entries
        .filter(|(_, entry)| entry.kind.is_sealed())
        .map(|(index, entry)| {
            Ok((locate(scan.owner, index, entry.addr, entry.size, target)?, entry.size as usize))
        })
        .collect()
}

/// Makes durable what the decision rests on, before the first store that follows from it.
unsafe fn persist_evidence(
    scan: &LogScan,
    forward: bool,
    persistence: Persistence,
    target: &mut dyn ReplayTarget,
) -> Result<(), LogDamage> {
    let contents = if forward { covered(scan, target)? } else { Vec::new() };
    // SAFETY: areas lie in the log's mapped segments, ranges are mapped by the target's promise.
    unsafe {
        scan.areas.iter().for_each(|&(start, len)| persistence.flush(start, len));
        contents.iter().for_each(|&(start, len)| persistence.flush(start, len));
    }
    persistence.fence();
    Ok(())
}

fn locate(
    owner: Uuid,
    index: usize,
    addr: u64,
    size: u32,
    target: &mut dyn ReplayTarget,
) -> Result<*mut u8, LogDamage> {
    let refused = |refusal| LogDamage::ForeignRange { index: index as u32, addr, size, refusal };
    if addr.checked_add(u64::from(size)).is_none() {
        return Err(refused(Refusal::Outside));
    }
    target.writable(owner, addr, u64::from(size)).map_err(refused)
}

/// The entries to apply, in log order, each range shown to be the owner's, before any is applied.
fn check(
    scan: &LogScan,
    forward: bool,
    target: &mut dyn ReplayTarget,
) -> Result<Vec<Action>, LogDamage> {
    let mut actions = Vec::new();
    for (index, entry) in scan.entries.iter().enumerate() {
        let (applies, set) = match entry.kind {
            EntryKind::Redo => (forward, false),
            EntryKind::Undo | EntryKind::ClearBitsOnAbort => (!forward, false),
            EntryKind::Allocation => (true, forward),
            EntryKind::ClearBitsOnCommit if planted(Bug::RollBackKeepsFree) => (forward, false),
            EntryKind::ClearBitsOnCommit => (true, !forward),
            // Volatile memory is gone; fresh ranges have no old contents; seals and jumps are about
            // the log itself.
            EntryKind::Volatile | EntryKind::Fresh | EntryKind::Seal | EntryKind::Jump => {
                (false, false)
            }
        };
        if applies {
            // SAFETY: the entry lies in the log, and no thread changes that (contract of `replay`).
            let bits = unsafe { entry.bits() };
            let (addr, size) = bits.map_or((entry.addr, entry.size), |bits| (bits.word, 8));
            let target = locate(scan.owner, index, addr, size, target)?;
            actions.push(Action { entry: *entry, bits: bits.map(|bits| (bits.mask, set)), target });
        }
    }
    Ok(actions)
}

/// Copies an entry's data to its range, or sets or clears its bits, and flushes. Which direction an
/// entry belongs to was decided before: applying is the same for undo and redo.
unsafe fn apply(action: &Action, persistence: Persistence) {
    // SAFETY: `target` is a writable mapping of the word or the range (checked), the data lies in
    // the log, and both are ours.
    unsafe {
        match action.bits {
            Some((mask, set)) => {
                let word = action.target.cast::<u64>();
                let changed = |old: u64| if set { old | mask } else { old & !mask };
                if word.is_aligned() {
                    // Other bits of the word may be those of processes that live and go on.
                    let atomic = AtomicU64::from_ptr(word);
                    let _ = atomic.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |old| {
                        Some(changed(old))
                    });
                } else {
                    word.write_unaligned(changed(word.read_unaligned()));
                }
                if !planted(Bug::ReplayMarkNotFlushed) {
                    persistence.flush(action.target, 8);
                }
            }
            None => {
                let data = action.entry.data();
                core::ptr::copy(data.as_ptr(), action.target, data.len());
                persistence.flush(action.target, data.len());
            }
        }
    }
}

/// Moves the range on by two transactions; starts a new epoch where numbers run out. Tail and
/// overflow words follow, so a damaged one has no effect on the next transaction.
unsafe fn move_on(head: Body, base: u32, persistence: Persistence) {
    // SAFETY: mapped for writing by contract of the callers.
    unsafe {
        if base < LAST_BASE - 8 {
            let base = base + 8;
            let range = head.range();
            range.store(SequenceRange::running(base).to_word(), Ordering::Release);
            // After the range, which makes the old ones meaningless.
            head.tail().store(TailWord { base, entries: 0 }.to_word(), Ordering::Release);
            head.overflow().store(TailWord { base, entries: 0 }.to_word(), Ordering::Release);
            persistence.persist(core::ptr::from_ref(range).cast(), size_of::<LogRange>());
        } else {
            next_epoch(head, persistence);
        }
    }
}
