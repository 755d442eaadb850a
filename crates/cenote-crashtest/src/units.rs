//! Which images of a crash state are looked at.
//!
//! Two grains. *Words*: every undecided word, sector, length and name is a unit of its own; all
//! combinations of all values of up to 12 units are visited, of more a sample. (Only what means
//! something to the running processes alone, which no opener believes after a loss of power,
//! survives or not as a hash of the other choices says: there are hundreds of such words. Words of
//! marks none of whose values differ in which blocks are allocated are among them.) *Classes*: the
//! same, but combinations that recovery cannot tell apart (see [`crate::canon`], whose numbers
//! these are) are visited once, and what does not matter is drawn by hash:
//!
//! * marks that durable entries name (1), hints (2), memory under entries that are certainly there
//!   (6), blocks that were taken and cannot be committed (7): whether they survive is drawn;
//! * an entry of a log (4), the memory that a seal covers (6), a descriptor of the heap and an
//!   entry of a log space (they have checksums): all of it is lost, all survives, or a part that is
//!   drawn.
//!
//! Everything else stays alone, above all every word of data that no durable entry covers, ranges,
//! lengths, names and sectors.
//!
//! A state all of whose images are images of the next one too (nothing became durable in between,
//! and nothing was acknowledged) is not visited if that one is visited without gaps.

use crate::canon::{Context, EntryAt, PuddleAt, allocated, puddles, view};
use cenote_layout::log::{
    ENTRIES_OFFSET, EntryHeader, EntryKind, LogHeader, RANGE_OFFSET, entry_size,
};
use cenote_layout::puddle::Role;
use cenote_medium::sim::{CrashPlace, CrashState, Explorer, Image, Limits};
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use zerocopy::FromBytes;

/// How units are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// Each by itself.
    Words,
    /// The same, but words of marks are drawn: for heaps without transactions, whose recovery
    /// believes none after a loss of power.
    Unmarked,
    /// By classes of what recovery tells apart, besides samples of the rest.
    Classes,
}

/// Powers of two by which more combinations are visited of a state that has no more units than
/// [`Reach::exhaustive`]: some of its units have three values, or four.
const MORE_VALUES: u32 = 4;

/// How far one state is enumerated.
#[derive(Clone, Copy, Debug)]
pub struct Reach {
    /// How units are decided.
    pub grain: Grain,
    /// All combinations of up to 2 to the power of this many.
    pub exhaustive: u32,
    /// Images of a state with more, besides the extremes; with [`Grain::Classes`], also images of
    /// every state by words.
    pub samples: u32,
}

/// The images of one state that are looked at.
pub struct Images {
    reach: Reach,
    classes: Classes,
    /// What is known of the images beyond their bytes.
    pub context: Context,
    /// Whether all combinations are.
    pub exhausted: bool,
    /// Undecided units, without words that mean something to the running processes alone.
    pub units: usize,
    /// The medium loses nothing, or the images are visited with another state.
    none: bool,
}

impl Images {
    /// Looks at a state of a medium that loses what is undecided, or (`power` is false) does not.
    #[must_use]
    pub fn of(state: &CrashState, reach: Reach, power: bool) -> Self {
        let units = state.units();
        if !power {
            return Self {
                reach,
                classes: Classes::default(),
                context: Context::default(),
                exhausted: true,
                units,
                none: true,
            };
        }
        let (classes, taken) = classes(state, reach.grain);
        let units = units - classes.volatile.len();
        // A unit with more than two values makes more combinations than subsets.
        let few = reach.grain == Grain::Classes && units <= reach.exhaustive as usize;
        let most = reach.exhaustive + if few { MORE_VALUES } else { 0 };
        let exhausted = classes.product() <= 1 << most;
        let context = Context { taken, ..Context::default() };
        Self { reach, classes, context, exhausted, units, none: false }
    }

    /// The images are visited with another state, all of them.
    pub fn contained(&mut self) {
        (self.exhausted, self.none) = (true, true);
    }

    /// Calls `f` with images of losses of power, until it returns false.
    pub fn visit(&self, state: &CrashState, f: &mut dyn FnMut(Image) -> bool) {
        if self.none {
            return;
        }
        let by_words = self.reach.grain != Grain::Classes;
        let mut going = true;
        combine(state, &self.classes, self.exhausted, &mut |image| {
            going = going && f(image);
            going
        });
        // Where every word was combined with every other, there is nothing left to sample.
        let samples = if by_words && self.exhausted { 0 } else { self.reach.samples };
        if going && samples > 0 {
            let limits =
                Limits { exhaustive_units: 0, samples, process: false, ..Limits::default() };
            Explorer::new(limits).visit(state, &mut |image| going = going && f(image));
        }
    }
}

