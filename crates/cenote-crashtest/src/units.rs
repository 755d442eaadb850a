//! Which images of a crash state are looked at.
//!
//! Two grains. *Words*: every undecided word, sector, length and name is a unit of its own; all combinations of all values of up to 12 units
//! are visited, of more a sample. *Grouped*, for long histories: what recovery does not tell apart is not told apart either:
//!
//! * the entries that a log's transaction has not fenced yet are one group: the first so many of them survive, or all but one, each whole (an
//!   entry has a checksum, a part of it counts as nothing);
//! * a descriptor of the heap (it has a checksum) and an entry of a log space are one group each;
//! * allocation marks, which tracing computes again, and the words of a log that are believed only after a crash of processes, survive or not as a hash
//!   of the other choices says.
//!
//! Everything else stays alone, above all every word of data, and samples by words are taken too. That these groups are right is what the shorter
//! histories, visited by words, show.

use cenote_layout::heap::{BITMAP_SIZE, HeapGeometry};
use cenote_layout::log::{ENTRIES_OFFSET, EntryHeader, Kind, LogHeader, RANGE_OFFSET, entry_size};
use cenote_layout::puddle::{PuddleHeader, Role, header_space};
use cenote_medium::sim::{CrashState, Explorer, Image, Limits, Place};
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use zerocopy::FromBytes;

/// How units are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// Each by itself.
    Words,
    /// In groups, besides samples of the rest.
    Grouped,
}

/// How far one state is enumerated.
#[derive(Clone, Copy, Debug)]
pub struct Reach {
    /// How units are decided.
    pub grain: Grain,
    /// All combinations of up to this many units or groups.
    pub exhaustive: u32,
    /// Images of a state with more, besides the extremes; with [`Grain::Grouped`], images of every state by words.
    pub samples: u32,
}

/// What was visited of one state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Whether all combinations were.
    pub exhausted: bool,
    /// Units, or groups.
    pub units: usize,
}

/// Calls `f` with images of one state, the crash of the process among them, until it returns false.
pub fn images(state: &CrashState, reach: Reach, power: bool, f: &mut dyn FnMut(Image) -> bool) -> Seen {
    if !f(state.image_process()) || !power {
        return Seen { exhausted: true, units: 0 };
    }
    let mut going = true;
    let (exhausted, units) = match reach.grain {
        Grain::Words => (state.images() <= 1 << reach.exhaustive, state.units()),
        Grain::Grouped => {
            let groups = groups(state);
            let exhausted = combine(state, &groups, reach.exhaustive, &mut |image| {
                going = going && f(image);
                going
            });
            (exhausted, groups.choices.len())
        }
    };
    let limits = Limits {
        exhaustive_units: if reach.grain == Grain::Words { reach.exhaustive } else { 0 },
        samples: reach.samples,
        process: false,
        ..Limits::default()
    };
    if going {
        Explorer::new(limits).visit(state, &mut |image| going = going && f(image));
    }
    Seen { exhausted, units }
}

/// Values of some units.
type Choice = Vec<(usize, u16)>;

/// Groups with their choices, and the units that do not matter.
struct Groups {
    choices: Vec<Vec<Choice>>,
    indifferent: Vec<usize>,
}

/// Visits all combinations of choices if they are few, and says whether they were; else each choice against the extremes.
fn combine(state: &CrashState, groups: &Groups, limit: u32, f: &mut dyn FnMut(Image) -> bool) -> bool {
    let product = groups.choices.iter().fold(1u64, |p, g| p.saturating_mul(g.len() as u64));
    let mut units = vec![0u16; state.units()];
    let mut visit = |picks: &[usize]| {
        for (group, &pick) in groups.choices.iter().zip(picks) {
            group[pick].iter().for_each(|&(unit, value)| units[unit] = value);
        }
        let mut hash = DefaultHasher::new();
        picks.hash(&mut hash);
        let hash = hash.finish();
        for (i, &unit) in groups.indifferent.iter().enumerate() {
            units[unit] = if hash >> (i % 64) & 1 == 0 { 0 } else { state.latest(unit) as u16 };
        }
        f(state.image_of(&units))
    };
    let counts: Vec<usize> = groups.choices.iter().map(Vec::len).collect();
    if product <= 1 << limit {
        let mut picks = vec![0; counts.len()];
        loop {
            if !visit(&picks) {
                return true;
            }
            let Some(place) = (0..picks.len()).find(|&i| picks[i] + 1 < counts[i]) else { return true };
            picks[place] += 1;
            picks[..place].fill(0);
        }
    }
    for all in [vec![0; counts.len()], counts.iter().map(|n| n - 1).collect()] {
        if !visit(&all) {
            return false;
        }
        for (group, &count) in counts.iter().enumerate() {
            for choice in 0..count {
                let mut picks = all.clone();
                picks[group] = choice;
                if !visit(&picks) {
                    return false;
                }
            }
        }
    }
    false
}

