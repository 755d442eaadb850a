//! How a pool learns a type of the program: the store gets to know it, or refuses it.
//!
//! A type is refused whose record the store has otherwise, with the same physical id; and one of
//! which the store has another version, another physical id with the same logical one. In both
//! cases the store's record goes if no pool uses it ([`crate::type_uses`]).

use crate::error::{Error, Result};
use crate::known::{KnownType, known_types};
use crate::one_type::one_rust_type;
use crate::open_pool::{PoolInner, TypeOf};
use crate::persist::{DescribedType, types_from};
use cenote_layout::types::TypeRecord;
use cenote_medium::planted::{Bug, TypeBug, planted};
use cenote_store::StoreError;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A type that the store refuses, and why.
type Refused<'a> = (&'a TypeRecord, Error);

impl PoolInner {
    /// Learns a type and those that can be reached from it.
    #[cold]
    #[inline(never)]
    pub(crate) fn learn(&self, of: &TypeOf, place: &AtomicPtr<KnownType>) -> Result<()> {
        let TypeOf { id, rust_type, described: first, .. } = *of;
        let is_known = self.known_all.read().contains(&rust_type);
        let known = match is_known {
            true => known_types().get(&id).copied(),
            false => self.learn_all(&types_from(first)?, rust_type)?,
        };
        if let Some(known) = known {
            place.store(core::ptr::from_ref(known).cast_mut(), Ordering::Release);
        }
        Ok(())
    }

    /// Learns the first of these types, and with it the others.
    fn learn_all(
        &self,
        all: &[DescribedType],
        first: core::any::TypeId,
    ) -> Result<Option<&'static KnownType>> {
        loop {
            // A type that a pool has learnt is given up by no thread: see `replace_unused`.
            let learning = self.store.learning.read();
            let (record, error) = match self.register_all(all)? {
                Ok(known) => {
                    self.known_all.write().insert(first);
                    return Ok(known);
                }
                Err(refused) => refused,
            };
            drop(learning);
            let _alone = self.store.learning.write();
            // Each round takes one type less, or another thread has done it.
            if !(self.store.replace_unused)(&self.store, record)? {
                return Err(error);
            }
        }
    }

    /// Has the store register all of these types. The first of them, or one that is refused.
    fn register_all<'a>(
        &self,
        all: &'a [DescribedType],
    ) -> Result<core::result::Result<Option<&'static KnownType>, Refused<'a>>> {
        if let Some(refused) = self.other_version(all) {
            return Ok(Err(refused));
        }
        let mut this = None;
        for described in all {
            let known = one_rust_type(described)?;
            this = this.or(Some(known)); // the type itself is the first of them
            let record = &described.record;
            if self.store.store.type_record(record.id).as_deref() == Some(record) {
                continue;
            }
            // SAFETY: the record is the type's own, from its implementation of `Persist`, which is
            // an unsafe trait.
            match unsafe { self.store.store.register_type(record) } {
                Err(error @ (StoreError::TypeMismatch(_) | StoreError::TypeVersion(_))) => {
                    return Ok(Err((record, error.into())));
                }
                registered => registered?,
            }
        }
        Ok(Ok(this))
    }

    /// One of these types of which the store has another version. Of several it is one whose own
    /// version differs: where a generic type is refused, the argument is named.
    fn other_version<'a>(&self, all: &'a [DescribedType]) -> Option<Refused<'a>> {
        let mut refused: Option<(bool, Refused<'_>)> = None;
        for DescribedType { record, .. } in all {
            let others = self.store.store.other_versions(record);
            let Some(known) = others.first() else { continue };
            let own = known.version.of_type != record.version.of_type;
            if refused.as_ref().is_none_or(|(found_own, _)| own && !found_own) {
                let error = StoreError::mismatch((**known).clone(), record.clone());
                refused = Some((own, (record, error.into())));
            }
        }
        refused
            .map(|(_, refused)| refused)
            .filter(|_| !planted(Bug::Type(TypeBug::OtherVersionsIgnored)))
    }
}