/// What some units are.
enum Choice {
    /// These units have these values.
    Values(Vec<(usize, u16)>),
    /// A part of these units survives, another one does not.
    Torn(Vec<usize>),
}

/// Units that are decided together, each with its choices, and the units that do not matter.
#[derive(Default)]
struct Classes {
    choices: Vec<Vec<Choice>>,
    indifferent: Vec<usize>,
    /// The same, and hundreds of them.
    volatile: Vec<usize>,
}

impl Classes {
    fn product(&self) -> u64 {
        self.choices.iter().fold(1u64, |p, g| p.saturating_mul(g.len() as u64))
    }
}

/// Visits all combinations of choices, or each choice against the extremes.
fn combine(state: &CrashState, classes: &Classes, all: bool, f: &mut dyn FnMut(Image) -> bool) {
    let mut units = vec![0u16; state.units()];
    let mut visit = |picks: &[usize]| {
        let mut hash = DefaultHasher::new();
        (picks, state.event()).hash(&mut hash);
        let hash = hash.finish();
        let drawn = |number: usize| hash.rotate_left(number as u32) & 1 == 1;
        let value =
            |unit: usize, survives: bool| if survives { state.latest(unit) as u16 } else { 0 };
        for (class, &pick) in classes.choices.iter().zip(picks) {
            match &class[pick] {
                Choice::Values(values) => {
                    values.iter().for_each(|&(unit, value)| units[unit] = value)
                }
                Choice::Torn(torn) => {
                    let last = torn.len() - 1;
                    for (i, &unit) in torn.iter().enumerate() {
                        // The first and the last never share their fate.
                        let survives = match i {
                            0 => drawn(7),
                            _ if i == last => !drawn(7),
                            _ => drawn(8 + i),
                        };
                        units[unit] = value(unit, survives);
                    }
                }
            }
        }
        for (i, &unit) in classes.indifferent.iter().enumerate() {
            units[unit] = value(unit, drawn(i + 31));
        }
        // There are so many that only one image in eight is worth the time that drawing them takes;
        // in the others all are lost.
        let fate = hash.rotate_right(17).is_multiple_of(8);
        for (i, &unit) in classes.volatile.iter().enumerate() {
            units[unit] = value(unit, fate && drawn(i * 7 + 3));
        }
        f(state.image_of(&units))
    };
    let counts: Vec<usize> = classes.choices.iter().map(Vec::len).collect();
    if all {
        let mut picks = vec![0; counts.len()];
        loop {
            if !visit(&picks) {
                return;
            }
            let Some(place) = (0..picks.len()).find(|&i| picks[i] + 1 < counts[i]) else { return };
            picks[place] += 1;
            picks[..place].fill(0);
        }
    }
    // All lost: the first value, or the one before the last where the first is a part.
    let lost = classes.choices.iter().map(|class| usize::from(matches!(class[0], Choice::Torn(_))));
    for all in [lost.collect::<Vec<usize>>(), counts.iter().map(|n| n - 1).collect()] {
        if !visit(&all) {
            return;
        }
        for (class, &count) in counts.iter().enumerate() {
            for choice in 0..count {
                let mut picks = all.clone();
                picks[class] = choice;
                if !visit(&picks) {
                    return;
                }
            }
        }
    }
}

/// Start and end of ranges of memory that belong to a transaction in progress.
#[derive(Default)]
struct Ranges {
    /// In every image of the state, replay overwrites it, or gives it back, whatever is there: see
    /// [`crate::canon`], 6.
    covered: Vec<(u64, u64)>,
    /// Blocks that a transaction has taken which cannot be committed in any image of the state: 7.
    taken: Vec<(u64, u64)>,
    /// What a seal covers that is not durable yet. Replay does the same unless all of it is there:
    /// 6.
    sealed: Vec<(u64, u64)>,
    /// Words and bits of marks that replay writes in every image of the state, in one direction or
    /// the other: 1.
    named: Vec<(u64, u64)>,
}

fn ranges(state: &CrashState, latest: &Image, at_latest: &[PuddleAt]) -> Ranges {
    let oldest = state.image_oldest();
    let at_oldest = puddles(&oldest);
    let mut out = Ranges::default();
    for log in at_oldest.iter().filter(|p| p.role == Some(Role::Log)) {
        let Some(durable) = view(&oldest, &at_oldest, log) else { continue };
        let Some(now) = at_latest.iter().find(|p| p.name == log.name) else { continue };
        let Some(now) = view(latest, at_latest, now) else { continue };
        if !durable.running || !now.running {
            continue;
        }
        let range = log.body + RANGE_OFFSET;
        let pending = |unit| {
            matches!(state.place(unit), Some(CrashPlace::Word { file, offset })
                if *file == *log.name && offset == range)
        };
        // The range must be the same in all images.
        if (0..state.units()).any(pending) {
            continue;
        }
        out.named.extend(durable.entries.iter().filter_map(EntryAt::mark));
        if durable.sealed {
            continue;
        }
        let range = |e: &EntryAt| (e.addr, e.addr + u64::from(e.size));
        let undo = durable.entries.iter().filter(|e| e.kind == EntryKind::Undo).map(range);
        let fresh = now
            .entries
            .iter()
            .filter(|e| matches!(e.kind, EntryKind::Fresh | EntryKind::Allocation))
            .map(range);
        if now.sealed {
            out.sealed.extend(undo.chain(fresh));
        } else {
            out.taken.extend(fresh);
            out.covered.extend(undo.chain(out.taken.iter().copied()));
        }
    }
    out
}

