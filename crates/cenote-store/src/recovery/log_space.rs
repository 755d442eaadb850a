//! Reads a client's log space: what it lists, and which of that is the client's own.

use super::problem::{Problem, lost_page, sorted};
use super::replaying::Replaying;
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::header::read;
use cenote_layout::id::Uuid;
use cenote_layout::log::{LOG_QUARANTINED, LogHeader};
use cenote_layout::log_space::{
    ENTRY_HEAD, LOG_SPACE_ENTRIES_OFFSET, Listing, LogSpaceEntry, LogSpaceHeader,
};
use cenote_layout::puddle::Role;
use cenote_log::Body;
use cenote_medium::MediumError;
use core::sync::atomic::Ordering;
use std::collections::BTreeSet;
use zerocopy::FromBytes;

/// What a log space lists.
pub(super) struct ListedLogs {
    /// Sound entries.
    pub(super) entries: Vec<LogSpaceEntry>,
    /// Number of a damaged entry, if there is one.
    pub(super) damaged: Option<usize>,
}

impl Replaying<'_> {
    /// What a client's log space lists. `Err`: why nothing of it can be believed.
    pub(super) fn read_space(&mut self, client: Uuid, space: Uuid) -> Result<ListedLogs, Problem> {
        let record = self.control.catalog.state.puddles.get(&space).copied();
        let record =
            record.filter(|p| p.role == Role::LogSpace).ok_or("the catalog has no record of it")?;
        if let Some(problem) = self.problem(&record)? {
            return Err(problem.into());
        }
        let puddle = self.map(&record)?;
        // SAFETY: puddles live until the store is dropped; this one is mapped, and no thread writes
        // to it meanwhile.
        let (puddle, bytes) = unsafe {
            let puddle = puddle.as_ref();
            (
                puddle,
                core::slice::from_raw_parts(
                    puddle.body_addr() as *const u8,
                    puddle.body_len() as usize,
                ),
            )
        };
        let header = read::<LogSpaceHeader>(bytes, false)
            .map_err(|error| Problem::File(error.to_string()))?;
        if header.client != client {
            return Err(format!("it is the log space of client {}", header.client).into());
        }
        if header.capacity != crate::kernel::logs::capacity(puddle) {
            return Err(format!("it says it has room for {} entries", header.capacity).into());
        }
        let mut listed = ListedLogs { entries: Vec::new(), damaged: None };
        let entries = bytes.get(LOG_SPACE_ENTRIES_OFFSET as usize..).unwrap_or_default();
        // From the last one back, because an entry is believed to be unfinished only if it is the
        // last.
        let mut more = false;
        for (index, bytes) in entries.chunks_exact(size_of::<LogSpaceEntry>()).enumerate().rev() {
            let Ok(entry) = LogSpaceEntry::read_from_bytes(bytes) else { continue };
            match entry.read(more) {
                Listing::Free => {}
                Listing::Names(entry) => listed.entries.push(entry),
                Listing::Damaged => listed.damaged = Some(index),
            }
            more |= !entry.is_free();
        }
        listed.entries.reverse();
        match puddle.notice.lost() {
            Some(page) => Err(lost_page(puddle.uuid(), page).into()),
            None => Ok(listed),
        }
    }

    /// The head body of a log, if its puddle is sound and its header says that it is this client's.
    pub(super) fn head(
        &mut self,
        entry: &LogSpaceEntry,
        record: Option<PuddleRecord>,
    ) -> Result<Body, Problem> {
        let record = record.ok_or("the catalog has no record of its puddle")?;
        let body = self.log_body(&record)?;
        // SAFETY: mapped just now, and no thread writes to it meanwhile.
        let header = read::<LogHeader>(unsafe { body.bytes() }, false)
            .map_err(|error| Problem::File(error.to_string()))?;
        if header.owner != self.client || header.log_id != entry.log_id || header.segment != 0 {
            let (log, owner) = (header.log_id, header.owner);
            return Err(format!("its puddle holds log {log:016x} of client {owner}").into());
        }
        Ok(body)
    }

    /// Of what the log space lists, the log puddles whose headers are this client's.
    pub(super) fn own_logs(&mut self, client: Uuid) -> Result<Vec<PuddleRecord>, MediumError> {
        let mut own = Vec::new();
        for record in core::mem::take(&mut self.listed) {
            let Ok(body) = sorted(self.log_body(&record))? else { continue };
            // SAFETY: mapped just now; what a process that is not ended writes there meanwhile is
            // checked as what it wrote before.
            let header = read::<LogHeader>(unsafe { body.bytes() }, false);
            if header.is_ok_and(|header| header.owner == client) {
                own.push(record);
            }
        }
        Ok(own)
    }

    /// Takes the marks "set aside" from a client's logs.
    pub(super) fn unmark(&mut self, client: Uuid) -> Result<(), MediumError> {
        let Some(space) = self.control.catalog.state.clients.get(&client).copied() else {
            return Ok(());
        };
        let Ok(listed) = sorted(self.read_space(client, space))? else { return Ok(()) };
        for entry in listed.entries.iter().filter(|entry| entry.state == ENTRY_HEAD) {
            let known = self.listed_puddle(entry);
            let Ok(body) = sorted(self.head(entry, known))? else { continue };
            // SAFETY: mapped for writing, and recovery alone uses it.
            let state = unsafe { body.state() };
            if state.load(Ordering::Acquire) == LOG_QUARANTINED {
                state.store(0, Ordering::Release);
                // SAFETY: the word lies in the log's body, which is mapped.
                unsafe { self.inner.persistence.flush(core::ptr::from_ref(state).cast(), 8) };
                self.inner.persistence.fence();
            }
        }
        Ok(())
    }

    /// Log puddles and log spaces of the clients that stay; `None` if one of them cannot be read,
    /// so that any log puddle may be theirs.
    pub(super) fn used_by_others(
        &mut self,
        retired: &BTreeSet<Uuid>,
    ) -> Result<Option<BTreeSet<Uuid>>, MediumError> {
        let stay: Vec<(Uuid, Uuid)> = self
            .control
            .catalog
            .state
            .clients
            .iter()
            .filter(|(client, _)| !retired.contains(client))
            .map(|(client, space)| (*client, *space))
            .collect();
        let mut used = BTreeSet::new();
        for (client, space) in stay {
            let Ok(listed) = sorted(self.read_space(client, space))? else { return Ok(None) };
            if listed.damaged.is_some() {
                return Ok(None);
            }
            used.insert(space);
            used.extend(listed.entries.iter().map(|entry| entry.puddle));
        }
        Ok(Some(used))
    }
}
