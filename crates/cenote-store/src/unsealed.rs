//! Opens the protections of a pool's puddles ([`crate::sealed`] has what is noticed).
//!
//! The root puddle comes first: the keys of the others are in its header, and the list of what they
//! are. A puddle that is pending is left to the frontier.

use crate::kernel::interface::error::StoreError;
use crate::kernel::store::{Control, Inner};
use crate::pending_rewrite::Needs;
use crate::pending_rewrite::reseal::{OpenedDue, SealedFile};
use crate::primaries::Patches;
use crate::sealed_files::{Opened, at_rest};
use crate::sealed_parts::{PoolKeys, SealedPool};
use crate::unsealed_blocks::SealedPuddles;
use cenote_atrest::binding;
use cenote_atrest::tree::Digest;
use cenote_atrest::view::SealedError;
use cenote_atrest::{Keyring, Mode};
use cenote_journal::Roots;
use cenote_layout::catalog::{AtRest, PendingRewriteRecord, PuddleRecord};
use cenote_medium::planted::{Bug, planted};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What opening a pool's protections came to.
pub(crate) struct UnsealedPool {
    pub(crate) sealed: SealedPool,
    pub(crate) puddles: Vec<Unsealed>,
    /// Why the puddles are not those that the root puddle lists.
    pub(crate) not_listed: Option<String>,
}

/// The list in the root puddle's header, and what the puddles are.
#[derive(Default)]
struct HeaderList {
    members: Option<Digest>,
    entries: Vec<(u32, Option<Digest>)>,
    /// A puddle is damaged, which is said of that one.
    incomplete: bool,
    /// Why the root puddle is not the one that the journal lists.
    put_back: Option<String>,
}

impl HeaderList {
    fn problem(self) -> Option<String> {
        if self.put_back.is_some() {
            return self.put_back;
        }
        let members = self.members.filter(|_| !self.incomplete && !planted(Bug::MembersIgnored))?;
        let fits = binding::members(self.entries) == members;
        (!fits).then(|| {
            "its list of the pool's puddles does not fit them: the file of one of them, or this \
             one, was put back, or a puddle is gone; restore the whole store from one copy"
                .into()
        })
    }
}

/// A puddle, or one that is damaged, with what is wrong. Of one that is pending the frontier makes
/// the memory, or has shown it.
pub(crate) type Unsealed = Result<(PuddleRecord, Option<Opened>), (PuddleRecord, String)>;

/// A pool whose protections are being opened.
struct Unsealing<'a> {
    inner: &'a Inner,
    control: &'a mut Control,
    name: &'a str,
    mode: Mode,
    key: Option<&'a Keyring>,
    /// Bytes that the journal lays over the primaries of a store that is open for reading, and the
    /// roots before that.
    patches: Patches,
    roots: Option<Roots>,
    needs: Needs,
    list: HeaderList,
    puddles: Vec<Unsealed>,
    /// Why it is not known which blocks are in the puddles that are pending.
    no_blocks: Option<String>,
    /// The keys of before may be needed: a puddle is pending, or cannot be looked at.
    any_due: bool,
}

