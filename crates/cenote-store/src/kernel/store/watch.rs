//! Pages that are lost under mappings which only the library reads and writes: logs and log spaces
//! of this session, and all that recovery has mapped. A file is cut short, or a device fails, after
//! the puddle was mapped.
//!
//! An instruction has no way to fail. So the fault handler puts a page of zeros, which goes to no
//! file, in the place of the lost page. Before that it *notes* the loss in the puddle, and for a
//! log of this session in the store's poison.
//!
//! # Why nothing comes of what was read there, or stored
//!
//! The thread that touches the page makes the note, before its instruction runs again. So a thread
//! that asks for notes after its access sees that of its own access. (Another thread that touches
//! the page later finds memory there, and sees the earlier note.)
//!
//! *A log of this session.* After each store to a log on which a later step relies, the step asks:
//! an entry before the change that it covers, the range before redo data and marks, and its end
//! before blocks are given out (`cenote_log::LogWriter::is_lost`, `cenote_tx`). So no change in
//! place lacks an entry in the file, and the file's log is at each moment one that a crash of this
//! process could leave. No caller gets the transaction acknowledged. Its changes stay half done in
//! memory, and no thread sees them: this session reads values no more
//! ([`Poisoned::check_readable`](crate::kernel::superblock::poison::Poisoned::check_readable)), and
//! where processes share a pool, the lock of the transaction is not given back. The next opener, or
//! the daemon when this process has ended, replays the file's log. If the page is gone from the
//! file too, the log fails its checks, and the pools are refused.
//!
//! *A log space.* An entry is asked for before its log is used.
//!
//! *Recovery.* It asks when it has read, before it writes, and before the range of a log moves on
//! (`cenote_log::ReplayTarget::is_lost`). A client of which a page was lost stays as it is, with
//! its logs, which are not marked. The next recovery writes again what this one has written.
//!
//! # States of a page
//!
//! *There*; *noted*; *replaced*, until the puddle is unmapped. A puddle is watched from before it
//! is touched until after it was touched last; a new watch of it forgets old notes.

use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::lost_page::LostLog;
use crate::kernel::puddles::notice::Watcher;
use crate::kernel::puddles::puddle::Puddle;
use crate::kernel::store::{Inner, Store};
use crate::kernel::superblock::poison::Poison;
use cenote_layout::PAGE_SIZE;
use cenote_medium::planted::{Bug, planted};
use cenote_sys::{alt_stack, bytes, fault, memory};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

impl Store {
    /// Fails if values may be those of a transaction that is half done, because a page of a log was
    /// lost, or this process is a fork of the store's opener.
    ///
    /// # Errors
    /// [`StoreError::Forked`], [`StoreError::LogLost`].
    #[inline]
    pub fn check_readable(&self) -> Result<(), StoreError> {
        self.inner().poisoned.check_readable()
    }

    /// The flag for the writer of a log. It is set when a page of a log of this session is lost,
    /// before an access to the page can succeed.
    ///
    /// # Safety
    /// The caller reads it, and does not change it: transactions would go on without their logs.
    #[must_use]
    pub unsafe fn log_is_lost(&self) -> Arc<AtomicBool> {
        self.inner().poisoned.log_is_lost()
    }
}

impl Inner {
    /// From now on a page of this puddle that is lost is replaced, and noted.
    ///
    /// # Safety
    /// It is mapped for the library alone, stays where it is until it is not watched any more, and
    /// the caller asks for notes as the module says.
    pub(crate) unsafe fn watch(&self, puddle: &Puddle, watcher: Watcher) {
        let notice = &puddle.notice;
        notice.lost.store(0, Ordering::Relaxed);
        notice.poisons.store(watcher == Watcher::Session, Ordering::Relaxed);
        self.window.watch(puddle, true);
    }

    /// Ends [`Inner::watch`].
    pub(crate) fn unwatch(&self, puddle: &Puddle) {
        self.window.watch(puddle, false);
    }

    /// What the fault handler does about a bus error. `None`: the puddle is not watched.
    pub(crate) fn stand_in(&self, address: usize) -> Option<bool> {
        let puddle = self.window.watched(address as u64)?;
        // Such a load answers for itself.
        if fault::is_peek() {
            return Some(false);
        }
        let replace = || self.put_zeros(puddle, address);
        Some(alt_stack::run(replace).unwrap_or_else(replace))
    }

    fn put_zeros(&self, puddle: &Puddle, address: usize) -> bool {
        let len = memory::page_bytes();
        let page = address & !(len - 1);
        // Another thread may have replaced it since the fault.
        if bytes::copy_by_kernel(page, &mut [0]).is_ok() {
            return true;
        }
        let number = (page as u64 - puddle.addr()) / PAGE_SIZE;
        let notice = &puddle.notice;
        // Before the page is there.
        let _ = notice.lost.compare_exchange(0, number + 1, Ordering::SeqCst, Ordering::SeqCst);
        if notice.poisons.load(Ordering::Relaxed) && !planted(Bug::LostLogNotPoisoned) {
            let lost = LostLog { puddle: puddle.uuid(), page: number };
            self.poisoned.set(Poison::LostLog(lost));
        }
        // Shared: where the log is mapped twice, both mappings are to show it.
        // SAFETY: a page of the puddle's mapping, which only the library uses: what is read there,
        // or stored, comes to nothing (the module's page).
        unsafe { memory::map_shared(page, len) }.is_ok()
    }
}
