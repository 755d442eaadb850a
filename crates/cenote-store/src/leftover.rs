//! Judges files of puddles that no record names: which of them a crash of this store left, and may
//! go.
//!
//! A store makes files before their records, and removes them after, so a crash leaves files
//! without a record. But a directory may be mounted into another store, and a store be copied: then
//! such a file may be a pool of the other one, which has the same identity if it is a copy. So a
//! file goes only if nothing can be lost with it. Each open, and so `cenote check`, reports the
//! files that stay, until an operator removes them.
//!
//! * it holds zeros alone: no header was written;
//! * its header is of another puddle than its name says: no catalog names it so, and a rewriting
//!   left it;
//! * its stamp is of the superblock's era: it was made, or marked, by the session that crashed or
//!   one that it followed;
//! * a record took it out since the last open or close, or, of a log, ever: its removal was cut
//!   off, or not synced;
//! * the store crashed, and it has no stamp: the session that crashed made it, since other files
//!   have a stamp;
//! * the store crashed, and it has half a header: a loss of power took the rest.
//!
//! The last three do not count in a directory that is *mounted*, the root of a mount
//! ([`cenote_medium::Medium::is_mounted`]).
//!
//! *Stamps* ([`crate::kernel::puddles::stamps`]): files that hold something have one. Those of
//! unprotected pools and objects get it before the first store. Those of protected ones, and of
//! logs, whose stamps are not compared, get the era when they are made.

use crate::kernel::catalog::Merged;
use crate::kernel::interface::report::{Damage, OpenReport};
use crate::kernel::puddles::puddle::{DIR, PRIMARY_DIR};
use crate::kernel::puddles::verify::about_file;
use crate::kernel::store::{Control, Inner};
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::Record;
use cenote_layout::header::read;
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::{ERA_ANY, PuddleHeader, Role, STAMP_AT, is_stamp_of};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError};
use std::collections::BTreeSet;

/// Words of a puddle's header that are never zero, by their offsets: magic, version, checksum,
/// identity, store, address, size, role and generation.
const NEVER_ZERO: [usize; 11] = [0, 8, 40, 48, 56, 64, 72, 80, 88, 104, 112];

/// Such files of a store, and what they are judged by.
pub(crate) struct Leftovers<'m> {
    merged: &'m Merged,
    /// The last batch of the catalog when it was opened or closed last.
    since: u64,
    /// It was not closed.
    crashed: bool,
    /// No record of the catalog is lost.
    all_known: bool,
    /// What records took out; read when the first such file is found.
    removed: Option<Removed>,
    /// `puddles`, and `primary`, are the root of a mount.
    mounted: [Option<bool>; 2],
    /// Files that go.
    gone: Vec<String>,
}

/// Puddles that records took out.
#[derive(Default)]
struct Removed {
    /// Since the store was opened or closed last.
    lately: BTreeSet<Uuid>,
    ever: BTreeSet<Uuid>,
}

/// What becomes of a file.
enum Fate {
    Goes,
    /// It stays: what it says it is.
    Stays(String),
}

impl<'m> Leftovers<'m> {
    /// Of a store that was opened with these records; it `crashed` after its catalog had batch
    /// `since`.
    pub(crate) fn new(merged: &'m Merged, since: u64, crashed: bool) -> Self {
        let all_known = merged.canonical.is_some();
        let (removed, mounted, gone) = (None, [None; 2], Vec::new());
        Self { merged, since, crashed, all_known, removed, mounted, gone }
    }

    fn removed(&mut self) -> &Removed {
        let (merged, since) = (self.merged, self.since);
        self.removed.get_or_insert_with(|| {
            let (mut removed, mut pools) = (Removed::default(), BTreeSet::<PoolId>::new());
            for (batch, record) in merged.ended() {
                match record {
                    Record::PuddleRemoved(id) => {
                        removed.ever.insert(id);
                        removed.lately.extend((batch >= since).then_some(id));
                    }
                    Record::PoolRemoved(id) if batch >= since => drop(pools.insert(id)),
                    _ => {}
                }
            }
            removed.lately.extend(merged.records.iter().filter_map(|record| match record {
                Record::Puddle(puddle) if pools.contains(&puddle.pool) => Some(puddle.uuid),
                _ => None,
            }));
            removed
        })
    }

    fn is_mounted(&mut self, inner: &Inner, dir: &str) -> Result<bool, MediumError> {
        let known = &mut self.mounted[usize::from(dir == PRIMARY_DIR)];
        match *known {
            Some(known) => Ok(known),
            None => Ok(*known.insert(inner.medium.is_mounted(dir)?)),
        }
    }

