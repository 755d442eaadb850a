//! Memory of a puddle that shows no file: what the kernel asks of the part that made it.

use cenote_protect::StoreNotes;
use core::any::Any;
use core::fmt::Debug;

/// The memory of one puddle, from its first data page on. Its maker has mapped it, and decides what
/// each page allows. It ends before the kernel unmaps it or gives its addresses back.
pub(crate) trait OwnMemory: Any + Send + Sync + Debug {
    /// Resolves a fault at `address`, which is in it. True: the access can be tried again. For
    /// handlers of faults ([`cenote_sys::alt_stack`] says what they allow).
    fn resolve(&self, address: usize) -> bool;

    /// From now on stores are allowed.
    fn allow_stores(&self);

    /// It is about to be unmapped: pages that are closed stay so, and its range is not its own any
    /// more.
    fn stop(&self);

    /// The notes of stores, for code that stores through another mapping. `None`: nothing is noted
    /// here.
    fn store_notes(&self) -> Option<StoreNotes>;
}