/// Units that are decided together.
fn groups(state: &CrashState) -> Groups {
    let latest = state.image_process();
    let mut maps: HashMap<&str, Map> = HashMap::new();
    let mut out = Groups { choices: Vec::new(), indifferent: Vec::new() };
    let mut lines: BTreeMap<(&str, u64), Vec<usize>> = BTreeMap::new();
    // By file and area of a log: by entry.
    let mut logs: BTreeMap<(&str, usize), BTreeMap<u64, Vec<usize>>> = BTreeMap::new();
    for unit in 0..state.units() {
        let part = match state.place(unit) {
            Some(Place::Word { file, offset }) => {
                let map =
                    maps.entry(file).or_insert_with(|| Map::new(&latest.file(file).unwrap_or_default()));
                map.part(offset).map(|part| (file, part))
            }
            _ => None,
        };
        match part {
            None => {
                out.choices
                    .push((0..state.alternatives(unit)).map(|value| vec![(unit, value as u16)]).collect());
            }
            Some((_, Part::Indifferent)) => out.indifferent.push(unit),
            Some((file, Part::Line(line))) => lines.entry((file, line)).or_default().push(unit),
            Some((file, Part::Entry { area, start })) => {
                logs.entry((file, area)).or_default().entry(start).or_default().push(unit);
            }
        }
    }
    let fate = |units: &[usize], survives: bool| -> Choice {
        units.iter().map(|&unit| (unit, if survives { state.latest(unit) as u16 } else { 0 })).collect()
    };
    out.choices.extend(lines.values().map(|units| vec![fate(units, false), fate(units, true)]));
    for entries in logs.values() {
        let entries: Vec<&Vec<usize>> = entries.values().collect();
        let count = entries.len();
        let choice = |survives: &dyn Fn(usize) -> bool| -> Choice {
            entries.iter().enumerate().flat_map(|(i, units)| fate(units, survives(i))).collect()
        };
        let prefixes = (0..count).map(|n| choice(&|i| i < n));
        let holes = (0..count.saturating_sub(1)).map(|hole| choice(&|i| i != hole));
        out.choices.push(prefixes.chain(holes).chain([choice(&|_| true)]).collect());
    }
    out
}

/// What words of one puddle belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    Indifferent,
    Line(u64),
    Entry { area: usize, start: u64 },
}

/// How one puddle is laid out.
enum Map {
    Heap {
        descriptors: u64,
        bitmaps: u64,
        roots: u64,
    },
    /// Area, start and end of each entry, by offset.
    Log {
        entries: Vec<(usize, u64, u64)>,
        body: u64,
    },
    LogSpace,
    Plain,
}

impl Map {
    fn new(bytes: &[u8]) -> Self {
        let Ok((header, _)) = PuddleHeader::read_from_prefix(bytes) else { return Self::Plain };
        let body = header_space(header.size);
        match Role::from_u32(header.role) {
            Some(Role::Heap) => match HeapGeometry::new(header.size, header.index == 0) {
                Some(g) => Self::Heap {
                    descriptors: g.descriptors,
                    bitmaps: g.bitmaps,
                    roots: g.bitmaps + g.superblocks * BITMAP_SIZE,
                },
                None => Self::Plain,
            },
            Some(Role::Log) => Self::Log { entries: log_entries(bytes, body), body },
            Some(Role::LogSpace) => Self::LogSpace,
            _ => Self::Plain,
        }
    }

    fn part(&self, offset: u64) -> Option<Part> {
        match self {
            Self::Heap { descriptors, bitmaps, roots } => {
                if (*bitmaps..*roots).contains(&offset) {
                    Some(Part::Indifferent)
                } else if (*descriptors..*bitmaps).contains(&offset) {
                    Some(Part::Line(offset / 64))
                } else {
                    None
                }
            }
            Self::Log { entries, body } => {
                let range = body + RANGE_OFFSET;
                if offset == range + 8 || offset == range + 16 {
                    return Some(Part::Indifferent);
                }
                let at = entries.iter().find(|(_, start, end)| (*start..*end).contains(&offset));
                at.map(|(area, start, _)| Part::Entry { area: *area, start: *start })
            }
            Self::LogSpace => Some(Part::Line(offset / 64)),
            Self::Plain => None,
        }
    }
}

/// The entries that stand one after the other from the places where a transaction's first entry goes.
fn log_entries(bytes: &[u8], body: u64) -> Vec<(usize, u64, u64)> {
    let mut out = Vec::new();
    let Ok((header, _)) = LogHeader::read_from_prefix(bytes.get(body as usize..).unwrap_or_default()) else {
        return out;
    };
    let first = body + ENTRIES_OFFSET;
    let end = first + header.capacity;
    let starts = if header.segment == 0 { vec![first, first + header.capacity / 2] } else { vec![first] };
    for (area, mut at) in starts.into_iter().enumerate() {
        let mut before: Option<EntryHeader> = None;
        while at < end {
            let Ok((entry, _)) = EntryHeader::read_from_prefix(&bytes[at as usize..]) else { break };
            let Some(kind) = Kind::from_u8(entry.kind) else { break };
            let follows =
                before.is_none_or(|b| b.seq & !3 == entry.seq & !3 && b.index.wrapping_add(1) == entry.index);
            if !follows {
                break;
            }
            let len = entry_size(if kind.has_data() { u64::from(entry.size) } else { 0 });
            out.push((area, at, at + len));
            at += len;
            before = Some(entry);
        }
    }
    out
}
