//! The Puddles paper's Figures 13 and 14: state variables of 200 sensor nodes, each with a store of
//! its own in a process of its own, brought into one structure.
//!
//! A child for each node makes a store, a pool, and in it a list of state variables; it exports the
//! pool and ends. Unit: milliseconds for all nodes together. Rows `nodes_N_variables_V`, systems:
//!
//! * `cenote`: each archive is imported into one store, and the lists become one by plain pointer
//!   assignment: the last variable of each is made to lead to the first of the next.
//! * `allocate again`: each node's store is opened, and its variables are read and allocated again
//!   in one pool; what a system must do whose pointers hold in one place only.
//!
//! Afterwards, outside the time, the whole is followed, and every variable must be there once.
//! Other systems join by a [`Way`]: their nodes are children too, with a store each.

use crate::case::{Failure, POWER, PROCESS};
use crate::figures::figure::{Body, Figure, Rows};
use crate::filter::Filter;
use crate::place::{Settings, medium};
use crate::runner::Row;
use cenote::{
    Access, Durability, Exclusive, ExportOptions, FormatOptions, ImportOptions, OpenOptions,
    Persist, Pool, PoolOptions, Ptr, Reader, Store, field,
};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::time::Instant;

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "sensors",
    title: "Puddles, Figures 13 and 14: sensor aggregation",
    body: Body::Report(report),
};

/// First argument of a child.
pub const CHILD: &str = "--sensor-node";

#[derive(Persist, Clone, Copy)]
#[persist(name = "cenote-bench::Variable")]
#[repr(C)]
struct Variable {
    node: u64,
    number: u64,
    next: Option<Ptr<Variable>>,
}

#[derive(Persist, Clone, Copy)]
#[persist(name = "cenote-bench::Variables")]
#[repr(C)]
struct Variables {
    first: Option<Ptr<Variable>>,
    last: Option<Ptr<Variable>>,
}

/// Milliseconds, and node and number of each variable that was found, in order.
pub type Aggregated = (f64, Vec<(u64, u64)>);

/// How another system does it.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Its name in the rows.
    pub system: &'static str,
    /// The level that its stores are durable at.
    pub level: &'static str,
    /// First argument of its children; number, variables and directory follow.
    pub child: &'static str,
    /// Brings what so many children have left in `directory/NUMBER` into one structure, in a new
    /// store in the second directory.
    pub aggregate: fn(&Path, u64, &Path) -> Result<Aggregated, Failure>,
}

static OTHERS: OnceLock<&'static [Way]> = OnceLock::new();

/// Other systems that take part from now on.
pub fn join_by(ways: &'static [Way]) {
    let _ = OTHERS.set(ways);
}

/// What is measured of this project: system and level.
const OURS: [(&str, &str); 3] =
    [("cenote", PROCESS), ("cenote", POWER), ("allocate again", PROCESS)];

const POOL: &str = "state";

fn options() -> PoolOptions {
    PoolOptions { puddle_size: 256 << 10, ..PoolOptions::default() }
}

/// Where stores of nodes have their windows, all of them, and where the one of all has its: the
/// latter is open beside one of the former.
const WINDOWS: [u64; 2] = [0x3100_0000_0000, 0x3300_0000_0000];

fn open(directory: &Path, level: Durability, window_base: u64) -> Result<Store, Failure> {
    let medium = medium(directory, level)?;
    let format = FormatOptions { window_base: Some(window_base), window_len: 1 << 38, uuid: None };
    cenote_store::format(medium.clone(), &format)?;
    Ok(Store::open_on(medium, &OpenOptions { spare_bytes_max: 0, ..OpenOptions::default() })?)
}

