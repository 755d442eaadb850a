//! Fuzzes logs: written by the production writer, left in any state, damaged or forged, then
//! inspected and replayed.
//!
//! It asserts:
//!
//! * nothing panics, and nothing outside of the owner's puddles and the log itself changes;
//! * a log that is refused changes nothing, its own bytes included except for the mark, and is
//!   refused again;
//! * what is recovered once is not recovered twice;
//! * `inspect` and `replay` see the same;
//! * a log that was not damaged is never refused, and ends in the state that its model says.

use crate::input::Input;
use crate::world::{
    DATA, DATA_ADDR, DATA_AT, LEASED, LOG_ID, SEGMENT_ADDR, SEGMENT_MAX, SEGMENT_STEP, SEGMENTS,
    World,
};
use cenote_layout::checksum::checksum;
use cenote_layout::header;
use cenote_layout::log::{
    AllocationMark, CONTROL_OFFSET, ContentHash, END_BASE, ENTRIES_OFFSET, ENTRY_INLINE_DATA_MAX,
    EntryHeader, EntryKind, LogHeader, RANGE_OFFSET, SequenceRange, TailWord, entry_seed,
    entry_size, epoch_from_word,
};
use cenote_log::{CrashKind, LogDamage, LogWriter, Outcome};
use zerocopy::{FromBytes, IntoBytes};

pub(crate) fn run(input: &mut Input<'_>) {
    // Lengths that are no multiple of anything are cut to capacity by `format_segment`.
    let lens = core::array::from_fn(|_| 2304 + input.below(SEGMENT_MAX - 2304 + 1));
    let world = World::new(lens);
    let Ok(mut writer) = world.attach() else { unreachable!("a fresh log can be written") };
    if input.one_in(8) {
        writer.skip_to_last_base();
    }
    for _ in 0..input.below(4) {
        let expected = transaction(input, &world, &mut writer);
        if let Some(expected) = expected {
            verify(&world, &expected);
            if !input.one_in(4) {
                break;
            }
            let _ = world.replay(CrashKind::Process);
            let Ok(next) = world.attach() else { unreachable!("a recovered log can be written") };
            writer = next;
        }
    }
    drop(writer);
    let damages = input.below(6);
    for _ in 0..damages {
        damage(input, &world);
    }
    for crash in [CrashKind::Process, CrashKind::Power] {
        judge(&world, crash, damages > 0);
    }
}

/// What recovery of an undamaged log must lead to.
struct Expected {
    data: Vec<u8>,
    /// Ranges of data that may hold anything.
    unowned: Vec<core::ops::Range<usize>>,
}

fn range(input: &mut Input<'_>) -> (u64, usize) {
    let puddle = LEASED.start + input.below(LEASED.len());
    let start = input.below(DATA);
    let most = if input.one_in(4) { DATA } else { 32 };
    let len = (1 + input.below(most)).min(DATA - start);
    (DATA_ADDR + (puddle * DATA + start) as u64, len)
}

fn data(world: &World) -> Vec<u8> {
    world.image()[DATA_AT..].to_vec()
}

fn set_bits(world: &World, word: u64, mask: u64) {
    let old = u64::from_le_bytes(world.read(word, 8).try_into().unwrap_or_default());
    world.write(word, &(old | mask).to_le_bytes());
}

/// What a transaction has logged so far.
#[derive(Default)]
struct Logged {
    covered: Vec<(u64, usize)>,
    redo: Vec<(u64, Vec<u8>)>,
    unowned: Vec<core::ops::Range<usize>>,
    /// Words of marks: nothing else is written there, because replay sets and clears their bits in
    /// both directions.
    marks: Vec<u64>,
}

fn overlaps((addr, len): (u64, usize), (a, l): (u64, usize)) -> bool {
    addr < a + l as u64 && a < addr + len as u64
}

impl Logged {
    /// Whether the transaction has logged nothing of these bytes, marks aside.
    fn is_unused(&self, range: (u64, usize)) -> bool {
        !self.covered.iter().any(|&covered| overlaps(range, covered))
            && !self.redo.iter().any(|(a, d)| overlaps(range, (*a, d.len())))
    }

    fn mark(&mut self, world: &World, word: u64, mask: u64) {
        set_bits(world, word, mask);
        self.marks.push(word);
        let at = (word - DATA_ADDR) as usize;
        self.unowned.push(at..at + 8);
    }