impl Unsealing<'_> {
    fn patches_of(&mut self, record: &PuddleRecord) -> cenote_atrest::view::Patches {
        self.patches.remove(&record.uuid).unwrap_or_default()
    }

    fn look(&mut self, record: &PuddleRecord) -> Result<SealedFile, StoreError> {
        self.inner.look_and_learn(self.control, record, AtRest::of(self.mode))
    }

    /// The root puddle: its keys, and its list. One that is pending is sealed anew.
    fn root(&mut self, root: &PuddleRecord, is_alone: bool) -> Result<PoolKeys, StoreError> {
        let (inner, name, mut keys) = (self.inner, self.name, PoolKeys::default());
        if let SealedFile::Pending(pending) = self.look(root)? {
            let (of, inherits) = ((name, self.mode), (self.key, !is_alone));
            let resealed =
                inner.reseal_root(self.control, of, (root, pending), inherits, &mut self.needs)?;
            keys.before = resealed.0;
            self.list.members = Some(resealed.1);
            if !inner.writable {
                self.any_due = true;
                self.puddles.push(Ok((*root, None)));
                return Ok(keys);
            }
        }
        let patches = self.patches_of(root);
        // What recovery would write has the header of the last record.
        let is_patched = !patches.is_empty();
        let with = (self.mode, self.key, patches);
        let opened = inner.open_sealed(self.control, name, *root, with)?;
        let failed = |error| at_rest(name, SealedError::at_rest(name, error));
        keys.own = opened.protection.subordinate(self.key).map_err(failed)?;
        keys.before = opened.protection.inherited(self.key).map_err(failed)?;
        self.list.members = Some(opened.protection.members());
        let listed = match inner.shadows().journal().filter(|_| inner.writable) {
            Some(journal) => Some(journal.root_of(root.uuid)?),
            None => self.roots.take().filter(|_| !is_patched).map(|roots| roots.get(root.uuid)),
        };
        let checked = listed
            .map(|listed| cenote_atrest::view::check_listed(name, &opened.protection, listed));
        self.list.put_back =
            checked.and_then(Result::err).map(|error| at_rest(name, error).to_string());
        self.puddles.push(Ok((*root, Some(opened))));
        Ok(keys)
    }

    /// Another puddle.
    fn other(&mut self, record: &PuddleRecord, keys: &Arc<PoolKeys>) -> Result<(), StoreError> {
        let unsealed = match self.look(record)? {
            SealedFile::Own => self.own(record, keys)?,
            SealedFile::Pending(pending) => {
                self.any_due = true;
                self.pending(record, pending, keys)?
            }
            SealedFile::Damaged(detail) => {
                // What it is cannot be said, so the key may be needed.
                self.any_due = true;
                Err(detail)
            }
        };
        self.list.incomplete |= unsealed.is_err();
        let unsealed = unsealed.map(|(entry, opened)| {
            self.list.entries.push((record.index, entry));
            (*record, opened)
        });
        self.puddles.push(unsealed.map_err(|detail| (*record, detail)));
        Ok(())
    }

    /// Learns which blocks the pool has whose puddles do not say it, if one of those is pending.
    fn learn(
        &mut self,
        root: &PuddleRecord,
        others: &[PuddleRecord],
        keys: &PoolKeys,
    ) -> Result<Result<(), String>, StoreError> {
        let (inner, name) = (self.inner, self.name);
        let pending = &self.control.catalog.state.pending;
        if !others.iter().any(|record| pending.contains_key(&record.uuid)) {
            return Ok(Ok(()));
        }
        let mut sealed = BTreeMap::new();
        for record in others {
            let due = match self.look(record)? {
                SealedFile::Damaged(detail) => return Ok(Err(detail)),
                SealedFile::Own => {
                    let patches = self.patches.get(&record.uuid).cloned().unwrap_or_default();
                    let with = (self.mode, keys.own.as_ref(), patches);
                    let opened = inner.open_sealed(self.control, name, *record, with);
                    opened.map(|Opened { protection, source, .. }| OpenedDue { protection, source })
                }
                SealedFile::Pending(_) => {
                    let of = (self.mode, inner.identity_of(self.control, record.uuid));
                    let frontier = inner.frontier();
                    let opened = frontier.open_pending((name, record), of, keys.before.as_ref());
                    opened.map_err(|failed| frontier.explain(failed, record.uuid, name))
                }
            };
            match due {
                Ok(due) => sealed.insert(record.uuid, due),
                Err(StoreError::AtRest { source, .. }) => return Ok(Err(source.to_string())),
                Err(error) => return Err(error),
            };
        }
        let first = self.puddles.first().and_then(|root| root.as_ref().ok());
        let first = first.and_then(|(_, opened)| opened.as_ref());
        SealedPuddles::new(name, first, sealed).learn(inner, self.control, root, &mut self.needs)
    }

    fn own(&mut self, record: &PuddleRecord, keys: &PoolKeys) -> Result<FoundFile, StoreError> {
        let with = (self.mode, keys.own.as_ref(), self.patches_of(record));
        match self.inner.open_sealed(self.control, self.name, *record, with) {
            // The key is the pool's own, and fits: this file is not the one that belongs here, or
            // damaged.
            Err(StoreError::AtRest { source, .. }) => Ok(Err(source.to_string())),
            opened => {
                let opened = opened?;
                Ok(Ok((opened.protection.entry(None), Some(opened))))
            }
        }
    }

    fn pending(
        &mut self,
        record: &PuddleRecord,
        pending: PendingRewriteRecord,
        keys: &Arc<PoolKeys>,
    ) -> Result<FoundFile, StoreError> {
        if let Some(detail) = &self.no_blocks {
            return Ok(Err(detail.clone()));
        }
        if self.mode.has_key() && keys.before.is_none() {
            return Ok(Err("the key that it is sealed under is not in the root puddle".into()));
        }
        let journal = self.inner.journal_to_write(self.control)?;
        let with = (self.name, self.mode, keys, journal);
        let expected =
            self.inner.expect_sealed(self.control, with, record, pending, &mut self.needs)?;
        Ok(expected.map(|entry| (entry, None)))
    }
}

/// A puddle's entry in its pool's list and what was opened of it, or what is wrong.
type FoundFile = Result<(Option<Digest>, Option<Opened>), String>;

impl Inner {
    /// Opens the protection of puddles of a pool, in index order, with the caller's key. One that
    /// is damaged is returned with what is wrong; if it is the root puddle, nothing can be opened.
    /// A root puddle that is pending is sealed anew; the others wait for the frontier.
    pub(crate) fn unseal(
        &self,
        control: &mut Control,
        name: &str,
        (records, mode): (&[PuddleRecord], Mode),
        key: Option<&Keyring>,
    ) -> Result<UnsealedPool, StoreError> {
        let (patches, roots) =
            if self.writable { Default::default() } else { self.past_if_any(control)? };
        let Some((root, others)) = records.split_first().filter(|(root, _)| root.index == 0) else {
            // Whose keys the others are under is lost with it.
            let sealed = SealedPool { mode, keys: Arc::default() };
            return Ok(UnsealedPool { sealed, puddles: Vec::new(), not_listed: None });
        };
        let mut unsealing = Unsealing {
            inner: self,
            control,
            name,
            mode,
            key,
            patches,
            roots,
            needs: Needs::default(),
            list: HeaderList::default(),
            puddles: Vec::new(),
            no_blocks: None,
            any_due: false,
        };
        let apart = Self::is_described_apart(unsealing.control, root.pool);
        if apart {
            unsealing.needs.expect_no_blocks();
        }
        let keys = Arc::new(unsealing.root(root, others.is_empty())?);
        if apart {
            unsealing.needs.forget_blocks();
            unsealing.no_blocks = unsealing.learn(root, others, &keys)?.err();
        }
        for record in others {
            unsealing.other(record, &keys)?;
        }
        let Unsealing { mut list, puddles, any_due, .. } = unsealing;
        if let Some(Ok((_, Some(root)))) = puddles.first()
            && !any_due
        {
            root.protection.disinherit();
        }
        list.members = list.members.filter(|_| mode.has_tree());
        Ok(UnsealedPool { sealed: SealedPool { mode, keys }, puddles, not_listed: list.problem() })
    }
}
