//! Looks at files of an open store as a program's next open for writing does.
//!
//! An open looks only at what it needs: a read-only one at no primary and no journal, and a
//! puddle's header is read when its pool is opened. [`Store::damaged_files`] looks at all of it, by
//! the same functions, and changes nothing. Invariant: if a file makes a program's open of the
//! store or of a pool fail, it is in its answer or in [`crate::OpenReport::damage`]. Damage that
//! only a key shows is found when the pool is opened ([`crate::PoolHandle::damage`]).

use crate::kernel::catalog::journals::JournalOf;
use crate::kernel::directory::exclusion;
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::report::Damage;
use crate::kernel::pools::pool_rules::lost_record;
use crate::kernel::puddles::puddle::{file_name, primary_name, text};
use crate::kernel::puddles::verify::{RESTORE, of_file};
use crate::kernel::store::{Control, Inner, Store};
use crate::rooted::Lists;
use cenote_journal::{JournalScan, scan};
use cenote_layout::catalog::{AtRest, PuddleRecord};
use cenote_layout::puddle::Role;
use cenote_medium::FileHandle;

impl Store {
    /// Files that make a program's open of a pool or an attach of an object fail, or that no psync
    /// can be written into: missing, of another length, or with a header that is not theirs; an
    /// older one, as stamps or a journal's list say; and the journal of the pools. Of protected
    /// pools puddles that have moved and are not rewritten are left out, and a daemon's client sees
    /// none.
    ///
    /// # Errors
    /// The medium reports an error other than damage.
    pub fn damaged_files(&self) -> Result<Vec<Damage>, StoreError> {
        let inner = self.inner();
        if inner.is_client() {
            return Ok(Vec::new());
        }
        let control = inner.control();
        let lists = inner.lists(&control)?;
        let mut damage = Vec::new();
        for record in control.catalog.state.puddles.values() {
            inner.look_at_puddle(&control, &lists, record, &mut damage)?;
        }
        for pool in control.catalog.state.pools.keys() {
            let known = control.catalog.state.puddles_of(*pool);
            let end = known.last().map_or(1, |last| last.index + 1);
            let gone = (0..end).filter(|index| !known.iter().any(|record| record.index == *index));
            damage.extend(gone.map(|index| lost_record(*pool, index)));
        }
        for name in control.catalog.state.object_names.keys() {
            match crate::object::find(&control, name) {
                Err(StoreError::ObjectDamaged { name, detail }) => {
                    damage.push(Damage::Object { name, detail })
                }
                Err(error) => return Err(error),
                Ok(info) => {
                    let (state, file) = (&control.catalog.state, info.file());
                    let detail =
                        match of_file(inner.check_named(state, &info.puddle(), &file, true))? {
                            None => inner.not_listed(&lists, &control, &info.puddle())?,
                            detail => detail,
                        };
                    damage
                        .extend(detail.map(|detail| Damage::Object { name: name.clone(), detail }));
                }
            }
        }
        damage.extend(inner.look_at_pool_journal(&control)?);
        // A session that may write has refused these.
        damage.extend(exclusion::linked(&inner.medium)?);
        Ok(damage)
    }
}

impl Inner {
    fn look_at_puddle(
        &self,
        control: &Control,
        lists: &Lists,
        record: &PuddleRecord,
        damage: &mut Vec<Damage>,
    ) -> Result<(), StoreError> {
        let state = &control.catalog.state;
        let mut add = |detail| {
            let (uuid, pool, index) = (record.uuid, record.pool, record.index);
            damage.push(Damage::Puddle { uuid, pool, index, detail });
        };
        let at_rest = state.at_rest(record.pool);
        if let Some(pending) = state.pending.get(&record.uuid) {
            if at_rest == AtRest::None {
                let shadow = self.look_at(file_name(record.uuid), record, pending)?;
                shadow.damage().into_iter().for_each(&mut add);
                if state.is_shadowed(record.pool) {
                    let primary = self.look_at(primary_name(record.uuid), record, pending)?;
                    primary.damage().into_iter().for_each(add);
                }
            }
            return Ok(());
        }
        match record.role {
            // By its name, in `damaged_files`.
            Role::Object => {}
            // Its header is written when a pool takes it.
            Role::Spare => {
                let name = file_name(record.uuid);
                let len = self.medium.len(text(&name)).ok();
                if len.is_some_and(|len| len != record.size) {
                    add(format!(
                        "its file {} is not {} bytes long; {RESTORE}",
                        text(&name),
                        record.size
                    ));
                }
            }
            Role::Heap | Role::Metadata if at_rest != AtRest::None => {
                let detail = match of_file(self.verify_sealed(record, at_rest))? {
                    None => self.not_listed(lists, control, record)?,
                    detail => detail,
                };
                detail.into_iter().for_each(add);
            }
            _ => {
                // SAFETY: puddles live until the store is dropped.
                let known =
                    control.puddles.get(&record.uuid).map(|known| unsafe { known.as_ref() });
                // Recovery after a loss of power makes the shadow anew.
                if !known.is_some_and(crate::Puddle::shows_primary) {
                    let name = file_name(record.uuid);
                    let detail = of_file(self.check_named(state, record, text(&name), true))?;
                    detail.into_iter().for_each(&mut add);
                }
                if record.role.is_of_pool() && state.is_shadowed(record.pool) {
                    let name = primary_name(record.uuid);
                    let detail = of_file(self.check_named(state, record, text(&name), true))?;
                    let said =
                        |detail| format!("its primary, which psyncs are written into: {detail}");
                    detail.map(said).into_iter().for_each(add);
                }
            }
        }
        Ok(())
    }

    fn look_at_pool_journal(&self, control: &Control) -> Result<Option<Damage>, StoreError> {
        const OF: JournalOf = JournalOf::Pools;
        let (state, name) = (&control.catalog.state, OF.file());
        let pools: Vec<_> =
            state.pools.keys().copied().filter(|pool| state.is_shadowed(*pool)).collect();
        if !self.medium.exists(name)? {
            let detail = format!("{name}: the file is missing; {RESTORE}");
            return Ok((!pools.is_empty()).then_some(Damage::Journal { detail, pools }));
        }
        let scanned =
            FileHandle::open(&self.medium, name).and_then(|file| scan(&file, self.uuid, true));
        let detail = match scanned {
            Err(error) => Some(error.to_string()),
            Ok(Ok(JournalScan { damage: Some(detail), .. }) | Err(detail)) => Some(detail),
            Ok(Ok(scan)) => match self.problem(control, OF, &scan.found()) {
                None => self.check_list(state, &scan).err().map(|error| error.to_string()),
                rolled_back => rolled_back,
            },
        };
        Ok(detail.map(|detail| Damage::Journal { detail: format!("{name}: {detail}"), pools }))
    }
}
