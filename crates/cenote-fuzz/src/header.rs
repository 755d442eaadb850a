//! Headers: made valid, damaged, sometimes sealed again. What a reader accepts must be whole and
//! make sense.

use crate::input::Input;
use cenote_layout::header::{self, Header, HeaderError, HeaderPrefix, KNOWN_RO_COMPAT};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::log::LogHeader;
use cenote_layout::log_space::{ENTRY_CONTINUATION, ENTRY_HEAD, LogSpaceEntry, LogSpaceHeader};
use cenote_layout::puddle::{PuddleHeader, Role, header_space};
use cenote_layout::superblock::{INCOMPAT_ALWAYS, JournalMark, Superblock};
use cenote_layout::{PAGE_SIZE, SLOT_SIZE};
use zerocopy::{FromBytes, IntoBytes};

pub(crate) fn run(input: &mut Input<'_>) {
    match input.below(5) {
        0 => each(input, superblock, |s: &Superblock| {
            assert!(
                s.window_base.is_multiple_of(SLOT_SIZE)
                    && s.window_len.is_multiple_of(SLOT_SIZE)
                    && s.window_len > 0
            );
            assert!(s.window_base.checked_add(s.window_len).is_some_and(|end| end <= 1 << 47));
        }),
        1 => each(input, puddle, |p: &PuddleHeader| {
            assert!(Role::from_u32(p.role).is_some());
            assert!(
                p.addr.is_multiple_of(SLOT_SIZE)
                    && p.size.is_multiple_of(PAGE_SIZE)
                    && p.addr.checked_add(p.size).is_some()
            );
            let _ = header_space(p.size);
        }),
        2 => each(input, log, |l: &LogHeader| {
            assert!(l.capacity.is_multiple_of(128) && l.capacity >= 2048)
        }),
        3 => each(input, log_space, |_: &LogSpaceHeader| ()),
        _ => log_space_entry(input),
    }
}

fn prefix<H: Header>() -> HeaderPrefix {
    HeaderPrefix::new(H::MAGIC, size_of::<H>() as u32)
}

fn superblock(input: &mut Input<'_>) -> Superblock {
    Superblock {
        prefix: HeaderPrefix { incompat: INCOMPAT_ALWAYS, ..prefix::<Superblock>() },
        store: Uuid(input.array()),
        window_base: input.number(1 << 45),
        window_len: input.number(1 << 40),
        generation: input.number(1),
        state: input.below(4) as u32,
        durability: input.below(4) as u32,
        boot_id: Uuid(input.array()),
        opener_pid: input.word(),
        opener_start_ticks: input.word(),
        formatted_at_s: input.word(),
        client: Uuid(input.array()),
        catalog_batch: 1,
        device: input.word(),
        directory_inode: input.word(),
        superblock_inode: input.word(),
        origin: input.below(3) as u64,
        tied_from: 0,
        journal_states: input.below(17) as u64,
        tied_batch: input.below(3) as u64,
        mounting: input.word(),
        era: input.word(),
        unclosed: input.below(2) as u64,
        reserved1: [0; 3792],
        journals: [JournalMark {
            epoch: input.below(3) as u64,
            generation: input.below(3) as u64,
            trimmed: input.below(3) as u64,
            chain: 0,
        }; 2],
    }
}

fn puddle(input: &mut Input<'_>) -> PuddleHeader {
    PuddleHeader {
        prefix: prefix::<PuddleHeader>(),
        uuid: Uuid(input.array()),
        store: Uuid(input.array()),
        addr: input.number(1 << 45),
        size: input.number(PAGE_SIZE),
        pool: PoolId(input.number(1)),
        role: input.below(6) as u32,
        index: input.number(0) as u32,
        generation: input.number(0),
        reserved: [0; 3968],
    }
}

fn log(input: &mut Input<'_>) -> LogHeader {
    LogHeader {
        prefix: prefix::<LogHeader>(),
        owner: Uuid(input.array()),
        log_id: input.word(),
        capacity: input.number(2048),
        segment: input.number(0) as u32,
        reserved: [0; 44],
    }
}

fn log_space(input: &mut Input<'_>) -> LogSpaceHeader {
    LogSpaceHeader {
        prefix: prefix::<LogSpaceHeader>(),
        client: Uuid(input.array()),
        capacity: input.number(100),
        reserved: [0; 56],
    }
}

/// One header: made, sealed, damaged, perhaps sealed again, cut, read.
fn each<H: Header + core::fmt::Debug + PartialEq>(
    input: &mut Input<'_>,
    make: impl Fn(&mut Input<'_>) -> H,
    sensible: impl Fn(&H),
) {
    let mut value = make(input);
    header::seal(&mut value);
    let original = value;
    let mut bytes = value.as_bytes().to_vec();
    for _ in 0..input.below(4) {
        // The prefix more often than its share.
        let len = if input.one_in(2) { 48 } else { bytes.len() };
        input.damage(&mut bytes[..len]);
    }
    if input.one_in(2)
        && let Ok(mut changed) = H::read_from_bytes(&bytes)
    {
        header::seal(&mut changed);
        bytes = changed.as_bytes().to_vec();
    }
    if input.one_in(8) {
        bytes.truncate(input.below(bytes.len()));
    }
    for writing in [false, true] {
        match header::read::<H>(&bytes, writing) {
            Ok(read) => {
                let mut copy = read;
                header::seal(&mut copy);
                assert_eq!(copy, read, "accepted a checksum that does not fit");
                assert_eq!(read.as_bytes(), &bytes[..size_of::<H>()]);
                let (prefix, _) = HeaderPrefix::read_from_prefix(&bytes).expect("it was read");
                assert_eq!(prefix.magic, H::MAGIC);
                assert_eq!(prefix.incompat & !H::KNOWN_INCOMPAT, 0);
                assert!(!writing || prefix.ro_compat & !KNOWN_RO_COMPAT == 0);
                sensible(&read);
            }
            Err(HeaderError::Checksum { .. }) => {
                assert_ne!(bytes, original.as_bytes(), "refused what was not damaged")
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

fn log_space_entry(input: &mut Input<'_>) {
    let state = input.number(1);
    let segment = input.number(0);
    let entry = LogSpaceEntry::new(
        state,
        Uuid(input.array()),
        input.number(1 << 45),
        input.word(),
        segment,
    );
    let known = state == ENTRY_HEAD || state == ENTRY_CONTINUATION;
    assert_eq!(entry.is_valid(), known);
    let mut bytes = entry.as_bytes().to_vec();
    for _ in 0..1 + input.below(3) {
        input.damage(&mut bytes);
    }
    if let Ok(read) = LogSpaceEntry::read_from_bytes(&bytes) {
        assert!(!read.is_valid() || (read == entry && known), "a damaged entry was accepted");
    }
}