    /// Judges the file of `puddle` in this directory; one that stays is reported.
    pub(crate) fn add(
        &mut self,
        inner: &Inner,
        (dir, name, puddle): (&str, &str, Uuid),
        damage: &mut Vec<Damage>,
    ) -> Result<(), MediumError> {
        let name = format!("{dir}/{name}");
        let fate = match self.fate(inner, (dir, &name, puddle)) {
            _ if planted(Bug::LeftoversNotJudged) => Fate::Goes,
            Ok(fate) => fate,
            // It cannot be read, so it cannot be told.
            Err(error) => Fate::Stays(about_file(error)?),
        };
        match fate {
            Fate::Goes => self.gone.push(name),
            Fate::Stays(what) => {
                let detail = format!(
                    "{what}: it may belong to another store (by a mount or a copy); if it does \
                     not, remove it"
                );
                damage.push(Damage::Orphan { name, detail });
            }
        }
        Ok(())
    }

    fn fate(
        &mut self,
        inner: &Inner,
        (dir, name, puddle): (&str, &str, Uuid),
    ) -> Result<Fate, MediumError> {
        let file = FileHandle::open(&inner.medium, name)?;
        let mut page = [0; PAGE_SIZE as usize];
        let got = file.read_at(0, &mut page)?;
        let era = inner.stamps.era();
        let stamp =
            page[STAMP_AT as usize..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let ours = era != 0 && era != ERA_ANY && is_stamp_of(era, stamp);
        let removed = self.removed().lately.contains(&puddle);
        let (what, told) = match read::<PuddleHeader>(&page[..got], false) {
            Ok(header) if header.uuid != puddle => return Ok(Fate::Goes),
            Ok(header) if header.store != inner.uuid => {
                return Ok(Fate::Stays(format!("a puddle of store {}", header.store)));
            }
            Ok(_) if ours => return Ok(Fate::Goes),
            Ok(header) => {
                let what = format!("puddle {} of pool {}", header.index, header.pool);
                let is_log = [Role::Log as u32, Role::LogSpace as u32].contains(&header.role);
                let ended = removed || is_log && self.removed().ever.contains(&puddle);
                (what, ended || self.crashed && [0, ERA_ANY].contains(&stamp))
            }
            Err(error) => {
                let half = NEVER_ZERO.iter().any(|at| page[*at..at + 8] == [0; 8]);
                (error.to_string(), removed || self.crashed && half)
            }
        };
        if (told && !self.is_mounted(inner, dir)?) || is_zeros(&file, &page[..got])? {
            return Ok(Fate::Goes);
        }
        Ok(Fate::Stays(what))
    }
}

/// Whether a file holds nothing but zeros.
fn is_zeros(file: &FileHandle, page: &[u8]) -> Result<bool, MediumError> {
    if page.iter().any(|byte| *byte != 0) {
        return Ok(false);
    }
    let (len, mut at) = (file.len_bytes()?, 0);
    let mut bytes = vec![0; 1 << 16];
    while let Some((start, end)) = file.next_data(at, len)? {
        let end = end.min(start + bytes.len() as u64);
        let part = &mut bytes[..(end - start) as usize];
        file.read_exact_at(start, part)?;
        if part.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at = end;
    }
    Ok(true)
}

impl Inner {
    /// Removes what goes, of primaries too, if this session writes.
    pub(crate) fn remove_leftovers(
        &self,
        control: &Control,
        mut leftovers: Leftovers<'_>,
        report: &mut OpenReport,
    ) -> Result<(), MediumError> {
        if leftovers.all_known {
            self.add_primaries(control, &mut leftovers, report)?;
        }
        if !self.writable {
            return Ok(());
        }
        for dir in [DIR, PRIMARY_DIR] {
            let within = |name: &&String| name.split_once('/').is_some_and(|(of, _)| of == dir);
            let mut removed = 0;
            for name in leftovers.gone.iter().filter(within) {
                self.medium.remove(name)?;
                removed += 1;
            }
            if removed > 0 {
                self.medium.sync_dir(dir)?;
            }
            report.orphans_removed += removed;
        }
        Ok(())
    }

    /// Judges primaries and kept files that no record names.
    fn add_primaries(
        &self,
        control: &Control,
        leftovers: &mut Leftovers<'_>,
        report: &mut OpenReport,
    ) -> Result<(), MediumError> {
        let state = &control.catalog.state;
        let files = match self.medium.list(PRIMARY_DIR) {
            Err(error) if error.is_not_found() => return Ok(()),
            files => files?,
        };
        for name in files {
            let kept = crate::kept_files::puddle_of(&name);
            let Some(id) = Uuid::parse(&name).or(kept).filter(|_| name.len() >= 32) else {
                continue;
            };
            let known = state.puddles.get(&id).is_some_and(|known| state.is_shadowed(known.pool));
            if known && kept.is_none_or(|id| state.kept.contains_key(&id)) {
                continue;
            }
            match kept {
                None => leftovers.add(self, (PRIMARY_DIR, &name, id), &mut report.damage)?,
                // One without a record counts as none.
                Some(_) if leftovers.is_mounted(self, PRIMARY_DIR)? => {}
                Some(_) => leftovers.gone.push(format!("{PRIMARY_DIR}/{name}")),
            }
        }
        Ok(())
    }
}
