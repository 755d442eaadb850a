//! `cenote info --heap`: how full a pool's heap is, drawn for people.
//!
//! Three pictures of the same superblocks: by what they are used for, by type and size, and place
//! by place. Everything comes from one walk over descriptors and marks, so it works on pools that
//! are damaged, or need recovery, as well.

use super::stats::{chosen, type_name};
use super::wear;
use crate::failure::{Failure, Verdict};
use crate::output::Out;
use crate::units::{bytes, count, plural};
use cenote::{Access, HeapKind, Pool, Store, SuperblockInfo, TypeId, Use};
use cenote_heap::logged::SubHeapStats;
use cenote_heap::unused_end;
use cenote_layout::heap::SUPERBLOCK_SIZE;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Characters of a bar.
const BAR: usize = 24;
/// Places in a line of the map, and most lines of it.
const WIDTH: usize = 64;
const LINES: usize = 16;
/// How full a place is, from empty to full.
const SHADES: [char; 10] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9'];

/// Blocks of one type and size.
#[derive(Default)]
struct BlockGroup {
    superblocks: u64,
    blocks: u64,
    cached: u64,
    capacity: u64,
}

/// What a walk has seen, in bytes.
#[derive(Default)]
struct Seen {
    superblocks: u64,
    metadata: u64,
    /// In allocated blocks.
    allocated: u64,
    /// In free blocks of superblocks that have allocated ones, or that caches have.
    free_blocks: u64,
    /// In the ends of superblocks.
    ends: u64,
    free: u64,
    holes: u64,
    damaged: u64,
    largest_free: u64,
    /// By type, and size of the blocks (0: large).
    kinds: BTreeMap<(TypeId, u64), BlockGroup>,
    /// Place by place: what a superblock is, and how much of it is allocated.
    places: Vec<(char, f64)>,
    puddles: u64,
    run: u64,
}

impl Seen {
    fn note(&mut self, at: &SuperblockInfo) {
        let size = SUPERBLOCK_SIZE;
        self.superblocks += 1;
        if at.number == 0 {
            (self.puddles, self.run) = (self.puddles + 1, 0);
        }
        self.run = if matches!(at.used, Use::Free | Use::Hole) { self.run + size } else { 0 };
        self.largest_free = self.largest_free.max(self.run);
        let place = match at.used {
            Use::Metadata => {
                self.metadata += size;
                ('m', 1.0)
            }
            Use::Free => {
                self.free += size;
                ('.', 0.0)
            }
            Use::Hole => {
                self.holes += size;
                (' ', 0.0)
            }
            Use::Small { type_id, block_size, blocks, cached, capacity } => {
                self.allocated += blocks * block_size;
                self.free_blocks += (capacity - blocks.min(capacity)) * block_size;
                self.ends += unused_end(block_size, capacity);
                let kind = self.kinds.entry((type_id, block_size)).or_default();
                kind.superblocks += 1;
                kind.blocks += blocks;
                kind.cached += cached;
                kind.capacity += capacity;
                ('s', blocks as f64 / capacity.max(1) as f64)
            }
            Use::LargeHead { type_id, span } => {
                self.allocated += size;
                let kind = self.kinds.entry((type_id, 0)).or_default();
                kind.superblocks += span;
                kind.blocks += 1;
                kind.capacity += 1;
                ('L', 1.0)
            }
            Use::LargeTail => {
                self.allocated += size;
                ('l', 1.0)
            }
            _ => {
                self.damaged += size;
                ('!', 0.0)
            }
        };
        self.places.push(place);
    }

    /// Bytes in blocks that are larger than the value in them, as far as types say.
    fn waste(&self, store: &Store) -> u64 {
        let waste = |((id, block_size), kind): (&(TypeId, u64), &BlockGroup)| {
            let record =
                store.type_record(*id).filter(|record| !record.repeats && *block_size != 0)?;
            Some(block_size.saturating_sub(record.size) * kind.blocks)
        };
        self.kinds.iter().filter_map(waste).sum()
    }
}

