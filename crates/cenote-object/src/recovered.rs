//! Brings the primaries of a store's objects up to their journal, when the objects are opened.

use crate::error::ObjectError;
use crate::options::ObjectsOptions;
use crate::shared::{JOURNAL, Recovery, Shared, files, rooted};
use cenote_journal::{Journal, JournalScan, ROOT_HEADER_LEN, ROOTS_LOST, Rooted, Roots, scan};
use cenote_layout::id::Uuid;
use cenote_layout::object::ObjectState;
use cenote_layout::superblock::JournalMark;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError};
use cenote_store::{ObjectInfo, Store, StoreError};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

impl Shared {
    /// Reads the journal, and brings the primaries up to it.
    pub(crate) fn recover(store: &Store, options: &ObjectsOptions) -> Result<Self, ObjectError> {
        let mut shared = Self::new(store, options);
        if store.is_connected() {
            return Ok(shared); // the daemon has the journal
        }
        let found = if store.medium().exists(JOURNAL)? {
            let file = FileHandle::open(files(store), JOURNAL)?;
            match scan(&file, store.uuid(), store.is_writable())? {
                Ok(JournalScan { damage: Some(detail), .. }) | Err(detail) => Err(detail),
                Ok(JournalScan { roots: None, .. })
                    if Self::has_listed(store)
                        && !options.accept_damaged_journal
                        && !planted(Bug::LostListAccepted) =>
                {
                    Err(ROOTS_LOST.into())
                }
                Ok(scan) => match store.check_objects_journal(&scan.found()) {
                    Err(StoreError::JournalRolledBack { detail, .. })
                        if options.accept_damaged_journal =>
                    {
                        Err(detail)
                    }
                    checked => {
                        checked?;
                        Ok(Some((file, scan)))
                    }
                },
            }
        } else if store.objects().is_empty() {
            Ok(None)
        } else {
            Err("the file \"journal\" is missing".into())
        };
        match found {
            Ok(None) => {}
            Ok(Some((file, scan))) => shared.replay(Arc::new(file), &scan)?,
            Err(detail) if !options.accept_damaged_journal => {
                return Err(ObjectError::JournalDamaged { detail });
            }
            Err(_) if store.is_writable() => {
                shared.journal_or_new()?;
            }
            Err(_) => {}
        }
        Ok(shared)
    }

    /// Whether the store has objects that its journal lists.
    fn has_listed(store: &Store) -> bool {
        store.objects().iter().any(|info| info.record.at_rest.mode().has_tree())
    }

    /// Completes every committed psync. The last step is [`Journal::resume`], which commits.
    fn replay(&mut self, file: Arc<FileHandle>, scan: &JournalScan) -> Result<(), ObjectError> {
        let store = self.store.clone();
        let _no_backup = store.exclude_backups();
        let objects: BTreeMap<Uuid, ObjectInfo> =
            self.store.objects().into_iter().map(|info| (info.id(), info)).collect();
        let name_of = |id: &Uuid| objects.get(id).map(|info| info.record.name.clone());
        let mut primaries: BTreeMap<Uuid, FileHandle> = BTreeMap::new();
        let mut states: BTreeMap<String, ObjectState> = BTreeMap::new();
        for record in &scan.records {
            let data = record.read_data(&file)?;
            record.for_each_run(&data, |id, offset, bytes| -> Result<(), ObjectError> {
                // An object that was removed since.
                let Some(info) = objects.get(&id) else { return Ok(()) };
                if offset.checked_add(bytes.len() as u64).is_none_or(|last| last > info.body_len())
                {
                    let (seq, name) = (record.header.seq, &info.record.name);
                    let detail = format!("record {seq} writes beyond the end of object \"{name}\"");
                    return Err(ObjectError::JournalDamaged { detail });
                }
                if !self.store.is_writable() {
                    self.overlay.entry(id).or_default().push((offset, bytes.to_vec()));
                    return Ok(());
                }
                let primary = match primaries.entry(id) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => new.insert(self.primary_to_replay(info)?),
                };
                primary.write_in_pieces(info.data_offset() + offset, bytes)?;
                Ok(())
            })?;
            states.extend(
                record.objects.iter().filter_map(name_of).map(|name| (name, ObjectState::Copy)),
            );
        }
        for name in scan.torn.iter().filter_map(name_of) {
            states.entry(name).or_insert(ObjectState::Psync);
        }
        self.recovery =
            Recovery { records: scan.records.len() as u64, objects: states.into_iter().collect() };
        if !self.store.is_writable() {
            self.roots.clone_from(&scan.roots);
            return Ok(());
        }
        if !planted(Bug::JournalReplayNotSynced) {
            for primary in primaries.values() {
                primary.sync().inspect_err(|error| {
                    if error.is_failed_sync() {
                        self.store.poison(&error.to_string());
                    }
                })?;
            }
        }
        let listed = scan.roots.clone();
        let mut roots = listed.map_or_else(|| self.roots_now(), Ok)?;
        self.store.objects_journal_opens();
        if planted(Bug::JournalNamedEarly) {
            let mark = scan.found().mark;
            self.store.name_objects_journal(JournalMark { epoch: mark.epoch + 1, ..mark })?;
        }
        roots.retain(|id| objects.contains_key(&id));
        for (id, primary) in primaries.iter().filter(|_| !planted(Bug::RootsNotRecovered)) {
            let Some(info) = objects.get(id) else { continue };
            self.note_root(&mut roots, info, primary)?;
        }
        let journal = Journal::resume(self.home(), file, (scan, roots), self.settings())?;
        // Before a record is appended: `cenote_store`'s module `journals` has the states.
        self.store.name_objects_journal(journal.mark())?;
        self.adopt(journal);
        Ok(())
    }

    /// Notes the root of an object as its file has it.
    fn note_root(
        &self,
        roots: &mut Roots,
        info: &ObjectInfo,
        primary: &FileHandle,
    ) -> Result<(), MediumError> {
        let Some(Rooted { at, root }) = rooted(info) else { return Ok(()) };
        let mut header = [0; ROOT_HEADER_LEN];
        primary.read_exact_at(info.data_offset() + at, &mut header)?;
        roots.set(info.id(), root(&header));
        Ok(())
    }

    /// The roots of all objects as their files have them: where no journal says which they were.
    ///
    /// An object whose file cannot be read is not listed, and is refused when it is attached. An
    /// error that passes says nothing of a file: the journal is not made then, and nothing changed.
    pub(crate) fn roots_now(&self) -> Result<Roots, MediumError> {
        let mut roots = Roots::default();
        for info in self.store.objects() {
            let primary = FileHandle::open(self.files(), &info.file());
            match primary.and_then(|primary| self.note_root(&mut roots, &info, &primary)) {
                Err(error) if error.is_passing() => return Err(error),
                _ => {}
            }
        }
        Ok(roots)
    }
}
