//! Objects of a copy of an open store ([`CopyPolicy::CheckAndOpen`](cenote_store::CopyPolicy)):
//! each is checked before its bytes are given out, by an attachment or a snapshot.
//!
//! The journal and the primaries of such a copy are of different moments, so a primary may hold a
//! part of a psync whose record the copy does not have. An object with a hash tree shows that: all
//! of its pages are verified. Of another object nothing can be said: it is refused, unless the
//! caller takes the store as it is ([`PowerLossPolicy::AsIs`]).
//!
//! States of an object: *unchecked*, from the open on; *checked*, for the rest of the session. The
//! store notes which are which ([`cenote_store::Store::is_unchecked_object`]).

use crate::attached::Attached;
use crate::error::ObjectError;
use crate::shared::Shared;
use cenote_atrest::Keyring;
use cenote_sealed::Verified;
use cenote_store::{ObjectInfo, PowerLossPolicy, StoreError};
use std::sync::Arc;

/// Refuses an object that the copy has torn, or may have torn.
pub(crate) fn check(
    shared: &Arc<Shared>,
    info: &ObjectInfo,
    key: Option<&Keyring>,
) -> Result<(), ObjectError> {
    if !shared.store.is_unchecked_object(info.id()) {
        return Ok(());
    }
    let found = match info.record.at_rest.mode().has_tree() {
        true => {
            let attached = Attached::reader(shared, info.clone(), key)?;
            let found = attached.verify(&mut |_, _| true);
            attached.detach()?;
            found
        }
        false => Verified::default(),
    };
    let name = || info.record.name.clone();
    if let Some((page, what)) = found.damaged.first() {
        let detail = format!("page {page}: {what}; pages that fail their check: {}", found.damaged.len());
        return Err(StoreError::ObjectDamaged { name: name(), detail }.into());
    }
    if !found.covered && shared.store.power_loss_policy() != PowerLossPolicy::AsIs {
        return Err(ObjectError::NotCovered { name: name() });
    }
    Ok(shared.store.object_is_checked(info.id())?)
}
