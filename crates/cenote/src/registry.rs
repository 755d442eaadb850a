//! Pointer maps from a store's registry of types, and filters of this program.

use cenote_layout::id::TypeId;
use cenote_layout::types::TypeRecord;
use std::sync::Arc;

/// Pointer maps from the store's registry.
pub(crate) struct StoreTypes<'a>(pub(crate) &'a cenote_store::Store);

impl cenote_heap::Types for StoreTypes<'_> {
    fn record(&self, id: TypeId) -> Option<Arc<TypeRecord>> {
        let known = self.0.type_record(id);
        if known.is_some() || !self.0.is_connected() {
            return known;
        }
        // Another process may have registered it since.
        self.0.learn_types().ok()?;
        self.0.type_record(id)
    }

    fn filter(&self, id: TypeId) -> Option<cenote_heap::trace::Filter> {
        crate::filter::of(id, || self.record(id))
    }
}