    /// Logs something about a range, and stores. `false`: the transaction comes to its end, because
    /// the log is full.
    fn step(&mut self, input: &mut Input<'_>, world: &World, writer: &mut LogWriter) -> bool {
        let (addr, len) = range(input);
        if !self.is_unused((addr, len))
            || self.marks.iter().any(|&word| overlaps((addr, len), (word, 8)))
        {
            return true;
        }
        let new = input.byte();
        match input.below(6) {
            0..=2 => {
                let parts = &mut self.covered;
                // SAFETY: all data is readable and inside the world, which outlives the writer.
                let logged = unsafe {
                    writer.append_range(
                        EntryKind::Undo,
                        addr,
                        len,
                        world.at(addr, len),
                        &mut |a, l, _| parts.push((a, l)),
                    )
                };
                writer.fence();
                if logged.is_ok() {
                    world.write(addr, &vec![new; len]);
                }
                logged.is_ok()
            }
            3 => {
                let bytes = vec![new; len];
                // SAFETY: the bytes are readable, and copied by the call.
                let logged = unsafe {
                    writer.append_range(
                        EntryKind::Redo,
                        addr,
                        len,
                        bytes.as_ptr(),
                        &mut |_, _, _| {},
                    )
                };
                // An error: a part of it is logged, so this one can only be rolled back.
                if logged.is_ok() {
                    self.redo.push((addr, bytes));
                }
                logged.is_ok()
            }
            4 => self.block(input, world, writer, (addr, len), new),
            _ => {
                let word = addr & !7;
                if !self.is_unused((word, 8)) {
                    return true;
                }
                let mask = 1u64 << input.below(64);
                // SAFETY: the mask is readable, and copied by the call.
                let logged = unsafe {
                    writer.append(EntryKind::ClearBitsOnAbort, word, 8, (&raw const mask).cast())
                };
                if logged.is_ok() {
                    self.mark(world, word, mask);
                }
                logged.is_ok()
            }
        }
    }

    /// A block, and the word of its mark somewhere else.
    fn block(
        &mut self,
        input: &mut Input<'_>,
        world: &World,
        writer: &mut LogWriter,
        (addr, len): (u64, usize),
        new: u8,
    ) -> bool {
        let word = range(input).0 & !7;
        let mask = 1u64 << input.below(64);
        let is_mark = !overlaps((addr, len), (word, 8)) && self.is_unused((word, 8));
        let mark = AllocationMark { word, mask };
        // SAFETY: the mark is readable, and copied by the call; a fresh entry has no data.
        let logged = unsafe {
            match is_mark {
                true => {
                    writer.append(EntryKind::Allocation, addr, len as u32, (&raw const mark).cast())
                }
                false => writer.append(EntryKind::Fresh, addr, len as u32, core::ptr::null()),
            }
        };
        if logged.is_ok() {
            if is_mark {
                self.mark(world, word, mask);
            }
            self.covered.push((addr, len));
            let offset = (addr - DATA_ADDR) as usize;
            self.unowned.push(offset..offset + len);
            world.write(addr, &vec![new; len]);
        }
        logged.is_ok()
    }
}

/// One transaction, finished (`None`) or left at some point; then what its recovery must lead to.
fn transaction(input: &mut Input<'_>, world: &World, writer: &mut LogWriter) -> Option<Expected> {
    let before = data(world);
    let mut logged = Logged::default();
    for _ in 0..input.below(12) {
        if !logged.step(input, world, writer) {
            break;
        }
    }
    let Logged { covered, redo, unowned, .. } = logged;
    let running = data(world);
    let mut committed = running.clone();
    for (addr, bytes) in &redo {
        let at = (addr - DATA_ADDR) as usize;
        committed[at..at + bytes.len()].copy_from_slice(bytes);
    }
    let apply =
        |count: usize| redo.iter().take(count).for_each(|(addr, bytes)| world.write(*addr, bytes));
    match input.below(5) {
        // Killed while it ran.
        0 => Some(Expected { data: before, unowned }),
        // Killed with a seal.
        1 => {
            let hash =
                covered.iter().fold(ContentHash::EMPTY, |h, &(a, l)| h.with(&world.read(a, l)));
            match writer.append_seal(hash.0) {
                Ok(()) => Some(Expected { data: committed, unowned: Vec::new() }),
                Err(_) => Some(Expected { data: before, unowned }),
            }
        }
        // Killed after commit, its redo data half applied.
        2 if writer.entries() > 0 => {
            writer.mark_committed();
            apply(input.below(redo.len() + 1));
            Some(Expected { data: committed, unowned: Vec::new() })
        }
        _ => {
            if !redo.is_empty() {
                writer.mark_committed();
                apply(redo.len());
            }
            writer.finish();
            None
        }
    }
}

fn verify(world: &World, expected: &Expected) {
    let copy = world.clone();
    let outcome = copy.replay(CrashKind::Process);
    let mut found = data(&copy);
    for range in &expected.unowned {
        found[range.clone()].copy_from_slice(&expected.data[range.clone()]);
    }
    assert!(
        !matches!(outcome, Outcome::Quarantined(_) | Outcome::AlreadyQuarantined),
        "refused a sound log: {outcome:?}"
    );
    assert!(found == expected.data, "{outcome:?}: a sound log was recovered to another state");
}