pub(crate) fn run(store: &Store, name: &str, out: &mut Out) -> Result<Verdict, Failure> {
    let names = chosen(store, &[name.to_owned()])?;
    let pool = store.pool_with(&names[0], Access::ReadOnly)?;
    let kind = store.pools().into_iter().find(|pool| pool.record.name == names[0]);
    match kind.map(|pool| pool.record.heap) {
        Some(HeapKind::Logged) => return sub_heaps(&pool, out),
        Some(HeapKind::Wear { .. }) => return wear::run(store, name, out),
        Some(HeapKind::Traced) | None => {}
    }
    let mut seen = Seen::default();
    pool.heap().superblocks(&mut |at| seen.note(at)).map_err(cenote::Error::from)?;
    let waste = seen.waste(store);
    let total = seen.superblocks * SUPERBLOCK_SIZE;

    let heading = format!("pool \"{name}\"");
    out.line(format_args!(
        "{}  {} in {}, {} of 64 KiB",
        out.bold(&heading),
        bytes(total),
        plural(seen.puddles, "puddle"),
        plural(seen.superblocks, "superblock")
    ))?;
    let parts = [
        ("allocated", seen.allocated, ""),
        ("free blocks", seen.free_blocks, "in used superblocks"),
        ("ends", seen.ends, "short ends, marks"),
        ("metadata", seen.metadata, ""),
        ("free", seen.free, "for any type"),
        ("holes", seen.holes, "no space on disk"),
        ("damaged", seen.damaged, "not used"),
    ];
    for (label, part, note) in parts {
        if part > 0 || label == "allocated" {
            let share = part as f64 / total.max(1) as f64;
            let line = format!("{:>9} {:>6.1} %  {}", bytes(part), share * 100.0, bar(share));
            let note = if note.is_empty() { String::new() } else { format!(" {}", out.dim(note)) };
            out.line(format_args!("{} {line}{note}", out.dim(&format!("{label:<12}"))))?;
        }
    }
    out.field(
        "largest run",
        format_args!("{} of free superblocks side by side", bytes(seen.largest_free)),
    )?;
    if waste > 0 {
        out.field(
            "in blocks",
            format_args!("{} are more than the values in them need", bytes(waste)),
        )?;
    }
    if !seen.kinds.is_empty() {
        out.line("")?;
        kinds(store, &seen, out)?;
    }
    out.line("")?;
    map(&seen, out)?;
    out.object(&as_json(store, name, &seen, waste))?;
    Ok(Verdict::found(seen.damaged > 0))
}

/// A bar of [`BAR`] characters; what is there at all shows.
fn bar(share: f64) -> String {
    let full = ((share * BAR as f64).round() as usize).clamp(usize::from(share > 0.0), BAR);
    format!("[{}{}]", "#".repeat(full), " ".repeat(BAR - full))
}

/// A name in 24 characters: its beginning, and its end, which tells parameters apart.
fn shortened(name: &str) -> String {
    let len = name.chars().count();
    if len <= 24 {
        return name.to_owned();
    }
    name.chars().take(14).chain("..".chars()).chain(name.chars().skip(len - 8)).collect()
}

/// Types with how full their superblocks are.
fn kinds(store: &Store, seen: &Seen, out: &mut Out) -> Result<(), Failure> {
    let heading = format!(
        "{:<24} {:>8} {:>6} {:>13}  {:<16} {:>5}",
        "TYPE", "BLOCK", "SUPERB", "BLOCKS", "FULL", ""
    );
    let heading = out.dim(heading.trim_end());
    out.line(heading)?;
    for ((id, block_size), kind) in &seen.kinds {
        let name = shortened(&type_name(store, *id));
        let size = if *block_size == 0 { "large".into() } else { bytes(*block_size) };
        let share = kind.blocks as f64 / kind.capacity.max(1) as f64;
        let full = ((share * 14.0).round() as usize).min(14);
        out.line(format_args!(
            "{name:<24} {size:>8} {:>6} {:>13}  [{}{}] {:>3.0} %",
            count(kind.superblocks),
            count(kind.blocks),
            "#".repeat(full),
            " ".repeat(14 - full),
            share * 100.0
        ))?;
    }
    Ok(())
}

/// The heap place by place: one character for a superblock, or for as many as it takes to stay on a
/// page.
fn map(seen: &Seen, out: &mut Out) -> Result<(), Failure> {
    let each = seen.places.len().div_ceil(WIDTH * LINES).max(1);
    let cells: Vec<char> = seen.places.chunks(each).map(cell).collect();
    for (number, line) in cells.chunks(WIDTH).enumerate() {
        let at = number * WIDTH * each;
        let line: String = line.iter().collect();
        out.line(format_args!("{} {}", out.dim(&format!("{at:>12}")), line.trim_end()))?;
    }
    let what = match each {
        1 => "one superblock".to_owned(),
        _ => format!("{each} superblocks"),
    };
    let text = format!(
        "a character is {what}: 0 to 9 tenths of its blocks are allocated, # all; L and l a large \
         block; . free; blank a hole; m metadata; ! damaged"
    );
    for line in crate::output::wrapped(&text, 66) {
        out.line(out.dim(&format!("{:13}{line}", "")))?;
    }
    Ok(())
}

