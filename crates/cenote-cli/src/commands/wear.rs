//! `cenote info --wear`: what a wear heap holds, what waits in it and what is out of use; and how
//! often each place was written, where the medium counts that.
//!
//! A real medium does not: what a device writes by place, its controller knows. The simulated one
//! counts the lines that are written back (`SimMedium::count_line_writes`).

use super::stats::chosen;
use crate::failure::{Failure, Verdict};
use crate::output::{Out, wrapped};
use crate::units::{bytes, count, plural};
use cenote::{Access, Error, Pool, PoolId, Store, WearStats};
use cenote_heap::{RecoverError, WrongKind};
use cenote_layout::id::Uuid;
use cenote_layout::wear::WEAR_LINE;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Places in a line of the map, and most lines of it for a puddle.
const WIDTH: usize = 64;
const LINES: u64 = 16;

/// What is said where nothing is counted.
const NOT_COUNTED: &str = "this medium does not count writes by place: real media do not; only \
                           the simulated medium of the tests does";

pub(crate) fn run(store: &Store, name: &str, out: &mut Out) -> Result<Verdict, Failure> {
    let names = chosen(store, &[name.to_owned()])?;
    let pool = store.pool_with(&names[0], Access::ReadOnly)?;
    let Some((stats, wait_ms)) = pool.heap().wear() else {
        let kind = store.pools().into_iter().find(|pool| pool.record.name == names[0]);
        let refused = WrongKind {
            pool: names[0].clone(),
            heap: kind.map_or("traced", |pool| pool.record.heap.name()),
            what: "show waiting and damaged space",
            instead: "`cenote info --heap` shows how full it is",
        };
        return Err(Error::HeapRecover(RecoverError::Kind(refused)).into());
    };
    counts(name, &stats, wait_ms, out)?;
    let damage = pool.header_damage();
    for damage in &damage {
        out.wrong("damaged", damage)?;
    }
    let written = writes(store, pool.id());
    match &written {
        Some(written) => {
            let most = written.iter().flat_map(|puddle| puddle.lines.values()).max();
            let most = plural(most.copied().unwrap_or(0), "time");
            out.field("writes", format_args!("the line that was written most: {most}"))?;
            for line in drawn(written) {
                out.line(line)?;
            }
        }
        None => {
            for (number, line) in wrapped(NOT_COUNTED, 66).iter().enumerate() {
                out.field(if number == 0 { "writes" } else { "" }, line)?;
            }
        }
    }
    out.object(&as_json(&pool, (&stats, wait_ms), written.as_deref()))?;
    Ok(Verdict::found(!damage.is_empty()))
}

fn counts(name: &str, stats: &WearStats, wait_ms: u32, out: &mut Out) -> Result<(), Failure> {
    let heading = format!("pool \"{name}\"");
    let (puddles, segments) = (plural(stats.puddles, "puddle"), plural(stats.segments, "segment"));
    out.line(format_args!(
        "{}  wear heap, {segments} in {puddles}; freed blocks wait for {wait_ms} ms",
        out.bold(&heading),
    ))?;
    let allocated = format!("in {}, headers among them", plural(stats.blocks, "block"));
    let waiting = format!("in {}", plural(stats.waiting_blocks, "block"));
    let parts = [
        ("allocated", stats.block_bytes, allocated.as_str()),
        ("free", stats.free_bytes, ""),
        ("waiting", stats.waiting_bytes, waiting.as_str()),
        ("unused", stats.unused_bytes, "no block was there yet"),
        ("out of use", stats.damaged_bytes, "damaged headers"),
    ];
    for (label, part, note) in parts {
        if part > 0 || label == "allocated" {
            out.field(label, format_args!("{:>9}  {}", bytes(part), out.dim(note)))?;
        }
    }
    Ok(())
}

/// How often lines of a puddle were written.
struct PuddleWrites {
    index: u32,
    /// Lines that it has.
    len: u64,
    /// Numbers of lines that were written, and how often.
    lines: BTreeMap<u64, u64>,
}

/// The same for all puddles of a pool; `None`: nothing is counted.
fn writes(store: &Store, pool: PoolId) -> Option<Vec<PuddleWrites>> {
    let mut by_file: BTreeMap<String, BTreeMap<u64, u64>> = BTreeMap::new();
    for (file, line, times) in store.line_writes()? {
        by_file.entry(file).or_default().insert(line, times);
    }
    let file = |uuid: Uuid| format!("puddles/{}", String::from_utf8_lossy(&uuid.to_hex()));
    let records = store.puddle_records().into_iter().filter(|record| record.pool == pool);
    let of = |record: cenote_layout::catalog::PuddleRecord| PuddleWrites {
        index: record.index,
        len: record.size / WEAR_LINE,
        lines: by_file.remove(&file(record.uuid)).unwrap_or_default(),
    };
    let mut all: Vec<PuddleWrites> = records.map(of).collect();
    all.sort_unstable_by_key(|puddle| puddle.index);
    Some(all)
}

