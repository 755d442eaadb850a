//! Formatting: an empty directory becomes a store.
//!
//! States: (1) `puddles/`, `catalog.0`, `catalog.1`, `superblock.new` are made and synced; there is no `superblock`, so
//! this is not a store, and the next format starts again; (2) `superblock.new` is renamed to `superblock`: **the rename
//! commits**, made durable by the directory's sync.

use crate::catalog;
use crate::error::FormatError;
use crate::options::FormatOptions;
use crate::puddle::DIR;
use crate::store::LOCK;
use crate::superblock::{self, FILE, NEW_FILE};
use cenote_layout::SLOT_SIZE;
use cenote_layout::header::{Header, HeaderPrefix};
use cenote_layout::id::Uuid;
use cenote_layout::superblock::{DURABILITY_UNSAID, ORIGIN_OWN, STATE_CLEAN, Superblock};
use cenote_medium::{LockKind, Medium, MediumError};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Where windows are chosen: clear of the loader, of libraries, and of the sanitizers' shadow memory.
const WINDOWS: (u64, u64) = (0x2000_0000_0000, 0x5000_0000_0000);
/// Places that are tried for a window.
const ATTEMPTS: u64 = 64;

/// Makes a store in an empty directory, or in one with an unfinished format. It is durable on return.
///
/// # Errors
/// The directory is not empty or holds a store; the options make no sense; the medium. An unfinished format may be left,
/// which is no store, and which the next format starts again.
pub fn format(medium: Arc<dyn Medium>, options: &FormatOptions) -> Result<Uuid, FormatError> {
    let path = medium.describe().path;
    let failed = |source| FormatError::Medium { path: path.clone(), source: Box::new(source) };
    check_options(options)?;
    check_directory(&*medium)?;
    let _lock = match medium.lock(LOCK, LockKind::Exclusive).map_err(failed)? {
        Ok(guard) => guard,
        Err(holder) => return Err(FormatError::Locked { path, holder: holder.text }),
    };
    // The file "lock" may be another one than that of a store that is open here.
    let _held = match medium.hold("", LockKind::Exclusive).map_err(failed)? {
        Ok((guard, _)) => guard,
        Err(holder) => return Err(FormatError::Locked { path, holder: holder.text }),
    };
    if medium.exists(FILE).map_err(failed)? {
        return Err(FormatError::Exists { path }); // by somebody who had the lock before
    }
    let uuid = match options.uuid {
        Some(uuid) => uuid,
        None => medium.random_uuid().map_err(failed)?,
    };
    let window_base = match options.window_base {
        Some(base) => base,
        None => choose_window(&*medium, uuid, options.window_len)?,
    };
    for name in catalog::NEW_FILES.iter().chain(&catalog::FILES).chain(&[NEW_FILE]) {
        catalog::remove_if_there(&*medium, name).map_err(failed)?;
    }
    let block = Superblock {
        prefix: HeaderPrefix::new(Superblock::MAGIC, size_of::<Superblock>() as u32),
        store: uuid,
        window_base,
        window_len: options.window_len,
        generation: 0,
        state: STATE_CLEAN,
        durability: DURABILITY_UNSAID,
        boot_id: Uuid::NIL,
        opener_pid: 0,
        opener_start_ticks: 0,
        formatted_at_s: medium.now_s(),
        client: Uuid::NIL,
        catalog_batch: catalog::INITIAL_BATCH,
        device: 0,
        directory_inode: 0,
        superblock_inode: 0,
        origin: ORIGIN_OWN,
        reserved1: [0; 3904],
    };
    let write = |name: &str, contents: &[u8]| -> Result<(), MediumError> {
        medium.create(name, contents.len() as u64)?;
        medium.write_at(name, 0, contents)?;
        medium.sync(name)
    };
    let all = || -> Result<(), MediumError> {
        if !medium.exists(DIR)? {
            medium.make_dir(DIR)?;
        }
        for name in catalog::FILES {
            write(name, &catalog::initial())?;
        }
        write(NEW_FILE, &superblock::initial(block))?;
        medium.sync_dir("")?;
        medium.rename(NEW_FILE, FILE)?;
        medium.sync_dir("")
    };
    all().map_err(failed)?;
    Ok(uuid)
}

/// Whether [`format()`] would find the directory empty, or with an unfinished format. Writes nothing.
///
/// # Errors
/// As [`format()`].
pub fn check_directory(medium: &dyn Medium) -> Result<(), FormatError> {
    let path = medium.describe().path;
    let failed = |source| FormatError::Medium { path: path.clone(), source: Box::new(source) };
    for name in medium.list("").map_err(failed)? {
        if name == FILE {
            return Err(FormatError::Exists { path });
        }
        let ours = [LOCK, NEW_FILE, DIR].contains(&&*name)
            || catalog::FILES.contains(&&*name)
            || catalog::NEW_FILES.contains(&&*name);
        if !ours {
            return Err(FormatError::NotEmpty { path, found: name });
        }
    }
    if medium.exists(DIR).map_err(failed)?
        && let Some(found) = medium.list(DIR).map_err(failed)?.into_iter().next()
    {
        return Err(FormatError::NotEmpty { path, found: format!("{DIR}/{found}") });
    }
    Ok(())
}