/// Damages the log: blindly, or as an attacker with knowledge of checksums does.
fn damage(input: &mut Input<'_>, world: &World) {
    let segment = input.below(SEGMENTS);
    let start = segment * SEGMENT_MAX;
    match input.below(8) {
        0 => input.damage(&mut world.bytes_mut()[start..start + SEGMENT_MAX]),
        1 => input.damage(&mut world.bytes_mut()[start..start + ENTRIES_OFFSET as usize]),
        2 => {
            // The range word, to a later one that is allowed, or to nonsense.
            let base = base_of(world).wrapping_add(4 * input.below(8) as u32).min(END_BASE);
            let range = if input.one_in(2) {
                SequenceRange::running(base)
            } else {
                SequenceRange::committed(base)
            };
            let word =
                if input.one_in(4) { input.number(range.to_word()) } else { range.to_word() };
            put_word(world, RANGE_OFFSET, word);
        }
        3 => {
            let tail = TailWord { base: base_of(world), entries: input.number(3) as u32 };
            put_word(world, RANGE_OFFSET + if input.one_in(3) { 24 } else { 8 }, tail.to_word());
        }
        4 => {
            // A header field, sealed again.
            let bytes = &mut world.bytes_mut()[start..start + size_of::<LogHeader>()];
            input.damage(bytes);
            if let Ok(mut header) = LogHeader::read_from_bytes(bytes) {
                header::seal(&mut header);
                bytes.copy_from_slice(header.as_bytes());
            }
        }
        _ => forge(input, world),
    }
}

fn word(world: &World, offset: u64) -> u64 {
    let at = offset as usize;
    u64::from_le_bytes(world.bytes_mut()[at..at + 8].try_into().unwrap_or_default())
}

fn put_word(world: &World, offset: u64, value: u64) {
    world.bytes_mut()[offset as usize..offset as usize + 8].copy_from_slice(&value.to_le_bytes());
}

fn base_of(world: &World) -> u32 {
    SequenceRange::from_word(word(world, RANGE_OFFSET)).map_or(0, SequenceRange::base)
}

/// Where the entries of the transaction stand, as far as they are whole, and the place behind the
/// last.
fn places(world: &World) -> Vec<usize> {
    let capacity = word(world, 72) as usize;
    let half = base_of(world) as usize / 4 % 2 * (capacity / 2);
    let mut places = vec![(ENTRIES_OFFSET as usize + half).min(SEGMENT_MAX - 64)];
    let Ok(summary) = world.inspect(CrashKind::Power) else {
        return places;
    };
    for entry in summary.entries {
        let Some(&at) = places.last() else { break };
        let next = if entry.kind == EntryKind::Jump {
            (entry.addr.wrapping_sub(SEGMENT_ADDR) / SEGMENT_STEP) as usize * SEGMENT_MAX
                + ENTRIES_OFFSET as usize
        } else {
            at + entry_size(u64::from(entry.kind.data_len(entry.size))) as usize
        };
        places.push(next);
    }
    places
}

/// Changes or adds an entry and puts its checksum right.
fn forge(input: &mut Input<'_>, world: &World) {
    let places = places(world);
    let index = input.below(places.len().min(256));
    let at = places[index];
    let bytes = &mut world.bytes_mut()[..DATA_AT];
    let Some((mut header, rest)) =
        bytes.get(at..).and_then(|b| EntryHeader::read_from_prefix(b).ok())
    else {
        return;
    };
    let mut data = rest.get(..header.size as usize).unwrap_or_default().to_vec();
    let base =
        u32::from_le_bytes(bytes[RANGE_OFFSET as usize..][..4].try_into().unwrap_or_default()) & !3;
    if index + 1 == places.len() {
        // A new one behind the last.
        let len = input.below(40);
        data = input.bytes(len);
        header = EntryHeader {
            checksum: 0,
            addr: DATA_ADDR + DATA as u64,
            size: data.len() as u32,
            index: index as u32,
            seq: base.wrapping_add(1),
            kind: EntryKind::Undo as u8,
            order: 1,
            unfenced: 0,
        };
    }
    for _ in 0..input.below(3) {
        match input.below(8) {
            0 => {
                header.addr = input.number(
                    DATA_ADDR
                        + (LEASED.start + usize::from(header.unfenced) % 3) as u64 * DATA as u64,
                )
            }
            1 => header.size = input.number(u64::from(header.size)) as u32,
            2 => header.index = input.number(u64::from(header.index)) as u32,
            3 => header.seq = base.wrapping_add(input.below(8) as u32),
            4 => header.kind = input.below(12) as u8,
            5 => header.order = input.below(3) as u8,
            6 => header.unfenced = input.number(0) as u16,
            _ => input.damage(&mut data),
        }
        if input.one_in(2)
            && let Some(kind) = EntryKind::from_u8(header.kind)
        {
            // Sensible in all but one respect reaches further.
            (header.seq, header.order) = (base.wrapping_add(kind.class()), kind.order() as u8);
            if header.kind == EntryKind::Jump as u8 {
                header.addr = SEGMENT_ADDR + input.below(SEGMENTS) as u64 * SEGMENT_STEP;
            }
        }
    }
    put_entry(input, bytes, at, header, data);
    let tail = TailWord { base, entries: (index + 1).max(places.len() - 1) as u32 };
    if !input.one_in(4) {
        put_word(world, RANGE_OFFSET + 8, tail.to_word());
    }
}

