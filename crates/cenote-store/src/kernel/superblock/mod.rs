//! The superblock on the medium: two copies, written in turn.
//!
//! # When its state is believed
//!
//! A change writes the older copy, with the next generation, and syncs it. So after every completed
//! change both copies are whole and their generations differ by one.
//!
//! *Invariant: while a session stores anything, both copies say "open", and name that session.*
//! Before its first store a session says "open" twice, one copy after the other, and in every later
//! copy until it closes. A close says "clean" twice. A session that finds the newer copy open and
//! the older one clean says "open" in that too, before it recovers the store.
//!
//! So a lost copy costs nothing, at any moment:
//!
//! | the whole copy | the lost one | the store |
//! | --- | --- | --- |
//! | clean | clean, or open by a session that closes, or has stored nothing | is closed |
//! | open | open, or clean of before or after this session | counts as open |
//!
//! Recovery of a store that counts as open and was closed finds nothing to do.
//!
//! Where both are whole and their generations do not follow each other, one of them is of another
//! moment, and the store counts as open. UUID and window never change; they are believed from any
//! whole copy.
//!
//! # The catalog's batch
//!
//! Every copy names a batch of the catalog. It is written only after that batch is synced in both
//! files of the catalog: at no crash point does a superblock name a batch that the catalog may
//! lack. A lost copy leaves an older, lower claim. If both files of the catalog end before the
//! batch, the catalog was rolled back, to a state that is whole by itself and would otherwise pass.
//! A session claims what it has appended since open at its close, or the next open claims it.

pub(crate) mod about;
pub(crate) mod fence;
pub(crate) mod origin;
pub(crate) mod poison;

use crate::kernel::interface::error::OpenError;
use crate::kernel::interface::report::Damage;
use crate::kernel::superblock::about::of_control;
use cenote_layout::header::{self, Header, HeaderError, HeaderPrefix, read};
use cenote_layout::superblock::{COPY_SIZE, INCOMPAT_ALWAYS, STATE_CLEAN, Superblock};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{MediumError, OwnedMedium};
use zerocopy::IntoBytes;

/// The file.
pub(crate) const FILE: &str = "superblock";
/// Where [`crate::format`] prepares it.
pub(crate) const NEW_FILE: &str = "superblock.new";

/// What was read.
#[derive(Debug)]
pub(crate) struct FoundSuperblock {
    /// The newest whole copy.
    pub(crate) newest: Superblock,
    /// Whether the store was closed: the state is "clean" and is believed.
    pub(crate) clean: bool,
    /// The copy that is damaged, if one is.
    pub(crate) damage: Vec<Damage>,
    /// A copy is not whole, and may have been the next after the newest whole one.
    pub(crate) lost: bool,
    /// The newest copy says "open", and the one before it "clean".
    pub(crate) half_open: bool,
}

/// The start of every superblock.
pub(crate) fn prefix() -> HeaderPrefix {
    let prefix = HeaderPrefix::new(Superblock::MAGIC, size_of::<Superblock>() as u32);
    HeaderPrefix { incompat: INCOMPAT_ALWAYS, ..prefix }
}

/// Both copies of a new store, in one piece, of the next generations after that of `block`: 2 and 1
/// where that is 0. A backup's are later than those that its journals were begun under.
pub(crate) fn initial(mut block: Superblock) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 * COPY_SIZE as usize);
    let after = block.generation.next_multiple_of(2);
    for generation in [after + 2, after + 1] {
        block.generation = generation;
        header::seal(&mut block);
        out.extend_from_slice(block.as_bytes());
    }
    out
}

