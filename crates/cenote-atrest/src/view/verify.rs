//! Checks pages of a primary against their protection, without opening them.

use crate::crypto::{PAGE_LEN, Protection};
use crate::view::{Source, View};
use cenote_layout::at_rest::{PageSide, SIDE_LEN};

/// Pages that are read at once.
const BATCH: usize = 16;

/// What a look at every page found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Whether the mode tells a damaged page from a whole one.
    pub covered: bool,
    /// Pages that were looked at.
    pub pages: u64,
    /// Pages that fail their check or cannot be read, by number, with what is wrong.
    pub damaged: Vec<(u64, String)>,
}

/// Checks every page of a view's primary, in order. `progress` gets the pages done and all pages,
/// and may end it.
pub fn verify(view: &View, progress: &mut dyn FnMut(u64, u64) -> bool) -> Verified {
    verify_all(view.protection(), view.source(), progress)
}

/// The same of a file that has no view.
pub fn verify_all(
    protection: &Protection,
    source: &Source,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Verified {
    let (all, has_side) = (protection.pages(), protection.mode().has_side());
    let mut found = Verified { covered: protection.mode().has_tree(), ..Verified::default() };
    let mut sealed = vec![0u8; BATCH * PAGE_LEN];
    let mut sides = [0u8; BATCH * SIDE_LEN];
    let mut at = 0;
    while found.covered && at < all {
        let count = (all - at).min(BATCH as u64) as usize;
        let (sealed, sides) = (&mut sealed[..count * PAGE_LEN], &mut sides[..count * SIDE_LEN]);
        let mut read = source.read_pages(at, sealed);
        if has_side {
            read = read.and_then(|()| source.read_sides(at, sides));
        }
        let pages = sealed.as_chunks::<PAGE_LEN>().0.iter().zip(sides.as_chunks::<SIDE_LEN>().0);
        for (page, (sealed, side)) in (at..).zip(pages) {
            let side: Option<PageSide> = has_side.then_some(zerocopy::transmute!(*side));
            let wrong = match &read {
                // Which of them it is, is found one by one.
                Err(_) => check_page(protection, source, page).err(),
                Ok(()) => protection
                    .check_page(page, sealed, side.as_ref(), source)
                    .err()
                    .map(|e| e.fault.to_string()),
            };
            found.damaged.extend(wrong.map(|wrong| (page, wrong)));
        }
        at += count as u64;
        found.pages = at;
        if !progress(at, all) {
            break;
        }
    }
    found
}

/// What is wrong with one page as it was psynced last, if something is.
///
/// # Errors
/// That.
pub fn check_one(view: &View, page: u64) -> Result<(), String> {
    check_page(view.protection(), view.source(), page)
}

fn check_page(protection: &Protection, source: &Source, page: u64) -> Result<(), String> {
    let (mut sealed, mut side) = ([0; PAGE_LEN], [0; SIDE_LEN]);
    source.read_pages(page, &mut sealed).map_err(|error| error.to_string())?;
    if protection.mode().has_side() {
        source.read_sides(page, &mut side).map_err(|error| error.to_string())?;
    }
    let side: Option<PageSide> = protection.mode().has_side().then_some(zerocopy::transmute!(side));
    protection
        .check_page(page, &sealed, side.as_ref(), source)
        .map(drop)
        .map_err(|error| error.fault.to_string())
}
