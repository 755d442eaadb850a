//! Views that the calling thread holds.

use crate::had::{Had, LockMode};
use crate::open_pool::PoolInner;
use core::cell::{Cell, RefCell};

thread_local! {
    /// Views that this thread holds, over all pools.
    static VIEWS: Cell<u32> = const { Cell::new(0) };
    /// Pools that this thread has views of, once for each view. Looked at only where [`VIEWS`] is
    /// not zero.
    static VIEWED: RefCell<Vec<*const PoolInner>> = const { RefCell::new(Vec::new()) };
}

/// Whether this thread holds a view, of any pool.
#[inline]
pub(crate) fn is_any_viewed_here() -> bool {
    VIEWS.with(Cell::get) != 0
}

/// What this thread has by its views, as far as it knows.
pub(crate) fn had_in_views() -> Vec<Had> {
    if !is_any_viewed_here() {
        return Vec::new();
    }
    let had = |viewed: &RefCell<Vec<*const PoolInner>>| {
        viewed.borrow().iter().map(|pool| Had::new(*pool, LockMode::Shared)).collect()
    };
    VIEWED.try_with(had).unwrap_or_default()
}

/// This thread holds one more view of a pool.
pub(crate) fn begin(pool: &PoolInner) {
    VIEWS.with(|views| views.set(views.get() + 1));
    let _ = VIEWED.try_with(|viewed| viewed.borrow_mut().push(core::ptr::from_ref(pool)));
}

/// This thread holds one view of a pool less.
pub(crate) fn end(pool: &PoolInner) {
    VIEWS.with(|views| views.set(views.get() - 1));
    let this = core::ptr::from_ref(pool);
    // A view that lies in a thread-local may outlive the list.
    let _ = VIEWED.try_with(|viewed| {
        let mut viewed = viewed.borrow_mut();
        if let Some(at) = viewed.iter().rposition(|&pool| pool == this) {
            viewed.swap_remove(at);
        }
    });
}

impl PoolInner {
    /// Whether this thread holds a view of the pool.
    #[inline]
    pub(crate) fn is_viewed_here(&self) -> bool {
        is_any_viewed_here() && self.is_among_viewed()
    }

    #[inline(never)]
    fn is_among_viewed(&self) -> bool {
        // A thread whose thread-locals are going away does not know of which pool a view is. It
        // counts as one of this pool: an error is better than waiting for oneself.
        let this = core::ptr::from_ref(self);
        VIEWED.try_with(|viewed| viewed.borrow().contains(&this)).unwrap_or(true)
    }
}