/// Reads both copies.
pub(crate) fn load(medium: &OwnedMedium, writing: bool) -> Result<FoundSuperblock, OpenError> {
    let path = || medium.describe().path;
    let Copies { bytes, unread } = read_copies(|at, copy| medium.read_at(FILE, at, copy))
        .map_err(|source| OpenError::Medium { path: path(), source: Box::new(source) })?;
    let why = |error: &HeaderError| {
        unread.as_ref().map_or_else(|| error.to_string(), MediumError::to_string)
    };
    let copies = bytes.map(|copy| read::<Superblock>(&copy, writing));

    // A feature or a version that a whole copy names is a decision of a newer release, not damage.
    for copy in &copies {
        if let Err(error) = copy
            && error.is_newer()
        {
            return Err(OpenError::Superblock { path: path(), source: error.clone() });
        }
    }
    match copies {
        // Neither was ever a superblock: another program's file, or an empty one.
        [
            Err(first @ (HeaderError::Magic { .. } | HeaderError::Truncated { .. })),
            Err(HeaderError::Magic { .. } | HeaderError::Truncated { .. }),
        ] => Err(OpenError::Superblock { path: path(), source: first }),
        [Err(first), Err(second)] => Err(OpenError::SuperblockLost { path: path(), first, second }),
        [Ok(block), Err(error)] => Ok(single(block, 1, why(&error))),
        [Err(error), Ok(block)] => Ok(single(block, 0, why(&error))),
        [Ok(a), Ok(b)] => Ok(both(a, b)),
    }
}

/// Both copies as they were read.
#[derive(Debug)]
pub(crate) struct Copies {
    /// Empty: it could not be read.
    pub(crate) bytes: [Vec<u8>; 2],
    /// Why one could not be read.
    pub(crate) unread: Option<MediumError>,
}

/// Reads both copies by `read`. One that cannot be read, for a reason that is the file's, counts as
/// one that is not there.
///
/// # Errors
/// Neither can be read; or why says nothing of the file.
pub(crate) fn read_copies(
    read: impl Fn(u64, &mut [u8]) -> Result<usize, MediumError>,
) -> Result<Copies, MediumError> {
    let mut both = vec![0; 2 * COPY_SIZE as usize];
    match read(0, &mut both) {
        Ok(len) => {
            both.truncate(len);
            let second = both.split_off(len.min(COPY_SIZE as usize));
            return Ok(Copies { bytes: [both, second], unread: None });
        }
        Err(error) if planted(Bug::UnreadableNotRead) => return Err(error),
        Err(error) => of_control(error).map(drop)?,
    }
    // Which of the two it is shows by reading each alone.
    let one = |at: u64| {
        let mut copy = vec![0; COPY_SIZE as usize];
        let len = read(at, &mut copy)?;
        copy.truncate(len);
        Ok(copy)
    };
    match (one(0), one(COPY_SIZE)) {
        (Err(error), Err(_)) => Err(error),
        (Ok(first), Ok(second)) => Ok(Copies { bytes: [first, second], unread: None }),
        (Ok(first), Err(error)) => {
            Ok(Copies { bytes: [first, Vec::new()], unread: Some(of_control(error)?) })
        }
        (Err(error), Ok(second)) => {
            Ok(Copies { bytes: [Vec::new(), second], unread: Some(of_control(error)?) })
        }
    }
}

fn single(newest: Superblock, damaged: u8, detail: String) -> FoundSuperblock {
    FoundSuperblock {
        newest,
        clean: newest.state == STATE_CLEAN,
        damage: vec![Damage::Superblock { copy: damaged, detail }],
        lost: true,
        half_open: false,
    }
}

fn both(a: Superblock, b: Superblock) -> FoundSuperblock {
    let mut damage = Vec::new();
    for (copy, block) in [(0u8, &a), (1, &b)] {
        if block.generation % 2 != u64::from(copy) {
            damage.push(Damage::Superblock {
                copy,
                detail: format!("generation {} belongs into the other copy", block.generation),
            });
        }
    }
    let (newest, other) = if a.generation > b.generation { (a, b) } else { (b, a) };
    if newest.generation != other.generation.wrapping_add(1) {
        damage.push(Damage::Superblock {
            copy: (other.generation % 2) as u8,
            detail: format!(
                "generations {} and {} do not follow each other",
                other.generation, newest.generation
            ),
        });
    }
    if (newest.store, newest.window_base, newest.window_len)
        != (other.store, other.window_base, other.window_len)
    {
        damage.push(Damage::Superblock {
            copy: (other.generation % 2) as u8,
            detail: "it is of another store".into(),
        });
    }
    let (is_clean, was_clean) = (newest.state == STATE_CLEAN, other.state == STATE_CLEAN);
    let clean = damage.is_empty() && is_clean;
    let half_open = damage.is_empty() && was_clean && !is_clean;
    FoundSuperblock { clean, newest, damage, lost: false, half_open }
}

