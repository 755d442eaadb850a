//! Copies of stores that were not closed: which ways lead to a store that opens as any other.
//!
//! There are two, and each is one command. The operator knows whether a program had the store open
//! while it was copied; nothing in the copy shows that.

use crate::failure::word;
use cenote::{MediumOptions, RealMedium, Store};
use cenote_layout::header::read;
use cenote_layout::superblock::{COPY_SIZE, ORIGIN_COPY, Superblock};
use cenote_medium::Medium as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// This command has opened an unchecked copy.
static OPEN: AtomicBool = AtomicBool::new(false);

/// Notes what a command has opened.
pub(crate) fn opened(store: Store) -> Store {
    if !store.is_connected() && store.handle().is_unchecked_copy() {
        OPEN.store(true, Ordering::Relaxed);
    }
    store
}

/// Whether this command has opened an unchecked copy.
pub(crate) fn is_open() -> bool {
    OPEN.load(Ordering::Relaxed)
}

/// What to say next about an unchecked copy.
pub(crate) fn ways_out(path: &str) -> String {
    let path = if path.starts_with(crate::failure::STORE) { path.to_owned() } else { word(path) };
    format!(
        "if no program had the store open while it was copied, run `cenote adopt {path} \
         --of-one-moment`, which keeps everything; otherwise run `cenote adopt {path} \
         --remove-torn`, which keeps only pools and objects that are whole"
    )
}

/// Whether the copy that this command has opened is a store of its own now, as its superblock says.
pub(crate) fn became_own(dir: &Path) -> bool {
    let own = || {
        let medium = RealMedium::open(dir, &MediumOptions::default()).ok()?;
        let bytes = medium.read("superblock").ok()?;
        let copies = bytes.chunks_exact(COPY_SIZE as usize);
        let blocks = copies.filter_map(|copy| read::<Superblock>(copy, true).ok());
        let last = blocks.max_by_key(|block| block.generation)?;
        Some(last.origin != ORIGIN_COPY)
    };
    is_open() && own().unwrap_or(false)
}
