//! What protected pools keep with puddles, jobs and pools of the kernel, which knows none of it:
//! views, keys, and how a puddle that is pending is sealed.

use crate::kernel::puddles::own_memory::OwnMemory;
use crate::kernel::puddles::pending_job::Job;
use crate::kernel::puddles::puddle::Puddle;
use crate::kernel::store::pool_core::PoolCore;
use cenote_atrest::tree::Digest;
use cenote_atrest::view::View;
use cenote_atrest::{Keyring, Mode};
use cenote_journal::Journal;
use cenote_layout::id::Uuid;
use cenote_protect::StoreNotes;
use core::any::Any;
use std::sync::Arc;

/// What it takes to open a puddle that is pending, and to seal it anew.
#[derive(Debug)]
pub(crate) struct Sealing {
    /// The pool's name, for messages.
    pub(crate) pool: String,
    pub(crate) mode: Mode,
    /// Under which identity the file is sealed.
    pub(crate) identity: Uuid,
    pub(crate) keys: Arc<PoolKeys>,
    pub(crate) journal: Option<Arc<Journal>>,
    /// What stands for it in its pool's list, now and after it is sealed anew.
    pub(crate) entry: Option<Digest>,
}

/// The keys of all puddles of a pool but the root; none in modes without keys.
#[derive(Debug, Default)]
pub(crate) struct PoolKeys {
    /// Of those that are sealed as their own.
    pub(crate) own: Option<Keyring>,
    /// Of those that are still sealed as what they were copied from, or as before they moved.
    pub(crate) before: Option<Keyring>,
}

/// Mode and keys of an open protected pool, for new puddles and for further openers.
#[derive(Debug)]
pub(crate) struct SealedPool {
    pub(crate) mode: Mode,
    pub(crate) keys: Arc<PoolKeys>,
}

impl PoolCore {
    /// If it is protected at rest.
    pub(crate) fn sealed(&self) -> Option<&SealedPool> {
        self.part().get()
    }
}

impl Job {
    /// Of a protected pool: how the puddle is sealed.
    pub(crate) fn sealing(&self) -> Option<&Sealing> {
        self.part.get()
    }
}

impl Puddle {
    /// Its memory, if its pool is protected and open.
    pub(crate) fn view(&self) -> Option<&View> {
        let memory: &dyn Any = self.memory()?;
        memory.downcast_ref()
    }
}

// A path to a method takes the view's own before that of the trait.
impl OwnMemory for View {
    fn resolve(&self, address: usize) -> bool {
        Self::resolve(self, address)
    }

    fn allow_stores(&self) {
        Self::allow_stores(self);
    }

    fn stop(&self) {
        Self::stop(self);
    }

    fn store_notes(&self) -> Option<StoreNotes> {
        Self::store_notes(self)
    }
}