/// What a child does: arguments are [`CHILD`], its number, variables, its directory.
pub fn child(arguments: &[String]) -> ExitCode {
    match sense(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn sense(arguments: &[String]) -> Result<(), Failure> {
    let [_, node, variables, directory] = arguments else {
        return Err(format!("{CHILD} is only for this program itself").into());
    };
    let (node, variables): (u64, u64) = (node.parse()?, variables.parse()?);
    let directory = Path::new(directory);
    let store = open(&directory.join("store"), Durability::Process, WINDOWS[0])?;
    let pool = store.create_pool(POOL, &options())?;
    pool.write(|tx| -> cenote::Result<()> {
        let list = tx.alloc(Variables { first: None, last: None })?;
        append(tx, list, (0..variables).map(|number| (node, number)))?;
        tx.set_root(list)
    })?;
    drop(pool);
    store.export_to(
        &[POOL],
        directory.join("archive"),
        Exclusive::New,
        ExportOptions::default(),
    )?;
    Ok(store.close()?)
}

/// Allocates variables behind those that are there.
fn append(
    tx: &mut cenote::Tx<'_>,
    list: Ptr<Variables>,
    variables: impl Iterator<Item = (u64, u64)>,
) -> cenote::Result<()> {
    let Variables { mut first, mut last } = *tx.get(list)?;
    for (node, number) in variables {
        let this = Some(tx.alloc(Variable { node, number, next: None })?);
        match last {
            Some(last) => tx.set(last, field!(Variable, next), this)?,
            None => first = this,
        }
        last = this;
    }
    *tx.get_mut(list)? = Variables { first, last };
    Ok(())
}

/// Node and number of each variable from `first` on.
fn follow(reader: &impl Reader, first: Option<Ptr<Variable>>) -> cenote::Result<Vec<(u64, u64)>> {
    let (mut out, mut at) = (Vec::new(), first);
    while let Some(variable) = at {
        let Variable { node, number, next } = *reader.get(variable)?;
        out.push((node, number));
        at = next;
    }
    Ok(out)
}

fn missing() -> Failure {
    "a node's pool has no list".into()
}

/// Imports all archives and joins their lists. Milliseconds.
fn join(directory: &Path, nodes: u64, store: &Store) -> Result<Aggregated, Failure> {
    let begin = Instant::now();
    let mut pools: Vec<Pool> = Vec::new();
    for node in 0..nodes {
        let name = format!("node {node}");
        let options = ImportOptions { names: vec![name.clone()], ..ImportOptions::default() };
        store.import(File::open(directory.join(format!("{node}/archive")))?, options)?;
        pools.push(store.pool_with(&name, Access::ReadWrite)?);
    }
    let all: Vec<&Pool> = pools.iter().collect();
    let mut first = None;
    store.write(&all, |tx| -> Result<(), cenote::Error> {
        let mut end: Option<Ptr<Variable>> = None;
        for pool in &all {
            let Some(list) = tx.root_in::<Variables>(pool, 0)? else { continue };
            let list = *tx.get(list)?;
            match end {
                Some(end) => tx.set(end, field!(Variable, next), list.first)?,
                None => first = list.first,
            }
            end = list.last;
        }
        Ok(())
    })?;
    let ms = begin.elapsed().as_secs_f64() * 1e3;
    let followed = store.write(&all, |tx| follow(tx, first))?;
    Ok((ms, followed))
}

/// Opens each node's store and allocates its variables again. Milliseconds.
fn allocate(directory: &Path, nodes: u64, store: &Store) -> Result<Aggregated, Failure> {
    let begin = Instant::now();
    let pool = store.create_pool("all", &options())?;
    let list = pool.write(|tx| -> cenote::Result<_> {
        let list = tx.alloc(Variables { first: None, last: None })?;
        tx.set_root(list)?;
        Ok(list)
    })?;
    for node in 0..nodes {
        let medium = medium(&directory.join(format!("{node}/store")), Durability::Process)?;
        let from = Store::open_on(medium, &OpenOptions::default())?;
        let source = from.pool(POOL)?;
        let view = source.read()?;
        let head = view.root::<Variables>()?.ok_or_else(missing)?;
        let variables = follow(&view, view.get(head)?.first)?;
        pool.write(|tx| append(tx, list, variables.into_iter()))?;
    }
    let ms = begin.elapsed().as_secs_f64() * 1e3;
    let view = pool.read()?;
    let followed = follow(&view, view.get(list)?.first)?;
    Ok((ms, followed))
}

fn report(settings: &Settings, filter: &Filter, runs: usize, out: &mut dyn Write) -> Rows {
    let nodes = if settings.quick { 4 } else { 200 };
    let sizes: &[u64] = if settings.quick { &[100] } else { &[100, 200, 400, 800, 1600] };
    let runs = if settings.quick { 1 } else { runs };
    let mut rows = Vec::new();
    for variables in sizes {
        let row = format!("nodes_{nodes}_variables_{variables}");
        let directory = settings.temporary()?;
        for node in 0..nodes {
            sensor(&directory.path().join(node.to_string()), CHILD, node, *variables)?;
        }
        let others = OTHERS.get().copied().unwrap_or_default();
        let mut sensed = Vec::new();
        for way in others {
            let place = settings.temporary()?;
            for node in 0..nodes {
                sensor(&place.path().join(node.to_string()), way.child, node, *variables)?;
            }
            sensed.push(place);
        }
        let wanted: Vec<(u64, u64)> =
            (0..nodes).flat_map(|node| (0..*variables).map(move |number| (node, number))).collect();
        let mut times = vec![Vec::new(); OURS.len() + others.len()];
        for run in 0..runs {
            for (way, times) in times.iter_mut().enumerate() {
                let target = settings.temporary()?;
                let store = |level| open(&target.path().join("store"), level, WINDOWS[1]);
                let (ms, found) = match way {
                    0 => join(directory.path(), nodes, &store(Durability::Process)?)?,
                    1 => join(directory.path(), nodes, &store(Durability::Power)?)?,
                    2 => allocate(directory.path(), nodes, &store(Durability::Process)?)?,
                    other => {
                        let other = other - OURS.len();
                        (others[other].aggregate)(sensed[other].path(), nodes, target.path())?
                    }
                };
                if found != wanted {
                    return Err(
                        format!("{row}: {} of {} variables", found.len(), wanted.len()).into()
                    );
                }
                times.push(ms);
                writeln!(out, "  {row}, run {run}, way {way}: {ms:.2} ms")?;
            }
        }
        let systems = OURS.into_iter().chain(others.iter().map(|way| (way.system, way.level)));
        for ((system, level), values) in systems.zip(times) {
            if filter.admits(&row, system, level) {
                rows.push(Row::of_values(
                    FIGURE.name,
                    row.clone(),
                    (system, level, 1),
                    "ms",
                    values,
                ));
            }
        }
    }
    Ok(rows)
}

/// Runs a sensor node: a process of this program, in a directory of its own.
fn sensor(place: &Path, child: &str, node: u64, variables: u64) -> Result<(), Failure> {
    std::fs::create_dir(place)?;
    let ended = Command::new(std::env::current_exe()?)
        .args([child, &node.to_string(), &variables.to_string()])
        .arg(place)
        .stdin(Stdio::null())
        .status()?;
    if ended.success() { Ok(()) } else { Err("a sensor node failed; its message is above".into()) }
}
