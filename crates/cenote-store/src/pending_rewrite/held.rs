//! Keeps in memory, for a store that is open for reading, what recovery made of pending puddles,
//! and what journal and kept files lay over them. Their images are made of that, and not of their
//! files alone.

use super::lazy_rewrite::LazyRewrite;
use super::replace::Image;
use crate::kernel::puddles::locked::locked;
use crate::kernel::puddles::puddle::Puddle;
use crate::primaries::Patches;
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::id::Uuid;
use cenote_medium::{FileHandle, MediumError};

impl LazyRewrite {
    /// Keeps what a puddle that is pending holds in memory alone.
    ///
    /// # Safety
    /// It is mapped and readable, and no thread stores into it meanwhile.
    pub(crate) unsafe fn hold_mapped(&self, puddle: &Puddle) -> Result<(), MediumError> {
        // SAFETY: the caller's promise.
        let image = unsafe { Image::of_memory(puddle.addr() as usize, puddle.size()) };
        locked(&self.held).insert(puddle.uuid(), image?);
        Ok(())
    }

    /// Keeps what a file holds, with bytes laid over it that lie in the puddle, if there are any.
    pub(crate) fn hold_patched(
        &self,
        record: &PuddleRecord,
        name: &str,
        patches: Option<&Vec<(u64, Vec<u8>)>>,
    ) -> Result<(), MediumError> {
        let Some(patches) = patches else { return Ok(()) };
        let file = FileHandle::open(&self.medium, name)?;
        let mut image = Image::in_memory(&file, record.size)?;
        for (offset, bytes) in patches {
            let place = image.bytes().get_mut(*offset as usize..).unwrap_or_default();
            place.iter_mut().zip(bytes).for_each(|(byte, new)| *byte = *new);
        }
        locked(&self.held).insert(record.uuid, image);
        Ok(())
    }

    pub(crate) fn holds(&self, puddle: Uuid) -> bool {
        locked(&self.held).contains_key(&puddle)
    }

    pub(crate) fn keep_patches(&self, patches: Patches) {
        // Set once, by the open of the store.
        let _ = self.patches.set(patches);
    }

    /// What is laid over a puddle that is pending.
    pub(crate) fn patches_of(&self, puddle: Uuid) -> Vec<(u64, Vec<u8>)> {
        self.patches.get().and_then(|patches| patches.get(&puddle)).cloned().unwrap_or_default()
    }
}
