//! Makes and hands out this session's log space and logs (PUD-4; Puddles paper, Figure 5), and
//! keeps the spare puddles for them.
//!
//! # Updates in several steps
//!
//! **The log space** is made with the session's first log. (1) a puddle is taken, new or spare, and
//! its body written: header, no entries; durable, but no record names it; (2) one batch names the
//! client and its log space: **the catalog's batch commits**.
//!
//! **A log, or a further segment of one.** (1) a puddle is taken, new or spare, and formatted,
//! durably: idle; (2) an entry of the log space is written but for its `state`, and made durable:
//! **this fence commits**, because the checksum covers the state that is to come, and a reader of
//! the entry tries both; (3) `state` is written and flushed; only then is the segment used. The
//! fence that makes it durable is that of the log's first undo entry or seal, which comes before
//! anything that needs the log. Should it be lost, the entry names its segment all the same; what
//! it adds is that from then on an entry whose checksum does not fit is damage, and not a write
//! that was cut short. An entry before one that is written was completed, with any state.
//!
//! Logs that are given back stay in the log space, empty, and are handed out again. Puddles of
//! earlier sessions, once recovery is done with them, are spare: they keep their records, and are
//! formatted anew under another log id, so that no old entry counts.

use crate::kernel::interface::error::StoreError;
use crate::kernel::puddles::notice::Watcher;
use crate::kernel::puddles::puddle::{Puddle, file_name};
use crate::kernel::puddles::verify::{of_file, verify_file};
use crate::kernel::store::log_list::{LogLease, SessionSpace};
use crate::kernel::store::{Control, Inner, Store};
use cenote_layout::catalog::{ClientRecord, PuddleRecord, Record};
use cenote_layout::header::{HeaderPrefix, seal};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::log::RANGE_OFFSET;
use cenote_layout::log_space::{
    ENTRY_CONTINUATION, ENTRY_HEAD, LOG_SPACE_ENTRIES_OFFSET, LogSpaceEntry, LogSpaceHeader,
};
use cenote_layout::puddle::Role;
use cenote_log::{Body, format_segment};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{MapMode, MediumError, Operation};
use cenote_sys::memory::{OwnedRegion, hidden};
use core::ptr::{NonNull, with_exposed_provenance, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::MutexGuard;
use std::time::Instant;
use zerocopy::IntoBytes;

/// Bytes of a log space puddle: room for about a thousand segments.
pub(crate) const LOG_SPACE_SIZE: u64 = 64 << 10;
/// Further segments double in size up to this.
pub(crate) const SEGMENT_SIZE_MAX: u64 = 64 << 20;
/// What a log is for.
const RUN: &str = "run transactions";
/// Spare puddles that are kept over a close.
const SPARE_MAX: usize = 32;

impl Store {
    /// A log for one thread: one that was given back, else a new one. Give it back with
    /// [`Store::release_log`] when its last transaction is finished.
    ///
    /// # Errors
    /// The store is read-only or poisoned; no space for a puddle; more logs than a log space holds.
    pub fn acquire_log(&self) -> Result<LogLease, StoreError> {
        self.log_under(self.inner().begin_write(RUN)?)
    }

    /// As [`Store::acquire_log`], or as [`Store::acquire_hidden_log`], but `None` if other threads
    /// have the store until then: one that copies it, say.
    ///
    /// # Errors
    /// As those.
    pub fn acquire_log_until(
        &self,
        hidden: bool,
        until: Instant,
    ) -> Result<Option<LogLease>, StoreError> {
        let Some(control) = self.inner().begin_write_until(RUN, until)? else { return Ok(None) };
        let hidden = hidden && !planted(Bug::HiddenLogInFile);
        if hidden { self.hidden_log_under(control) } else { self.log_under(control) }.map(Some)
    }

    fn log_under(&self, mut control: MutexGuard<'_, Control>) -> Result<LogLease, StoreError> {
        let inner = self.inner();
        if let Some(lease) = control.logs.idle.pop() {
            control.logs.in_use += 1;
            return Ok(lease);
        }
        let log_id = inner.random_u64()?;
        let (addr, body) =
            inner.add_segment(&mut control, log_id, 0, inner.options.log_puddle_size)?;
        control.logs.in_use += 1;
        Ok(LogLease { body, log_id, addr, hidden: false })
    }

    /// A log as [`Store::acquire_log`] gives one, in memory that has no file, is in no core dump
    /// and goes with the process: for transactions on pools that are protected at rest, whose
    /// old values no file may hold. Such a transaction is over with its process in any case,
    /// because the pool goes back to its last psync.
    ///
    /// # Errors
    /// The store is read-only or poisoned; no memory.
    pub fn acquire_hidden_log(&self) -> Result<LogLease, StoreError> {
        if planted(Bug::HiddenLogInFile) {
            return self.acquire_log();
        }
        self.hidden_log_under(self.inner().begin_write(RUN)?)
    }

    fn hidden_log_under(
        &self,
        mut control: MutexGuard<'_, Control>,
    ) -> Result<LogLease, StoreError> {
        let inner = self.inner();
        if let Some(lease) = control.logs.hidden_idle.pop() {
            control.logs.in_use += 1;
            return Ok(lease);
        }
        let log_id = inner.random_u64()?;
        let (addr, body) =
            inner.add_hidden_segment(&mut control, log_id, 0, inner.options.log_puddle_size)?;
        control.logs.in_use += 1;
        control.logs.hidden_ids.insert(log_id);
        Ok(LogLease { body, log_id, addr, hidden: true })
    }

    /// Takes a log of this store back; it is handed out again. Its last transaction must be
    /// finished or aborted: a log that holds an unfinished transaction is not given back but
    /// dropped. The store then does not count as closed, and the next open rolls the
    /// transaction back.
    pub fn release_log(&self, lease: LogLease) {
        if lease.hidden {
            let mut control = self.inner().control();
            let ours = |region: &OwnedRegion| region.as_ptr().addr() as u64 == lease.addr;
            if control.logs.hidden.iter().any(ours) {
                control.logs.in_use = control.logs.in_use.saturating_sub(1);
                control.logs.hidden_idle.push(lease);
            }
            return;
        }
        if lease.addr.wrapping_sub(self.inner().window.base()) >= self.inner().window.len() {
            return; // another store's
        }
        let mut control = self.inner().control();
        control.logs.in_use = control.logs.in_use.saturating_sub(1);
        control.logs.idle.push(lease);
    }

    /// Segment `segment` (from 1) of a log: address of its puddle, and its body; formatted and
    /// listed, durably. The same one if it exists already. Of one without a file: memory like
    /// its own.
    ///
    /// # Errors
    /// As [`Store::acquire_log`].
    pub fn grow_log(&self, log_id: u64, segment: u32) -> Result<(u64, Body), StoreError> {
        let inner = self.inner();
        let mut control = inner.begin_write("let a log grow")?;
        if let Some(known) = control.logs.segments.get(&(log_id, segment)) {
            return Ok(*known);
        }
        let size = inner
            .options
            .log_puddle_size
            .checked_shl(segment.min(20))
            .unwrap_or(SEGMENT_SIZE_MAX)
            .min(SEGMENT_SIZE_MAX)
            .max(inner.options.log_puddle_size);
        let made = match control.logs.hidden_ids.contains(&log_id) {
            true => inner.add_hidden_segment(&mut control, log_id, segment, size)?,
            false => inner.add_segment(&mut control, log_id, segment, size)?,
        };
        control.logs.segments.insert((log_id, segment), made);
        Ok(made)
    }
}

impl Inner {
    /// Takes memory, and formats it as a segment.
    fn add_hidden_segment(
        &self,
        control: &mut Control,
        log_id: u64,
        segment: u32,
        size: u64,
    ) -> Result<(u64, Body), StoreError> {
        let region = hidden(size as usize)
            .map_err(|error| MediumError::from_io(Operation::Map, "a log without a file", error))?;
        let body = Body::new(region.as_ptr(), region.len() as u64);
        // SAFETY: memory of ours, as long as the store is open, and no other code has its address.
        unsafe { format_segment(body, control.client, log_id, segment, self.persistence) };
        let addr = region.as_ptr().expose_provenance() as u64;
        control.logs.hidden.push(region);
        Ok((addr, body))
    }

    /// Takes a puddle, formats it as a segment and lists it.
    fn add_segment(
        &self,
        control: &mut Control,
        log_id: u64,
        segment: u32,
        size: u64,
    ) -> Result<(u64, Body), StoreError> {
        self.ensure_log_space(control)?;
        let Some(space) = control.logs.space else {
            return Err(StoreError::ReadOnly { what: "run transactions" });
        };
        // SAFETY: puddles live until the store is dropped.
        if space.used >= capacity(unsafe { space.puddle.as_ref() }) {
            return Err(StoreError::TooManyLogs { logs: space.used });
        }
        let (record, new) = self.log_puddle(control, Role::Log, size)?;
        if new {
            self.commit_new_puddle(control, &record, &[])?;
        }
        let puddle = self.map_log_puddle(control, record)?;
        let distance = self.guard_logs(control, puddle);
        let body = Body { distance, ..body_of(puddle) };
        // SAFETY: mapped for writing just now, and no other code has the puddle.
        unsafe { format_segment(body, control.client, log_id, segment, self.persistence) };
        // No entry leads its reader to a log of which a page is lost already.
        self.check_poisoned()?;
        let state = if segment == 0 { ENTRY_HEAD } else { ENTRY_CONTINUATION };
        let entry = LogSpaceEntry::new(state, record.uuid, record.addr, log_id, u64::from(segment));
        // SAFETY: the log space is mapped for writing, the entry lies inside it (`used <
        // capacity`), and is written under the control lock only.
        unsafe { self.write_entry(&space, &entry) };
        // An entry that went nowhere names no log.
        self.check_poisoned()?;
        if let Some(space) = &mut control.logs.space {
            space.used += 1;
        }
        if segment == 0 {
            control.logs.heads.push(body);
        }
        Ok((record.addr, body))
    }

    /// Makes the ends of transactions durable that were left to later fences. Before a pool is
    /// removed: a transaction of it that is over must not be found unfinished when its
    /// addresses are another pool's.
    ///
    /// # Errors
    /// A page of a log is lost: what is not durable will not be.
    pub(crate) fn settle_logs(&self, control: &Control) -> Result<(), StoreError> {
        for head in &control.logs.heads {
            // SAFETY: heads stay mapped until the store is dropped, and each has room for its
            // range.
            unsafe { self.persistence.flush(head.ptr.add(RANGE_OFFSET as usize), 8) };
        }
        if !control.logs.heads.is_empty() {
            self.persistence.fence();
        }
        self.check_poisoned()
    }

    /// Writes the next entry: all but `state`, durable; then `state`, which is durable with the
    /// next fence.
    ///
    /// # Safety
    /// The log space is mapped for writing and has room for the entry; no other code writes to it.
    unsafe fn write_entry(&self, space: &SessionSpace, entry: &LogSpaceEntry) {
        let at = LOG_SPACE_ENTRIES_OFFSET + space.used * size_of::<LogSpaceEntry>() as u64;
        let unnamed = LogSpaceEntry { state: 0, ..*entry };
        // SAFETY: the caller's promise; bodies begin at a page, so that the entry is one aligned
        // cache line.
        unsafe {
            let target = (space.puddle.as_ref().body_addr() + at) as usize;
            let stored =
                with_exposed_provenance_mut::<LogSpaceEntry>(target.wrapping_add(space.distance));
            stored.write(unnamed);
            let target = with_exposed_provenance::<LogSpaceEntry>(target);
            self.persistence.persist(target.cast(), size_of::<LogSpaceEntry>());
            let word = AtomicU64::from_ptr(&raw mut (*stored).state);
            word.store(entry.state, Ordering::Release);
            self.persistence.flush((&raw const (*target).state).cast(), 8);
        }
    }

    /// Makes this session's log space if there is none.
    fn ensure_log_space(&self, control: &mut Control) -> Result<(), StoreError> {
        if control.logs.space.is_some() {
            return Ok(());
        }
        let (record, new) = self.log_puddle(control, Role::LogSpace, LOG_SPACE_SIZE)?;
        let puddle = match self.map_log_puddle(control, record) {
            Ok(puddle) => puddle,
            Err(error) => {
                if new {
                    self.forget_unnamed(control, &record);
                }
                return Err(error);
            }
        };
        if self.is_client() {
            // The daemon has written the header, and named the client.
            self.have_log_space(control, puddle);
            return Ok(());
        }
        let header = space_header(control.client, capacity(puddle));
        let len = puddle.body_len() as usize;
        // SAFETY: mapped for writing just now, `len` bytes from the body's start are in the puddle,
        // no other code has it.
        unsafe {
            let body = puddle.body_addr() as *mut u8;
            body.write_bytes(0, len);
            body.copy_from_nonoverlapping(header.as_bytes().as_ptr(), size_of::<LogSpaceHeader>());
            self.persistence.persist(body, len);
        }
        self.check_poisoned()?;
        let client =
            Record::Client(ClientRecord { client: control.client, log_space: record.uuid });
        if new {
            if let Err(error) = self.commit_new_puddle(control, &record, &[client]) {
                // The file is gone, and so is the mapping's use; the address was given back with
                // it.
                control.graveyard.extend(control.puddles.remove(&record.uuid));
                let _ = puddle.refuse(&self.medium);
                return Err(error);
            }
        } else {
            self.commit(control, &[client])?;
        }
        self.have_log_space(control, puddle);
        Ok(())
    }

    /// The log space is written, and without entries.
    fn have_log_space(&self, control: &mut Control, puddle: &Puddle) {
        let distance = self.guard_logs(control, puddle);
        let puddle = NonNull::from(puddle);
        control.logs.space = Some(SessionSpace { puddle, used: 0, distance });
    }

    /// A puddle for logs: the smallest spare one that is large enough and sound, else a new one
    /// that no record names yet (`true`).
    fn log_puddle(
        &self,
        control: &mut Control,
        role: Role,
        size: u64,
    ) -> Result<(PuddleRecord, bool), StoreError> {
        if let Some(remote) = &self.remote {
            return Ok((remote.log_puddle(self, control, role, size)?, false));
        }
        loop {
            let best = control
                .logs
                .spare
                .iter()
                .enumerate()
                .filter(|(_, p)| p.role == role && p.size >= size)
                .min_by_key(|(_, p)| p.size)
                .map(|(i, _)| i);
            let Some(best) = best else { break };
            let record = control.logs.spare.swap_remove(best);
            // A damaged spare puddle is passed over: there is nothing in it.
            let problem = of_file(verify_file(&self.medium, &record, self.uuid, true));
            if problem.map_err(|e| self.failed(e))?.is_none() {
                return Ok((record, false));
            }
        }
        Ok((self.new_puddle(control, PoolId(0), role, 0, size)?, true))
    }

    fn map_log_puddle<'a>(
        &self,
        control: &mut Control,
        record: PuddleRecord,
    ) -> Result<&'a Puddle, StoreError> {
        let puddle = self.own(control, record, MapMode::ReadWrite);
        // SAFETY: puddles live until the store is dropped; callers use the reference within.
        let puddle = unsafe { puddle.as_ref() };
        puddle.set_mode(&self.medium, MapMode::ReadWrite).map_err(|e| self.failed(e))?;
        puddle.map(&self.medium).map_err(|e| self.failed(e))?;
        // SAFETY: mapped until the store is dropped; the writers of logs and log spaces ask.
        unsafe { self.watch(puddle, Watcher::Session) };
        Ok(puddle)
    }

    /// Gives up a new puddle that no record names.
    fn forget_unnamed(&self, control: &mut Control, record: &PuddleRecord) {
        self.forget(control, record);
        let file = file_name(record.uuid);
        let _ = self.medium.remove(core::str::from_utf8(&file).unwrap_or_default());
    }

    /// Records that end this session's use of the catalog, and the spare puddles that go with it.
    pub(crate) fn closing_records(&self, control: &Control) -> (Vec<Record>, Vec<PuddleRecord>) {
        let mut records = Vec::new();
        let state = &control.catalog.state;
        let client = control.client;
        if state.leases.keys().any(|(holder, _)| *holder == client) {
            records.push(Record::LeasesEnded(client));
        }
        if state.clients.contains_key(&client) {
            records.push(Record::ClientRemoved(client));
        }
        let surplus: Vec<PuddleRecord> =
            control.logs.spare.iter().skip(SPARE_MAX).copied().collect();
        records.extend(surplus.iter().map(|p| Record::PuddleRemoved(p.uuid)));
        (records, surplus)
    }
}

/// The header of a client's log space.
pub(crate) fn space_header(client: Uuid, capacity: u64) -> LogSpaceHeader {
    let prefix = HeaderPrefix::new(*b"CENLGSPC", size_of::<LogSpaceHeader>() as u32);
    let mut header = LogSpaceHeader { prefix, client, capacity, reserved: [0; 56] };
    seal(&mut header);
    header
}

/// Entries that a log space has room for.
pub(crate) fn capacity(space: &Puddle) -> u64 {
    capacity_of(space.body_len())
}

/// The same for a body of so many bytes.
pub(crate) fn capacity_of(body_len: u64) -> u64 {
    body_len.saturating_sub(LOG_SPACE_ENTRIES_OFFSET) / size_of::<LogSpaceEntry>() as u64
}

/// A log puddle's body as `cenote_log` wants it.
pub(crate) fn body_of(puddle: &Puddle) -> Body {
    Body::new(puddle.body_addr() as *mut u8, puddle.body_len())
}
