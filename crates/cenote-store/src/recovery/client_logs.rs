//! Replays the logs of one client, each for all of its pools or not at all.

use super::problem::sorted;
use super::replaying::Replaying;
use super::target::ClientTarget;
use super::verdict::Verdict;
use crate::kernel::interface::report::{Damage, LogReport, OpenReport};
use crate::kernel::puddles::verify::about_file;
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::log_space::{ENTRY_HEAD, LogSpaceEntry};
use cenote_log::{Body, CrashKind, LogSummary, Outcome, inspect, replay};
use cenote_medium::MediumError;
use cenote_medium::planted::{Bug, planted};
use std::collections::BTreeSet;

/// A log that is not replayed, or not to its end.
struct Unreplayed {
    why: String,
    /// The pools that it is about: they wait with it.
    about: BTreeSet<PoolId>,
}

impl Replaying<'_> {
    /// Replays the logs of one client.
    pub(super) fn client(
        &mut self,
        client: Uuid,
        crash: CrashKind,
        report: &mut OpenReport,
    ) -> Result<Verdict, MediumError> {
        self.begin(client);
        if !planted(Bug::VoidLogReplayed) {
            self.pools.retain(|pool| !self.void.contains(pool));
        }
        self.segments.clear();
        self.listed.clear();
        let pools: Vec<PoolId> = self.pools.iter().copied().collect();
        let Some(space) = self.control.catalog.state.clients.get(&client).copied() else {
            return Ok(Verdict::Done); // leases only: it never ran a transaction
        };
        let of_space = |detail| Damage::LogSpace { client, puddle: space, detail, pools };
        let listed = match sorted(self.read_space(client, space))? {
            Ok(listed) => listed,
            Err(detail) => {
                report.damage.push(of_space(detail));
                return Ok(Verdict::Stays(self.pools.clone()));
            }
        };
        let mut concerned: Option<BTreeSet<PoolId>> = None;
        if let Some(index) = listed.damaged {
            // The other logs are replayed all the same.
            let detail = format!("entry {index} is damaged: the log that it named is not known");
            report.damage.push(of_space(detail));
            concerned = Some(self.pools.clone());
        }
        for (entry, record) in self.sort_entries(listed.entries) {
            let Some(log) = self.log(&entry, record, crash, &mut report.logs)? else { continue };
            report.damage.push(Damage::Log {
                client,
                log_id: entry.log_id,
                puddle: entry.puddle,
                detail: log.why,
                pools: log.about.iter().copied().collect(),
            });
            concerned.get_or_insert_default().extend(log.about);
        }
        Ok(concerned.map_or(Verdict::Done, Verdict::Stays))
    }

    /// Notes the puddles and segments that a log space lists; the heads of its logs.
    fn sort_entries(
        &mut self,
        entries: Vec<LogSpaceEntry>,
    ) -> Vec<(LogSpaceEntry, Option<PuddleRecord>)> {
        let mut heads = Vec::new();
        for entry in entries {
            let known = self.listed_puddle(&entry);
            self.listed.extend(known);
            if entry.state == ENTRY_HEAD {
                heads.push((entry, known));
            } else if let Some(known) = known {
                self.segments.insert(entry.addr, known);
            }
        }
        heads
    }

    /// Replays one log, and reports how that went; why it waits, if it does.
    fn log(
        &mut self,
        entry: &LogSpaceEntry,
        record: Option<PuddleRecord>,
        crash: CrashKind,
        reports: &mut Vec<LogReport>,
    ) -> Result<Option<Unreplayed>, MediumError> {
        let about_any = |this: &Self, why| Some(Unreplayed { why, about: this.pools.clone() });
        let body = match sorted(self.head(entry, record))? {
            Ok(body) => body,
            Err(why) => return Ok(about_any(self, why)),
        };
        if self.is_void(body, crash)? {
            return Ok(None);
        }
        if let Some(waits) = self.prepare(body, crash)? {
            return Ok(Some(waits));
        }
        // SAFETY: the head is mapped for writing (privately in a read-only open) and the store
        // is locked, so that no other thread or process uses it; `ClientTarget` gives out only such
        // mappings.
        let outcome = unsafe { replay(body, crash, &mut ClientTarget(self)) };
        let why = match &outcome {
            Outcome::Quarantined(why) => Some(why.to_string()),
            Outcome::AlreadyQuarantined => Some("set aside by an earlier recovery".into()),
            _ => None,
        };
        reports.push(LogReport {
            client: self.client,
            log_id: entry.log_id,
            puddle: entry.puddle,
            outcome,
            pools: self.pools.iter().copied().collect(),
        });
        Ok(why.and_then(|why| about_any(self, why)))
    }

    /// Whether all that a log says is about pools that went back to their last psync: now, or when
    /// an earlier recovery ended the client's leases on them and could not read this log.
    fn is_void(&mut self, head: Body, crash: CrashKind) -> Result<bool, MediumError> {
        if crash != CrashKind::Power || planted(Bug::VoidLogReplayed) {
            return Ok(false);
        }
        self.map_segments()?;
        // SAFETY: mapped, and no thread writes to it meanwhile; so are the segments.
        let Ok(summary) =
            (unsafe { inspect(head, crash, &mut |owner, addr| self.segment_body(owner, addr)) })
        else {
            return Ok(false);
        };
        let of_heaps = summary.entries.iter().filter_map(|entry| self.record_at(entry.addr));
        let mut pools =
            of_heaps.filter(|record| record.role.is_of_pool()).map(|record| record.pool).peekable();
        let state = &self.control.catalog.state;
        let void = |pool: PoolId| {
            self.void.contains(&pool) || (state.is_shadowed(pool) && !self.pools.contains(&pool))
        };
        Ok(pools.peek().is_some() && pools.all(void))
    }

    /// Maps all segments that the client's log space lists; why one of them cannot be used.
    fn map_segments(&mut self) -> Result<Option<String>, MediumError> {
        let mut unusable = None;
        for record in self.segments.values().copied().collect::<Vec<_>>() {
            if let Err(why) = sorted(self.log_body(&record))? {
                let segment = record.uuid;
                unusable.get_or_insert_with(|| {
                    format!("not replayed, because segment {segment} cannot be used: {why}")
                });
            }
        }
        Ok(unusable)
    }

    /// Verifies and maps all that a replay of this log will touch. If some of it cannot be used,
    /// the log is not replayed and not touched, because replay would set it aside for good, and the
    /// puddle may come back.
    fn prepare(&mut self, head: Body, crash: CrashKind) -> Result<Option<Unreplayed>, MediumError> {
        let unusable = self.map_segments()?;
        // SAFETY: mapped, and no thread writes to it meanwhile; so are the segments.
        let summary = match unsafe {
            inspect(head, crash, &mut |owner, addr| self.segment_body(owner, addr))
        } {
            Ok(summary) => summary,
            // Damaged for want of a segment, perhaps; without one that is missing it is for replay
            // to say. It may be about any pool.
            Err(_) => return Ok(unusable.map(|why| Unreplayed { why, about: self.pools.clone() })),
        };
        for entry in &summary.entries {
            let Some(record) = self.record_at(entry.addr) else { continue };
            if !self.pools.contains(&record.pool) {
                continue; // refused by replay, whatever its state
            }
            let why = match self.problem(&record)? {
                Some(problem) => problem,
                None => match self.map(&record) {
                    Ok(_) => continue,
                    Err(error) => about_file(error)?,
                },
            };
            let state = &self.control.catalog.state;
            let name = state.pools.get(&record.pool).map_or("", |pool| &pool.name);
            let why = format!(
                "not replayed, because puddle {} of pool \"{name}\" ({}) cannot be used: {why}",
                record.index, record.uuid
            );
            return Ok(Some(Unreplayed { why, about: self.leased_pools_of(&summary) }));
        }
        Ok(None)
    }

    /// Of the client's pools, those that a log is about.
    fn leased_pools_of(&self, log: &LogSummary) -> BTreeSet<PoolId> {
        if planted(Bug::WaitingLogIgnored) {
            return BTreeSet::new();
        }
        let records = log.entries.iter().filter_map(|entry| self.record_at(entry.addr));
        records.map(|record| record.pool).filter(|pool| self.pools.contains(pool)).collect()
    }

    pub(super) fn segment_body(&mut self, owner: Uuid, addr: u64) -> Option<Body> {
        if owner != self.client {
            return None;
        }
        let record = self.segments.get(&addr).copied()?;
        self.log_body(&record).ok()
    }
}
