//! Objects of a copy of an open store ([`CopyPolicy::CheckAndOpen`](cenote_store::CopyPolicy)):
//! each is checked before its bytes are given out, by an attachment or a snapshot.
//!
//! The journal and the primaries of such a copy are of different moments, so a primary may hold a
//! part of a psync whose record the copy does not have. An object with a hash tree shows that: all
//! of its pages are verified. Another object cannot show it: it is refused, unless the caller takes
//! the store as it is ([`PowerLossPolicy::AsIs`]).
//!
//! Through a daemon, which has no keys, the client verifies: the daemon says which objects are
//! unchecked when it attaches one, and the client looks at all pages before its caller has it, once
//! in a session. An object without a tree is refused by the daemon. No client says that an object
//! is checked: others would have to believe it.
//!
//! A snapshot of a sealed object is refused until the object was attached once: it is made without
//! a key.
//!
//! States of an object: *unchecked*, from the open on; *checked*, for the rest of the session. The
//! store notes which are which ([`cenote_store::Store::is_unchecked_object`]).

use crate::attached::Attached;
use crate::error::ObjectError;
use crate::shared::Shared;
use cenote_atrest::Keyring;
use cenote_atrest::view::Verified;
use cenote_layout::id::Uuid;
use cenote_store::{ObjectInfo, PowerLossPolicy, StoreError};
use std::sync::{Arc, PoisonError};

impl Shared {
    /// The daemon says that an object was not checked.
    pub(crate) fn note_unchecked(&self, object: Uuid) {
        self.of_copy.lock().unwrap_or_else(PoisonError::into_inner).entry(object).or_insert(false);
    }

    fn is_unchecked(&self, object: Uuid) -> bool {
        if !self.store.is_connected() {
            return self.store.is_unchecked_object(object);
        }
        self.of_copy.lock().unwrap_or_else(PoisonError::into_inner).get(&object) == Some(&false)
    }

    fn note_checked(&self, object: Uuid) -> Result<(), StoreError> {
        if !self.store.is_connected() {
            return self.store.object_is_checked(object);
        }
        self.of_copy.lock().unwrap_or_else(PoisonError::into_inner).insert(object, true);
        Ok(())
    }
}

/// Refuses an object of this process's own store that the copy has torn, or may have torn.
pub(crate) fn check(
    shared: &Arc<Shared>,
    info: &ObjectInfo,
    key: Option<&Keyring>,
) -> Result<(), ObjectError> {
    // Of a daemon's object nothing is known before it is attached.
    if shared.store.is_connected() || !shared.is_unchecked(info.id()) {
        return Ok(());
    }
    if !info.record.at_rest.mode().has_tree() {
        return refuse_unshown(shared, info);
    }
    let attached = Attached::reader(shared, info.clone(), key)?;
    let found = attached.verify(&mut |_, _| true);
    attached.detach()?;
    judge(shared, info, &found)
}

/// Verifies an object that a daemon has attached for this process, if it did not before.
pub(crate) fn check_attached(attached: Attached) -> Result<Attached, ObjectError> {
    let (shared, info) = (Arc::clone(attached.shared()), attached.info().clone());
    if !shared.store.is_connected() || !shared.is_unchecked(info.id()) {
        return Ok(attached);
    }
    let found = attached.verify(&mut |_, _| true);
    match judge(&shared, &info, &found) {
        Ok(()) => Ok(attached),
        Err(torn) => {
            let _ = attached.detach();
            Err(torn)
        }
    }
}

/// Refuses an object of which nothing shows whether it is whole, unless the caller takes it as it
/// is.
pub(crate) fn refuse_unshown(shared: &Shared, info: &ObjectInfo) -> Result<(), ObjectError> {
    match shared.is_unchecked(info.id()) && !info.record.at_rest.mode().has_tree() {
        true => judge(shared, info, &Verified::default()),
        false => Ok(()),
    }
}

/// Refuses to copy a sealed object that was not verified: a copy is made without its key.
pub(crate) fn refuse_unverified(shared: &Shared, info: &ObjectInfo) -> Result<(), ObjectError> {
    match shared.is_unchecked(info.id()) {
        true => Err(ObjectError::Unverified { name: info.record.name.clone() }),
        false => Ok(()),
    }
}

/// What was found decides; what is whole is noted.
fn judge(shared: &Shared, info: &ObjectInfo, found: &Verified) -> Result<(), ObjectError> {
    let name = || info.record.name.clone();
    if let Some((page, what)) = found.damaged.first() {
        let detail =
            format!("page {page}: {what}; pages that fail their check: {}", found.damaged.len());
        return Err(StoreError::ObjectDamaged { name: name(), detail }.into());
    }
    if !found.covered && shared.store.power_loss_policy() != PowerLossPolicy::AsIs {
        return Err(ObjectError::NotCovered { name: name() });
    }
    Ok(shared.note_checked(info.id())?)
}