/// Whether a store can be made with these options. Touches nothing.
///
/// # Errors
/// [`FormatError::Options`].
pub fn check_options(options: &FormatOptions) -> Result<(), FormatError> {
    let bad = |text: &str| Err(FormatError::Options(text.into()));
    if options.window_len == 0 || !options.window_len.is_multiple_of(SLOT_SIZE) {
        return bad("window_len is not a multiple of 2 MiB");
    }
    if options.window_len > 1 << 46 {
        return bad("window_len is more than 64 TiB");
    }
    if let Some(base) = options.window_base
        && (base == 0
            || !base.is_multiple_of(SLOT_SIZE)
            || base.checked_add(options.window_len).is_none_or(|end| end > 1 << 47))
    {
        return bad("window_base is not a multiple of 2 MiB below 2^47");
    }
    if options.uuid.is_some_and(|uuid| uuid.is_nil()) {
        return bad("the uuid is nil");
    }
    Ok(())
}

/// Windows that this process chose last, each as one word (0: none), and how many it chose. Stores that one program makes are likely to be open together, or one while another
/// one is closed for a moment; so they get different windows as long as there are some. No lock, because a forked child may format a store too.
static CHOSEN: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
static CHOSEN_COUNT: AtomicU64 = AtomicU64::new(0);

/// When a window that has a byte of this one was chosen last, counted from 1; 0: never, as far as is remembered.
fn chosen_last(base: u64, len: u64) -> u64 {
    let count = CHOSEN_COUNT.load(Ordering::Acquire);
    let all = CHOSEN.len() as u64;
    let first = count.saturating_sub(all);
    let overlaps = |at: &u64| {
        let word = CHOSEN[(*at % all) as usize].load(Ordering::Acquire);
        let (other, other_len) = ((word >> 32) * SLOT_SIZE, (word & 0xffff_ffff) * SLOT_SIZE);
        base < other + other_len && other < base + len
    };
    (first..count).rev().find(overlaps).map_or(0, |at| at + 1)
}

/// A window that depends on the UUID and is free in this process; of those that this process chose before, the one that it chose longest ago.
fn choose_window(medium: &dyn Medium, uuid: Uuid, len: u64) -> Result<u64, FormatError> {
    let stride = len.next_power_of_two().max(1 << 30);
    let places = (WINDOWS.1 - WINDOWS.0) / stride;
    let hash = cenote_layout::checksum::checksum(0, &uuid.0);
    let base = |attempt| WINDOWS.0 + hash.wrapping_add(attempt) % places * stride;
    let attempts = (0..places.min(ATTEMPTS)).map(base);
    let mut candidates: Vec<(u64, u64)> = attempts.map(|base| (chosen_last(base, len), base)).collect();
    candidates.sort_by_key(|&(last, _)| last);
    for (last, base) in candidates {
        if medium.reserve_window(base, len).is_err() {
            continue;
        }
        // Another thread may have chosen it a moment ago.
        let is_mine = chosen_last(base, len) == last;
        if is_mine {
            let at = CHOSEN_COUNT.fetch_add(1, Ordering::AcqRel) as usize % CHOSEN.len();
            CHOSEN[at].store((base / SLOT_SIZE) << 32 | (len / SLOT_SIZE), Ordering::Release);
        }
        // SAFETY: reserved just now, and nothing was mapped in it.
        let _ = unsafe { medium.release_window(base, len) };
        if is_mine {
            return Ok(base);
        }
    }
    Err(FormatError::NoWindow { len })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_that_were_chosen_are_remembered_by_every_byte() {
        // No test formats a store so high.
        let (base, len) = (0x4fff_0000_0000, 1 << 30);
        assert_eq!(chosen_last(base, len), 0);
        let at = CHOSEN_COUNT.fetch_add(1, Ordering::AcqRel);
        CHOSEN[at as usize % CHOSEN.len()]
            .store((base / SLOT_SIZE) << 32 | (len / SLOT_SIZE), Ordering::Release);
        assert_eq!(chosen_last(base, len), at + 1);
        assert_eq!(chosen_last(base + len - SLOT_SIZE, 1 << 40), at + 1);
        assert_eq!(chosen_last(base - SLOT_SIZE, 2 * SLOT_SIZE), at + 1);
        assert_eq!((chosen_last(base + len, len), chosen_last(base - len, len)), (0, 0));
    }
}
