//! Which blocks lie in puddles of a protected pool that are pending, where the pool's heap
//! describes them elsewhere (`pending_rewrite`, pool_blocks.rs, has why that stays true).
//!
//! Metadata are sealed, too: of puddles that are pending as before they moved, of others as their
//! own. The root puddle comes first. It has roots and metadata and no blocks, or says which it has,
//! as that of a wear heap does; so it is sealed anew without a list. Then it is read as it is.

use crate::kernel::interface::error::StoreError;
use crate::kernel::puddles::puddle::{DATA_AT, Puddle};
use crate::kernel::store::{Control, Inner};
use crate::pending_rewrite::Needs;
use crate::pending_rewrite::reseal::{OpenedDue, Plain};
use crate::sealed_files::{Opened, at_rest, named};
use cenote_atrest::Protection;
use cenote_atrest::view::Source;
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::id::Uuid;
use std::collections::BTreeMap;

/// The puddles of a protected pool, to be read.
pub(crate) struct SealedPuddles<'a> {
    name: &'a str,
    /// The root puddle; `None`: it is shown in memory, and pending.
    root: Option<&'a Opened>,
    others: BTreeMap<Uuid, OpenedDue>,
    /// Those that were opened.
    images: BTreeMap<Uuid, Plain>,
}

impl<'a> SealedPuddles<'a> {
    pub(crate) fn new(
        name: &'a str,
        root: Option<&'a Opened>,
        others: BTreeMap<Uuid, OpenedDue>,
    ) -> Self {
        Self { name, root, others, images: BTreeMap::new() }
    }

    fn sealed(&self, puddle: &PuddleRecord) -> Option<(&Protection, &Source)> {
        let root = self.root.filter(|root| root.record.uuid == puddle.uuid);
        let root = root.map(|root| (&root.protection, &root.source));
        root.or_else(|| self.others.get(&puddle.uuid).map(|due| (&due.protection, &due.source)))
    }

    /// Learns which blocks the pool has. `Err` in the answer: why that is not known.
    pub(crate) fn learn(
        mut self,
        inner: &Inner,
        control: &Control,
        root: &PuddleRecord,
        needs: &mut Needs,
    ) -> Result<Result<(), String>, StoreError> {
        let learned = inner.learn_blocks(control, root.pool, needs, &mut |puddle, at, bytes| {
            self.read(control, puddle, at, bytes)
        });
        match learned {
            // A page that fails its check is damage of the pool, as a damaged cell is.
            Err(error @ (StoreError::AtRest { .. } | StoreError::Sealed { .. })) => {
                Ok(Err(error.to_string()))
            }
            learned => learned,
        }
    }

    fn read(
        &mut self,
        control: &Control,
        puddle: &PuddleRecord,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), StoreError> {
        if let Some(image) = self.images.get_mut(&puddle.uuid) {
            let image = image.bytes().get(offset as usize..).unwrap_or_default();
            bytes.iter_mut().zip(image).for_each(|(byte, image)| *byte = *image);
            return Ok(());
        }
        let Some((protection, source)) = self.sealed(puddle) else {
            return shown(control, puddle, offset, bytes);
        };
        let mut image = Plain::new(puddle.size)?;
        let pages = image.bytes().get_mut(DATA_AT as usize..).unwrap_or_default();
        let opened =
            cenote_atrest::view::open_all(&named(self.name, puddle), protection, source, pages);
        opened.map_err(|error| at_rest(self.name, error))?;
        self.images.insert(puddle.uuid, image);
        self.read(control, puddle, offset, bytes)
    }
}

/// Reads a puddle that this session shows in memory.
fn shown(
    control: &Control,
    puddle: &PuddleRecord,
    offset: u64,
    bytes: &mut [u8],
) -> Result<(), StoreError> {
    // SAFETY: puddles live until the store is dropped.
    let known = control.puddles.get(&puddle.uuid).map(|known| unsafe { known.as_ref() });
    let inside = offset.saturating_add(bytes.len() as u64) <= puddle.size;
    if !inside || !known.is_some_and(Puddle::is_mapped) {
        let detail = "its pool's metadata cannot be read".into();
        return Err(StoreError::NotRewritten { puddle: puddle.uuid, detail });
    }
    let at = core::ptr::with_exposed_provenance::<u8>((puddle.addr + offset) as usize);
    // SAFETY: mapped, as long as its record says; a session that may only look stores nowhere.
    bytes.copy_from_slice(unsafe { core::slice::from_raw_parts(at, bytes.len()) });
    Ok(())
}