/// What some superblocks are together.
fn cell(places: &[(char, f64)]) -> char {
    if places.iter().any(|(what, _)| *what == '!') {
        return '!';
    }
    let first = places[0].0;
    let alike =
        places.iter().all(|(what, _)| *what == first) || places[1..].iter().all(|(w, _)| *w == 'l');
    match first {
        '.' | ' ' | 'm' | 'L' | 'l' if alike => first,
        _ => {
            let full = places.iter().map(|(_, full)| full).sum::<f64>() / places.len() as f64;
            if full >= 1.0 { '#' } else { SHADES[((full * 10.0) as usize).min(9)] }
        }
    }
}

fn as_json(store: &Store, name: &str, seen: &Seen, waste: u64) -> Value {
    let kinds: Vec<Value> = seen
        .kinds
        .iter()
        .map(|((id, block_size), kind)| {
            json!({
                "type": type_name(store, *id), "type_id": id.to_string(), "block_bytes": block_size,
                "superblocks": kind.superblocks, "blocks": kind.blocks,
                "cached_blocks": kind.cached,
                "capacity": kind.capacity,
            })
        })
        .collect();
    json!({
        "pool": name, "bytes": seen.superblocks * SUPERBLOCK_SIZE, "puddles": seen.puddles,
        "superblocks": seen.superblocks, "allocated_bytes": seen.allocated,
        "free_block_bytes": seen.free_blocks, "end_bytes": seen.ends,
        "metadata_bytes": seen.metadata,
        "free_bytes": seen.free, "hole_bytes": seen.holes, "damaged_bytes": seen.damaged,
        "largest_free_bytes": seen.largest_free, "waste_bytes": waste, "kinds": kinds,
        "map": seen.places.iter().map(|place| cell(&[*place])).collect::<String>(),
    })
}

/// Counts of each sub-heap of a logged heap.
fn sub_heaps(pool: &Pool, out: &mut Out) -> Result<Verdict, Failure> {
    let found = pool.heap().sub_heaps().map_err(cenote::Error::from)?;
    let heading = format!("pool \"{}\"", pool.name());
    let count = plural(found.len() as u64, "sub-heap");
    out.line(format_args!("{}  logged heap, {count}", out.bold(&heading)))?;
    for (number, stats) in &found {
        out.line(format_args!(
            "  sub-heap {number}: {} of data, {} free in {}; {} and {} of the table",
            bytes(stats.data_bytes),
            bytes(stats.free_bytes),
            plural(stats.free_blocks, "block"),
            plural(u64::from(stats.parts), "part"),
            plural(u64::from(stats.levels), "level"),
        ))?;
    }
    let row = |(number, stats): &(u32, SubHeapStats)| {
        json!({
            "number": number, "data_bytes": stats.data_bytes, "free_bytes": stats.free_bytes,
            "free_blocks": stats.free_blocks, "parts": stats.parts, "levels": stats.levels,
        })
    };
    let rows: Vec<_> = found.iter().map(row).collect();
    out.object(&json!({ "pool": pool.name(), "heap": "logged", "sub_heaps": rows }))?;
    Ok(Verdict::Clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_together_show_what_matters() {
        assert_eq!(cell(&[('.', 0.0), ('.', 0.0)]), '.');
        assert_eq!(cell(&[('L', 1.0), ('l', 1.0)]), 'L');
        assert_eq!(cell(&[('s', 1.0), ('s', 1.0)]), '#');
        assert_eq!(cell(&[('s', 1.0), ('.', 0.0)]), '5');
        assert_eq!(cell(&[('s', 0.5), ('!', 0.0)]), '!');
        assert_eq!(cell(&[('s', 0.999)]), '9');
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(shortened("tour::Progress"), "tour::Progress");
        let name = shortened("cenote/TreeMap<InlineStr<39>, cenote/List<u64>>");
        assert_eq!((name.as_str(), name.len()), ("cenote/TreeMap..st<u64>>", 24));
    }

    #[test]
    fn a_bar_shows_that_there_is_something() {
        assert_eq!(bar(0.0).matches('#').count(), 0);
        assert_eq!(bar(0.000_1).matches('#').count(), 1);
        assert_eq!(bar(1.0).matches('#').count(), BAR);
    }
}