/// Units that are decided together, and blocks that have been taken.
fn classes(state: &CrashState, grain: Grain) -> (Classes, Vec<(u64, u64)>) {
    let latest = state.image_process();
    let at = puddles(&latest);
    let ranges = match grain {
        Grain::Words | Grain::Unmarked => Ranges::default(),
        Grain::Classes => ranges(state, &latest, &at),
    };
    let entries: HashMap<&str, Vec<(u64, u64)>> = at
        .iter()
        .filter(|p| p.role == Some(Role::Log))
        .map(|p| (&*p.name, log_entries(&latest, p)))
        .collect();
    let mut out = Classes::default();
    let alone = |unit: usize| -> Vec<Choice> {
        (0..state.alternatives(unit))
            .map(|value| Choice::Values(vec![(unit, value as u16)]))
            .collect()
    };
    let mut sealed = Vec::new();
    let mut together: BTreeMap<(&str, u64), Vec<usize>> = BTreeMap::new();
    for unit in 0..state.units() {
        let part = match state.place(unit) {
            Some(CrashPlace::Word { file, offset }) => {
                let puddle = at.iter().find(|p| *p.name == *file);
                puddle.map_or(WordOwner::Alone, |p| {
                    match p.parts.marks.iter().any(|part| part.contains(&offset)) {
                        true if grain == Grain::Unmarked => WordOwner::Volatile,
                        true => marks(p.addr + offset, state.words(unit), &ranges),
                        false => part(
                            p,
                            offset,
                            &ranges,
                            entries.get(file).map_or(&[], Vec::as_slice),
                            grain,
                        ),
                    }
                })
            }
            _ => WordOwner::Alone,
        };
        match (part, state.place(unit)) {
            (WordOwner::Volatile, _) => out.volatile.push(unit),
            (WordOwner::Indifferent, _) => out.indifferent.push(unit),
            (WordOwner::Sealed, _) => sealed.push(unit),
            (WordOwner::Together(start), Some(CrashPlace::Word { file, .. })) => {
                together.entry((file, start)).or_default().push(unit);
            }
            _ => out.choices.push(alone(unit)),
        }
    }
    for ((file, _), units) in together {
        // A value in between may be a whole descriptor too; of an entry it is one of an older
        // transaction at most, which is as good as none.
        if !entries.contains_key(file) && units.iter().any(|&unit| state.alternatives(unit) > 2) {
            out.choices.extend(units.into_iter().map(alone));
            continue;
        }
        out.choices.push(torn(state, units));
    }
    if !sealed.is_empty() {
        out.choices.push(torn(state, sealed));
    }
    (out, ranges.taken)
}

/// Units of which some are lost, all, or none.
fn torn(state: &CrashState, units: Vec<usize>) -> Vec<Choice> {
    let lost = units.iter().map(|&unit| (unit, 0)).collect();
    let there = units.iter().map(|&unit| (unit, state.latest(unit) as u16)).collect();
    // The part comes first: of images that are taken for equal, the first is recovered.
    let mut choices = Vec::new();
    if units.len() > 1 {
        choices.push(Choice::Torn(units));
    }
    choices.extend([Choice::Values(lost), Choice::Values(there)]);
    choices
}

/// What a word belongs to.
enum WordOwner {
    /// What no opener believes after a loss of power.
    Volatile,
    Indifferent,
    Alone,
    /// To what a seal covers.
    Sealed,
    /// To what begins at this offset of its file.
    Together(u64),
}

/// What a word of marks belongs to that may have these values.
fn marks(addr: u64, values: &[u64], ranges: &Ranges) -> WordOwner {
    let first = values.first().map_or(0, |value| allocated(*value));
    let differs = values.iter().fold(0, |bits, value| bits | (allocated(*value) ^ first));
    let named = ranges
        .named
        .iter()
        .filter(|(word, _)| *word == addr)
        .fold(0, |bits, (_, mask)| bits | mask);
    match (differs, differs & !named) {
        (0, _) => WordOwner::Volatile,
        (_, 0) => WordOwner::Indifferent,
        _ => WordOwner::Alone,
    }
}

