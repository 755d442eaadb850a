//! Formats a store: makes an empty directory one.
//!
//! States: (1) `puddles/`, `catalog.0`, `catalog.1`, `superblock.new` are made and synced; there is
//! no `superblock`, so this is not a store, and the next format starts again; (2) `superblock.new`
//! is renamed to `superblock`: **the rename commits**, made durable by the directory's sync.

use crate::kernel::catalog;
use crate::kernel::catalog::journals::JournalOf;
use crate::kernel::interface::error::FormatError;
use crate::kernel::interface::options::FormatOptions;
use crate::kernel::puddles::place;
use crate::kernel::puddles::puddle::DIR;
use crate::kernel::store::LOCK;
use crate::kernel::superblock::{self, FILE, NEW_FILE};
use cenote_layout::SLOT_SIZE;
use cenote_layout::id::Uuid;
use cenote_layout::superblock::{
    DURABILITY_UNSAID, JournalMark, ORIGIN_OWN, STATE_CLEAN, Superblock,
};
use cenote_medium::{LockKind, Medium, MediumError, OwnedMedium};
use std::sync::Arc;

/// Makes a store in an empty directory, or in one with an unfinished format. It is durable on
/// return.
///
/// # Errors
/// The directory is not empty or holds a store; the options make no sense; the medium. An
/// unfinished format may be left, which is no store, and which the next format starts again.
pub fn format(medium: Arc<dyn Medium>, options: &FormatOptions) -> Result<Uuid, FormatError> {
    let path = medium.describe().path;
    let failed = |source| FormatError::Medium { path: path.clone(), source: Box::new(source) };
    check_options(options)?;
    check_directory(&*medium)?;
    // SAFETY: a directory without a store, which the lock keeps to this call: nothing of it is
    // mapped.
    let medium = unsafe { OwnedMedium::new(medium) };
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
        return Err(FormatError::Exists { path }); // by the process that had the lock before
    }
    let uuid = match options.uuid {
        Some(uuid) => uuid,
        None => medium.random_uuid().map_err(failed)?,
    };
    let window_base = match options.window_base {
        Some(base) => base,
        None => place::choose(&*medium, uuid, options.window_len, &[])
            .ok_or(FormatError::NoWindow { len: options.window_len })?,
    };
    for name in catalog::NEW_FILES.iter().chain(&catalog::FILES).chain(&[NEW_FILE]) {
        catalog::remove_if_there(&medium, name).map_err(failed)?;
    }
    let block = first_superblock(uuid, (window_base, options.window_len), medium.now_s());
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
    place::note(&*medium, window_base, options.window_len);
    Ok(uuid)
}

/// What the superblock of a new store says.
fn first_superblock(
    store: Uuid,
    (window_base, window_len): (u64, u64),
    formatted_at_s: u64,
) -> Superblock {
    Superblock {
        prefix: superblock::prefix(),
        store,
        window_base,
        window_len,
        generation: 0,
        state: STATE_CLEAN,
        durability: DURABILITY_UNSAID,
        boot_id: Uuid::NIL,
        opener_pid: 0,
        opener_start_ticks: 0,
        formatted_at_s,
        client: Uuid::NIL,
        catalog_batch: catalog::INITIAL_BATCH,
        device: 0,
        directory_inode: 0,
        superblock_inode: 0,
        origin: ORIGIN_OWN,
        tied_from: 0,
        journal_states: 0,
        tied_batch: 0,
        mounting: 0,
        era: 0,
        unclosed: 0,
        reserved1: [0; 3792],
        journals: [JournalMark::NONE; 2],
    }
}

/// A file of a store, in a directory without a superblock: a puddle, or a journal beside a catalog.
/// A format that was interrupted has made none of them yet.
pub(crate) fn rest_of_store(medium: &dyn Medium) -> Result<Option<String>, MediumError> {
    let puddles = if medium.exists(DIR)? { medium.list(DIR)? } else { Vec::new() };
    if let Some(puddle) =
        puddles.iter().find(|name| name.len() == 32 && Uuid::parse(name).is_some())
    {
        return Ok(Some(format!("{DIR}/{puddle}")));
    }
    let mut begun = false;
    for name in catalog::FILES {
        begun |= medium.exists(name)?;
    }
    for journal in JournalOf::ALL.map(JournalOf::file) {
        if begun && medium.exists(journal)? {
            return Ok(Some(journal.into()));
        }
    }
    Ok(None)
}

/// Whether [`format()`] would find the directory empty, or with an unfinished format. Writes
/// nothing.
///
/// # Errors
/// As [`format()`].
pub fn check_directory(medium: &dyn Medium) -> Result<(), FormatError> {
    let path = medium.describe().path;
    let failed = |source| FormatError::Medium { path: path.clone(), source: Box::new(source) };
    if medium.exists(FILE).map_err(failed)? {
        return Err(FormatError::Exists { path });
    }
    if let Some(found) = rest_of_store(medium).map_err(failed)? {
        return Err(FormatError::SuperblockMissing { path, found });
    }
    for name in medium.list("").map_err(failed)? {
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
