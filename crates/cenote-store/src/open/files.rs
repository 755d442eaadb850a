//! Compares the files of a store with its catalog.

use crate::kernel::catalog;
use crate::kernel::interface::report::{Damage, OpenReport};
use crate::kernel::puddles::puddle::{DIR, file_name, text};
use crate::kernel::puddles::verify::missing as missing_file;
use crate::kernel::store::{Control, Inner};
use crate::leftover::Leftovers;
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::Record;
use cenote_layout::header::read;
use cenote_layout::id::Uuid;
use cenote_layout::puddle::PuddleHeader;
use cenote_medium::MediumError;
use std::collections::{BTreeMap, BTreeSet};

/// Takes the places of puddles out of the window's free space.
pub(super) fn occupy(control: &mut Control, merged: &catalog::Merged, report: &OpenReport) {
    for puddle in merged.records.iter().filter_map(|r| match r {
        Record::Puddle(p) => Some(p),
        _ => None,
    }) {
        // Also what `check` has taken out: nothing new is put on top of it.
        if control.catalog.state.puddles.contains_key(&puddle.uuid) || control.catalog.is_damaged()
        {
            control.space.occupy(puddle.addr, puddle.size);
        }
    }
    for damage in &report.damage {
        if let Damage::Puddle { uuid, .. } = damage
            && let Some(Record::Puddle(p)) = merged
                .records
                .iter()
                .rev()
                .find(|r| matches!(r, Record::Puddle(p) if p.uuid == *uuid))
        {
            control.space.occupy(p.addr, p.size);
        }
    }
}

impl Inner {
    /// Compares the puddle files of a store, which may have `crashed`, with the catalog. Missing
    /// files are damage, and returned second; of files without a record those are returned first
    /// that are to be removed: none if records were lost, since such a file may hold a pool.
    pub(super) fn compare_files<'m>(
        &self,
        control: &mut Control,
        (merged, crashed): (&'m catalog::Merged, bool),
        report: &mut OpenReport,
    ) -> Result<(Leftovers<'m>, BTreeSet<Uuid>), MediumError> {
        let files = match self.medium.list(DIR) {
            Err(error) if error.is_not_found() => Vec::new(),
            files => files?,
        };
        let ids: BTreeMap<Uuid, &String> = files
            .iter()
            .filter(|f| f.len() == 32)
            .filter_map(|f| Some((Uuid::parse(f)?, f)))
            .collect();
        let mut missing = BTreeSet::new();
        for record in control.catalog.state.puddles.values() {
            if !ids.contains_key(&record.uuid) {
                missing.insert(record.uuid);
                report.damage.push(Damage::Puddle {
                    uuid: record.uuid,
                    pool: record.pool,
                    index: record.index,
                    detail: missing_file(text(&file_name(record.uuid))),
                });
            }
        }
        let refused: Vec<Uuid> = report
            .damage
            .iter()
            .filter_map(|d| match d {
                Damage::Puddle { uuid, .. } => Some(*uuid),
                _ => None,
            })
            .collect();
        let mut leftovers = Leftovers::new(merged, control.superblock.catalog_batch, crashed);
        for (uuid, name) in ids {
            if control.catalog.state.puddles.contains_key(&uuid) || refused.contains(&uuid) {
                continue;
            }
            if merged.canonical.is_some() {
                leftovers.add(self, (DIR, name, uuid), &mut report.damage)?;
                continue;
            }
            let mut page = [0; PAGE_SIZE as usize];
            let len = self.medium.read_at(&format!("{DIR}/{name}"), 0, &mut page)?;
            let detail = match read::<PuddleHeader>(&page[..len], false) {
                Ok(header) if header.store == self.uuid => {
                    control.space.occupy(header.addr, header.size);
                    control.catalog.state.next_pool =
                        control.catalog.state.next_pool.max(header.pool.0.saturating_add(1));
                    format!(
                        "puddle {} of pool {}, {} bytes at {:#x}",
                        header.index, header.pool, header.size, header.addr
                    )
                }
                Ok(header) => format!("a puddle of store {}", header.store),
                Err(error) => error.to_string(),
            };
            report.damage.push(Damage::Orphan { name: format!("{DIR}/{name}"), detail });
        }
        Ok((leftovers, missing))
    }
}