fn part(
    puddle: &PuddleAt,
    offset: u64,
    ranges: &Ranges,
    entries: &[(u64, u64)],
    grain: Grain,
) -> WordOwner {
    let line = WordOwner::Together(offset / 64 * 64);
    match puddle.role {
        Some(Role::Heap | Role::Metadata) => {
            let addr = puddle.addr + offset;
            let volatile = puddle.parts.session.iter().any(|part| part.contains(&offset));
            let lies_in = |ranges: &[(u64, u64)]| {
                ranges.iter().any(|(start, end)| *start <= addr && addr + 8 <= *end)
            };
            if volatile {
                WordOwner::Volatile
            } else if lies_in(&ranges.covered) {
                WordOwner::Indifferent
            } else if lies_in(&ranges.sealed) {
                WordOwner::Sealed
            } else if puddle.parts.descriptors.contains(&offset) && grain == Grain::Classes {
                line
            } else {
                WordOwner::Alone
            }
        }
        Some(Role::Log) if grain == Grain::Classes => {
            let range = puddle.body + RANGE_OFFSET;
            if offset == range + 8 || offset == range + 16 {
                return WordOwner::Indifferent;
            }
            let entry = entries.iter().find(|(start, end)| (*start..*end).contains(&offset));
            entry.map_or(WordOwner::Alone, |(start, _)| WordOwner::Together(*start))
        }
        Some(Role::LogSpace) if grain == Grain::Classes => line,
        _ => WordOwner::Alone,
    }
}

/// Start and end of the entries that stand one after the other from the places where a
/// transaction's first entry goes.
fn log_entries(latest: &Image, log: &PuddleAt) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    let mut bytes = vec![0; log.size as usize];
    let read = latest.read(&log.name, 0, &mut bytes);
    let header = LogHeader::read_from_prefix(bytes.get(log.body as usize..).unwrap_or_default());
    let (true, Ok((header, _))) = (read, header) else { return out };
    let first = log.body + ENTRIES_OFFSET;
    let end = (first + header.capacity).min(log.size);
    let starts =
        if header.segment == 0 { vec![first, first + header.capacity / 2] } else { vec![first] };
    for mut at in starts {
        let mut before: Option<EntryHeader> = None;
        while at < end {
            let Ok((entry, _)) = EntryHeader::read_from_prefix(&bytes[at as usize..]) else {
                break;
            };
            let Some(kind) = EntryKind::from_u8(entry.kind) else { break };
            let follows = before.is_none_or(|b| {
                b.seq & !3 == entry.seq & !3 && b.index.wrapping_add(1) == entry.index
            });
            if !follows {
                break;
            }
            let len = entry_size(u64::from(kind.data_len(entry.size)));
            out.push((at, at + len));
            at += len;
            before = Some(entry);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_medium::sim::{SimMedium, SimOptions};
    use cenote_medium::{Durability, MapMode, Medium};
    use std::collections::HashSet;

    /// A state in which so many words may have each of so many values.
    fn state_of(words: u64, values: u64) -> (std::sync::Arc<SimMedium>, CrashState) {
        let sim = SimMedium::new(SimOptions::new(Durability::Power));
        sim.create("file", 4096).expect("a file");
        sim.sync("file").expect("durable");
        sim.sync_dir("").expect("durable");
        let base = cenote_sys::memory::find_free(1 << 20, 1 << 30).expect("addresses") as u64;
        sim.reserve_window(base, 1 << 20).expect("a window");
        // SAFETY: no reference leads there; the words are reached by raw pointers.
        unsafe { sim.map("file", base, 4096, MapMode::ReadWrite) }.expect("mapped");
        for value in 1..values {
            for word in 0..words {
                let at = (base + 64 * word) as usize;
                // SAFETY: a word of the mapping.
                unsafe { std::ptr::with_exposed_provenance_mut::<u64>(at).write_volatile(value) };
            }
            // The medium looks at memory.
            let _ = sim.state_now();
        }
        let state = sim.state_now();
        (sim, state)
    }

    #[test]
    fn few_units_are_combined_whole_also_if_they_have_three_values() {
        let reach = Reach { grain: Grain::Classes, exhaustive: 12, samples: 0 };
        let (_sim, state) = state_of(8, 3);
        let images = Images::of(&state, reach, true);
        assert!(images.exhausted && images.units == 8);
        let mut seen = HashSet::new();
        images.visit(&state, &mut |image| {
            seen.insert(image.hash());
            true
        });
        assert_eq!(seen.len(), 3usize.pow(8), "more than 4,096");
        let (_sim, state) = state_of(13, 2);
        assert!(!Images::of(&state, reach, true).exhausted, "too many units");
        let words = Reach { grain: Grain::Words, ..reach };
        assert!(!Images::of(&state_of(8, 3).1, words, true).exhausted, "too many words");
    }
}