/// Puts an entry, with a right checksum, into the image of a log.
fn put_entry(
    input: &mut Input<'_>,
    bytes: &mut [u8],
    at: usize,
    mut header: EntryHeader,
    mut data: Vec<u8>,
) {
    let data_len = |size| EntryKind::from_u8(header.kind).map_or(size, |kind| kind.data_len(size));
    let counts_data = data_len(0) != data_len(1);
    if input.one_in(2) && counts_data {
        header.size = data.len() as u32;
    }
    let len = data_len(header.size);
    let len = (len as usize).min(bytes.len() - at - 32);
    data.resize(len, 0);
    let epoch = bytes[CONTROL_OFFSET as usize..][..8].try_into().unwrap_or_default();
    let seed = entry_seed(LOG_ID, epoch_from_word(u64::from_le_bytes(epoch)).unwrap_or(1));
    let covered = &header.as_bytes()[8..];
    header.checksum = if len as u64 <= ENTRY_INLINE_DATA_MAX {
        checksum(seed, &[covered, &data].concat())
    } else {
        checksum(checksum(seed, covered), &data)
    };
    bytes[at..at + 32].copy_from_slice(header.as_bytes());
    bytes[at + 32..at + 32 + len].copy_from_slice(&data);
}

/// Inspects and replays a copy. A log that was `forged` may hold entries of transactions to
/// come, which show only once it is their turn: then it is refused later.
fn judge(world: &World, crash: CrashKind, forged: bool) {
    let copy = world.clone();
    let before = copy.image();
    let seen = copy.inspect(crash);
    assert!(copy.image() == before, "inspect wrote something");
    let outcome = copy.replay(crash);
    let after = copy.image();
    let own = LEASED.start * DATA..LEASED.end * DATA;
    for (at, (old, new)) in before[DATA_AT..].iter().zip(&after[DATA_AT..]).enumerate() {
        assert!(old == new || own.contains(&at), "{outcome:?}: a stray write at {at}");
    }
    let refused = matches!(outcome, Outcome::Quarantined(_) | Outcome::AlreadyQuarantined);
    let changed_log = before[..DATA_AT]
        .iter()
        .zip(&after)
        .enumerate()
        .filter(|(_, (a, b))| a != b)
        .map(|(at, _)| at);
    if refused {
        assert!(before[DATA_AT..] == after[DATA_AT..], "{outcome:?}, but something was applied");
        let mark = CONTROL_OFFSET as usize + 8..CONTROL_OFFSET as usize + 16;
        for at in changed_log {
            assert!(mark.contains(&at), "{outcome:?}, but byte {at} of the log was changed");
        }
        assert!(copy.attach().is_err(), "a log that was set aside can be written");
    } else {
        for at in changed_log {
            let lines = CONTROL_OFFSET as usize..ENTRIES_OFFSET as usize;
            assert!(lines.contains(&at), "{outcome:?}: byte {at} of the log was changed");
        }
        assert!(forged || copy.attach().is_ok(), "{outcome:?}, but the log cannot be written");
    }
    match (&seen, &outcome) {
        (Err(_), Outcome::Quarantined(_) | Outcome::AlreadyQuarantined) => {}
        (Ok(summary), Outcome::AlreadyQuarantined) => assert!(summary.quarantined),
        (
            Ok(_),
            Outcome::Quarantined(
                LogDamage::ForeignRange { .. } | LogDamage::Uncounted | LogDamage::Unsupported(_),
            ),
        ) => {}
        (Ok(summary), Outcome::Idle) => assert!(summary.entries.is_empty()),
        (Ok(summary), Outcome::RolledBack { .. } | Outcome::RolledForward { .. }) => {
            assert!(!summary.entries.is_empty())
        }
        other => panic!("inspect and replay disagree: {other:?}"),
    }
    let again = copy.replay(crash);
    let settled = match again {
        Outcome::Quarantined(_) | Outcome::AlreadyQuarantined => refused || forged,
        Outcome::Idle => !refused,
        _ => false,
    };
    assert!(settled, "first {outcome:?}, then {again:?}");
    assert!(copy.image()[DATA_AT..] == after[DATA_AT..], "a second replay changed something");
}
