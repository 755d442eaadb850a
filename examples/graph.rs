//! Towns and roads: a graph of plain pointers, and the shortest way between two towns.
//!
//! ```sh
//! cargo run --example graph -- STORE road Paris Lyon 466
//! cargo run --example graph -- STORE road Lyon Marseille 315
//! cargo run --example graph -- STORE way Paris Marseille
//! ```
//!
//! What it shows: values that point to each other in circles; a search that follows pointers in the
//! pool and keeps its own working memory outside; references that live as long as the view.

use cenote::{Persist, Pool, Ptr, Reader, Store, Tx};
use cenote_collections::{HashMap, InlineStr, Vec as PersistentVec};
use cenote_examples::{Outcome, finish, usage};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap as Memory};

type Name = InlineStr<31>;

#[derive(Persist)]
struct Town {
    name: Name,
    roads: PersistentVec<Road>,
}

#[derive(Persist, Clone, Copy)]
struct Road {
    to: Ptr<Town>,
    length_km: u64,
}

/// The root: towns by name.
#[derive(Persist)]
struct Map {
    towns: HashMap<Name, Ptr<Town>>,
}

/// The map of the pool, which the first call makes.
fn map(tx: &mut Tx<'_>) -> cenote::Result<Ptr<Map>> {
    if let Some(map) = tx.root::<Map>()? {
        return Ok(map);
    }
    let towns = HashMap::new(tx)?;
    let map = tx.alloc(Map { towns })?;
    tx.set_root(map)?;
    Ok(map)
}

/// The town of that name, which the first call makes.
fn town(tx: &mut Tx<'_>, name: &str) -> Outcome<Ptr<Town>> {
    let name = Name::try_from(name)?;
    let map = map(tx)?;
    let towns = tx.get(map)?.towns;
    let town = towns.entry(tx, name)?.or_try_insert_with(|tx| {
        let roads = PersistentVec::new(tx)?;
        tx.alloc(Town { name, roads })
    })?;
    Ok(*town)
}

/// Builds a road in both directions.
fn build_road(pool: &Pool, from: &str, to: &str, length_km: u64) -> Outcome<()> {
    pool.write(|tx| {
        let (from, to) = (town(tx, from)?, town(tx, to)?);
        for (here, there) in [(from, to), (to, from)] {
            let roads = tx.get(here)?.roads;
            roads.push(tx, Road { to: there, length_km })?;
        }
        Ok(())
    })
}

/// The towns of the shortest way and its length, by Dijkstra's algorithm.
fn shortest_way(
    view: &impl Reader,
    from: Ptr<Town>,
    to: Ptr<Town>,
) -> cenote::Result<Option<(Vec<&str>, u64)>> {
    // By address: the length of the way, and the town before.
    let mut best: Memory<u64, (u64, Option<Ptr<Town>>)> = Memory::from([(from.addr(), (0, None))]);
    let mut next = BinaryHeap::from([Reverse((0, from.addr()))]);
    let mut known = Memory::from([(from.addr(), from)]);
    while let Some(Reverse((length_km, addr))) = next.pop() {
        let here = known[&addr];
        if best[&addr].0 < length_km {
            continue;
        }
        for road in view.get(here)?.roads.as_slice(view)? {
            let through = length_km + road.length_km;
            let there = road.to.addr();
            if best.get(&there).is_none_or(|found| through < found.0) {
                best.insert(there, (through, Some(here)));
                known.insert(there, road.to);
                next.push(Reverse((through, there)));
            }
        }
    }
    let Some((length_km, _)) = best.get(&to.addr()) else { return Ok(None) };
    let mut way = Vec::new();
    let mut at = Some(to);
    while let Some(town) = at {
        way.push(view.get(town)?.name.as_str());
        at = best[&town.addr()].1;
    }
    way.reverse();
    Ok(Some((way, *length_km)))
}

fn print_way(pool: &Pool, from: &str, to: &str) -> Outcome<()> {
    let view = pool.read()?;
    let map = view.root::<Map>()?.ok_or("there is no road yet")?;
    let towns = view.get(map)?.towns;
    let find = |name: &str| -> Outcome<Ptr<Town>> {
        Ok(*towns.get(&view, name)?.ok_or_else(|| format!("no town {name:?}"))?)
    };
    match shortest_way(&view, find(from)?, find(to)?)? {
        Some((way, length_km)) => println!("{}: {length_km} km", way.join(" - ")),
        None => println!("no way from {from} to {to}"),
    }
    Ok(())
}

fn run(arguments: &[String]) -> Outcome<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (store, command) = match &words[..] {
        [store, command @ ..] => (store, command),
        [] => return usage("graph -- STORE road FROM TO KM | way FROM TO"),
    };
    match command {
        ["road", from, to, length_km] => {
            let length_km = length_km.parse().map_err(|_| format!("{length_km:?} are no km"))?;
            build_road(&Store::open(store)?.pool("towns")?, from, to, length_km)
        }
        ["way", from, to] => print_way(&Store::open(store)?.pool("towns")?, from, to),
        _ => usage("graph -- STORE road FROM TO KM | way FROM TO"),
    }
}

fn main() -> std::process::ExitCode {
    finish(run)
}