/// A map of each puddle: a character for a line, or for as many as it takes to stay on a page.
fn drawn(written: &[PuddleWrites]) -> Vec<String> {
    let mut text = Vec::new();
    for puddle in written {
        let each = puddle.len.div_ceil(WIDTH as u64 * LINES).max(1);
        text.push(format!("puddle {}: a character is {}", puddle.index, plural(each, "line")));
        let cells: Vec<char> = (0..puddle.len.div_ceil(each))
            .map(|cell| {
                let lines = puddle.lines.range(cell * each..(cell + 1) * each);
                shade(lines.map(|(_, times)| *times).max().unwrap_or(0))
            })
            .collect();
        for (number, row) in cells.chunks(WIDTH).enumerate() {
            let row: String = row.iter().collect();
            let at = number as u64 * WIDTH as u64 * each;
            text.push(format!("{:>12} {}", count(at), row));
        }
    }
    text.push("1 to 9: its line that was written most, so often; # more; . never".to_owned());
    text
}

fn shade(times: u64) -> char {
    match times {
        0 => '.',
        1..=9 => char::from(b'0' + times as u8),
        _ => '#',
    }
}

fn as_json(pool: &Pool, stats: (&WearStats, u32), written: Option<&[PuddleWrites]>) -> Value {
    let (stats, wait_ms) = stats;
    let damage: Vec<Value> = pool
        .header_damage()
        .iter()
        .map(|damage| {
            json!({
                "puddle": damage.puddle, "addr": damage.addr, "bytes": damage.bytes,
                "what": damage.what,
            })
        })
        .collect();
    let of = |puddle: &PuddleWrites| json!({ "puddle": puddle.index, "lines": puddle.lines });
    let writes = written.map(|all| all.iter().map(of).collect::<Vec<Value>>());
    json!({
        "pool": pool.name(), "heap": "wear", "wait_ms": wait_ms, "puddles": stats.puddles,
        "segments": stats.segments, "blocks": stats.blocks, "block_bytes": stats.block_bytes,
        "free_bytes": stats.free_bytes, "waiting_blocks": stats.waiting_blocks,
        "waiting_bytes": stats.waiting_bytes, "unused_bytes": stats.unused_bytes,
        "damaged_bytes": stats.damaged_bytes, "damage": damage, "writes": writes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote::{FormatOptions, HeapKind, OpenOptions, PoolOptions};
    use cenote_medium::Durability;
    use cenote_medium::sim::{SimMedium, SimOptions};

    #[test]
    fn writes_are_drawn_where_the_medium_counts_them() {
        let sim = SimMedium::new(SimOptions::new(Durability::Power));
        let format = FormatOptions { window_len: 1 << 30, ..FormatOptions::default() };
        cenote_store::format(sim.clone(), &format).expect("formatted");
        let store = Store::open_on(sim.clone(), &OpenOptions::default()).expect("open");
        let options = PoolOptions {
            heap: HeapKind::Wear { wait_ms: 0 },
            puddle_size: 128 << 10,
            ..PoolOptions::default()
        };
        let pool = store.create_pool("p", &options).expect("created");
        assert!(writes(&store, pool.id()).is_none(), "nothing is counted yet");
        sim.count_line_writes();
        let first = pool.write(|tx| tx.alloc(7u64)).expect("allocated");
        pool.write(|tx| tx.free(first)).expect("freed");
        for _ in 0..20 {
            let block = pool.write(|tx| tx.alloc(7u64)).expect("allocated");
            assert_eq!(block.addr(), first.addr(), "nothing waits here");
            pool.write(|tx| tx.free(block)).expect("freed");
        }
        let written = writes(&store, pool.id()).expect("counted");
        assert_eq!((written.len(), written[0].len), (1, 2048));
        let root = store.puddle_records().into_iter().find(|p| p.pool == pool.id()).expect("it");
        let header = (first.addr() - root.addr) / WEAR_LINE - 1;
        assert_eq!(written[0].lines[&header], 42, "each allocation and each free");
        let text = drawn(&written);
        assert_eq!(text.len(), 1 + 16 + 1, "{text:?}");
        let row = text[1 + header as usize / 128].trim_start();
        let marks = row.split(' ').nth(1).expect("a map");
        assert_eq!(marks.chars().nth(header as usize % 128 / 2), Some('#'), "{text:?}");
        assert!(text[16].ends_with(&".".repeat(64)), "{text:?}");
    }

    #[test]
    fn a_character_is_a_number_of_writes() {
        let shades: String = [0, 1, 9, 10, 1000].map(shade).iter().collect();
        assert_eq!(shades, ".19##");
    }
}
