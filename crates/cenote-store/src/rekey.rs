//! Gives a protected pool another key, in constant time.

use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::options::Access;
use crate::kernel::pools::pool_rules::find;
use crate::kernel::puddles::puddle::DATA_AT;
use crate::kernel::store::{Control, Store};
use crate::primaries::rooted;
use crate::sealed_files::{at_rest, named};
use cenote_atrest::Keyring;
use cenote_atrest::view::{self, Patches, SealedError};
use cenote_journal::{ApplyTarget, Draft};
use cenote_layout::catalog::AtRest;
use cenote_medium::planted::{Bug, planted};
use core::ops::ControlFlow;
use std::sync::Arc;

/// The outcome of a change of a key that was committed: from here on the new key opens it, and the
/// old one does not. An *error* of the call says the contrary: the old key opens it, and the new
/// one does not.
#[derive(Debug)]
pub enum Rekeyed<E> {
    /// Nothing failed, and it survives loss of power.
    Done,
    /// The new key is committed, and this failed after it. The store is poisoned; close it and open
    /// it again, with the new key.
    Unfinished(E),
}

impl<E> Rekeyed<E> {
    /// After the commit.
    pub fn of(done: Result<(), E>) -> Self {
        done.map_or_else(Self::Unfinished, |()| Self::Done)
    }

    /// What failed after the commit.
    pub fn unfinished(&self) -> Option<&E> {
        match self {
            Self::Done => None,
            Self::Unfinished(error) => Some(error),
        }
    }
}

impl Store {
    /// Puts a pool that is not open under another key, in constant time: an error says that the old
    /// key is the pool's, the answer that the new one is, and whether something failed after that.
    /// Durable when it is [`Rekeyed::Done`]: none of its pages is written again. A user who had the
    /// old key *and* a copy of the medium from then can still read that copy: to end that, make a
    /// new pool. The journal keeps the header of before until its space is used again.
    ///
    /// # Errors
    /// [`StoreError::AtRest`]: the old key is wrong; [`StoreError::NotProtected`]: the pool has no
    /// key; it is open; as of a psync. The old key is the pool's then, also if the store is
    /// poisoned.
    pub fn rekey_pool(
        &self,
        name: &str,
        old: &Keyring,
        new: &Keyring,
    ) -> Result<Rekeyed<StoreError>, StoreError> {
        let inner = self.inner();
        self.finish_as_own(name, old)?;
        let mut control = inner.begin_write("change the key of a pool")?;
        let id = find(&control, name)?;
        let mode = control.catalog.state.at_rest(id).mode();
        if !mode.has_key() {
            return Err(StoreError::NotProtected { name: name.into() });
        }
        if control.pools.get(&id).is_some_and(|core| Arc::strong_count(core) > 1) {
            return Err(StoreError::PoolInUse { name: name.into() });
        }
        let puddles = control.catalog.state.puddles_of(id);
        let Some(root) = puddles.first().copied().filter(|root| root.index == 0) else {
            return Err(StoreError::PoolDamaged { name: name.into(), damage: Vec::new() });
        };
        let opened =
            inner.open_sealed(&mut control, name, root, (mode, Some(old), Patches::new()))?;
        let listed = inner.pool_journal(&mut control)?.root_of(root.uuid)?;
        view::check_listed(name, &opened.protection, listed)
            .map_err(|error| at_rest(name, error))?;
        opened.protection.disinherit();
        let (changes, header) =
            view::rekey(&named(name, &root), &opened.protection, &opened.source, new)
                .map_err(|error| at_rest(name, error))?;
        let file = Arc::clone(opened.source.file());
        if planted(Bug::PoolRekeyInPlace) {
            file.write_at(root.size, &header)?;
            return file.sync().map(|()| Rekeyed::Done).map_err(|error| inner.failed(error));
        }
        let (ids, journal) = ([root.uuid], inner.pool_journal(&mut control)?);
        let Some(draft) = Draft::new(&ids, &changes) else {
            return Err(StoreError::PsyncTooLarge { needed: header.len() as u64, limit: 1 << 36 });
        };
        let ticket = journal.append(&draft)?;
        // **The sync of the record commits.** From here on an error changes nothing about which key
        // it is.
        let undurable = match planted(Bug::RekeyUndecided) {
            true => journal.make_durable(&ticket).map(|()| None)?,
            false => journal.decide(&ticket)?,
        };
        let rooted = rooted(&root, AtRest::of(mode));
        let target = ApplyTarget { id: root.uuid, file, data_offset: DATA_AT, rooted };
        let done = undurable.map_or(Ok(()), |error| Err(error.into())).and_then(|()| {
            journal.apply_later(ticket, changes, vec![target])?;
            journal.settle(root.uuid)?;
            // SAFETY: puddles live until the store is dropped.
            let known =
                control.puddles.get(&root.uuid).and_then(|known| unsafe { known.as_ref() }.view());
            known.map_or(Ok(()), |view| view.protection().rekeyed(&header)).map_err(|error| {
                inner.poison(&format!(
                    "the protection of pool \"{name}\" went out of step: {error}"
                ));
                at_rest(name, SealedError::at_rest(name, error))
            })
        });
        if planted(Bug::RekeyUndecided) {
            done?;
            return Ok(Rekeyed::Done);
        }
        Ok(Rekeyed::of(done))
    }
    /// A puddle that is pending is sealed as what it is a copy of: by the old key it becomes its
    /// own. With the new key comes none then that opens the original.
    fn finish_as_own(&self, name: &str, old: &Keyring) -> Result<(), StoreError> {
        let pending = |control: &Control| -> Result<bool, StoreError> {
            let puddles = control.catalog.state.puddles_of(find(control, name)?);
            Ok(puddles
                .iter()
                .any(|puddle| control.catalog.state.pending.contains_key(&puddle.uuid)))
        };
        if pending(&self.inner().control())? {
            let pool = self.open_pool_with(name, Access::ReadOnly, Some(old))?;
            pool.finish_relocation(&mut |_| ControlFlow::Continue(()))?;
        }
        Ok(())
    }
}