/// Where the copy of this generation lies in the file.
pub(crate) fn copy_offset(generation: u64) -> u64 {
    generation % 2 * COPY_SIZE
}

/// Whether `bytes` are a whole copy of a later generation than this. Looks at the number first, and
/// checks the rest only if that is higher: this is asked often, and on small stacks.
pub(crate) fn is_later(bytes: &[u8], generation: u64) -> bool {
    let at = core::mem::offset_of!(Superblock, generation);
    let number =
        bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map(u64::from_le_bytes);
    number.is_some_and(|number| number > generation) && is_whole(bytes)
}

#[cold]
fn is_whole(bytes: &[u8]) -> bool {
    read::<Superblock>(bytes, false).is_ok()
}

/// The block that is written after this one: the next generation, with the features that the store
/// uses.
pub(crate) fn next(block: &Superblock) -> Superblock {
    let mut next = *block;
    next.prefix = HeaderPrefix { incompat: block.prefix.incompat, ..prefix() };
    next.generation = block.generation + 1;
    header::seal(&mut next);
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_layout::id::Uuid;
    use cenote_layout::superblock::{JournalMark, ORIGIN_OWN, STATE_OPEN};

    fn block(generation: u64, state: u32) -> Superblock {
        let mut block = Superblock {
            prefix: prefix(),
            store: Uuid([1; 16]),
            window_base: 1 << 40,
            window_len: 1 << 30,
            generation,
            state,
            durability: 0,
            boot_id: Uuid::NIL,
            opener_pid: 0,
            opener_start_ticks: 0,
            formatted_at_s: 0,
            client: Uuid::NIL,
            catalog_batch: 1,
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
        };
        header::seal(&mut block);
        block
    }

    #[test]
    fn a_copy_that_cannot_be_read_is_as_one_that_is_not_there() {
        let error = |errno| {
            let error = std::io::Error::from_raw_os_error(errno);
            MediumError::from_io(cenote_medium::Operation::Read, FILE, error)
        };
        let read = |bad: &'static [u64], errno: i32| {
            read_copies(move |at, copy| {
                let pages = at / COPY_SIZE..(at + copy.len() as u64) / COPY_SIZE;
                copy.fill(7);
                match pages.clone().any(|page| bad.contains(&page)) {
                    true => Err(error(errno)),
                    false => Ok(copy.len()),
                }
            })
        };
        let (whole, eio, emfile) = (vec![7; COPY_SIZE as usize], 5, 24);
        let read_of = |bad: &'static [u64]| {
            let Copies { bytes, unread } = read(bad, eio).unwrap();
            assert_eq!(unread.is_some(), !bad.is_empty());
            bytes
        };
        assert_eq!(read_of(&[]), [whole.clone(), whole.clone()]);
        assert_eq!(read_of(&[0]), [Vec::new(), whole.clone()]);
        assert_eq!(read_of(&[1]), [whole, Vec::new()]);
        assert!(read(&[0, 1], eio).is_err());
        assert!(read(&[1], emfile).is_err(), "it says nothing of the file");
    }

    #[test]
    fn clean_is_believed_of_one_copy_or_of_two_that_follow_each_other() {
        assert!(both(block(2, STATE_CLEAN), block(1, STATE_CLEAN)).clean);
        assert!(both(block(2, STATE_OPEN), block(3, STATE_CLEAN)).clean);
        assert!(!both(block(4, STATE_OPEN), block(3, STATE_CLEAN)).clean);
        assert!(!both(block(2, STATE_CLEAN), block(5, STATE_CLEAN)).clean);
        assert!(!both(block(4, STATE_CLEAN), block(1, STATE_CLEAN)).clean);
        let error = HeaderError::Truncated { what: "x", found: 0, expected: 1 };
        assert!(single(block(2, STATE_CLEAN), 1, error.to_string()).clean);
        assert!(!single(block(2, STATE_OPEN), 1, error.to_string()).clean);
    }

    #[test]
    fn newest_is_the_higher_generation() {
        assert_eq!(both(block(8, STATE_OPEN), block(7, STATE_OPEN)).newest.generation, 8);
        assert_eq!(both(block(8, STATE_OPEN), block(9, STATE_OPEN)).newest.generation, 9);
    }
}
