//! The Puddles paper's primitives of relocation: export, import, and rewriting pointers; beside
//! each what the machine takes to copy the same bytes.
//!
//! Unit: milliseconds. Each run makes an archive and a copy of its own; systems take turns. Both
//! replace what the run before made of the same pool, so that neither pays for giving back the
//! space of something larger.
//!
//! The rows of system `cenote`, and what stands beside each:
//!
//! * `export_16B`, `export_16M`: a pool with one value of 16 bytes, or 4,096 of 4 KiB, to a file,
//!   checksummed and synced. Beside it: `cp`: its puddles' files copied and synced.
//! * `import_16B`, `import_16M`: that file to a pool beside the original. Beside it: `register`:
//!   the part of it that comes after the last byte of the archive, files synced and pools
//!   registered; `cp`: the file copied and synced.
//! * `rewrite_20` ... `rewrite_2000000`: opening such a copy of a list of so many nodes of 16 bytes
//!   and rewriting all of it. Beside it: `open`: opening the original; `memcpy`: copying the bytes
//!   of its puddles in memory.
//!
//! `--quick` leaves the list of two million out and makes 16 MiB one.

use crate::case::{Failure, PROCESS};
use crate::figures::figure::{Body, Figure, Rows};
use crate::filter::Filter;
use crate::place::{Settings, medium};
use crate::runner::Row;
use cenote::{
    Access, Durability, Exclusive, ExportOptions, FormatOptions, ImportOptions, OpenOptions,
    Persist, PoolOptions, Ptr, Reader, Store,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The figure.
pub const FIGURE: Figure =
    Figure { name: "relocation", title: "export, import, rewriting", body: Body::Report(report) };

#[derive(Persist)]
#[persist(name = "cenote-bench::ArchivedNode")]
#[repr(C)]
struct Node {
    value: u64,
    next: Option<Ptr<Node>>,
}

#[derive(Persist)]
#[persist(name = "cenote-bench::ArchivedPage")]
#[repr(C)]
struct Page {
    words: [u64; 512],
}

struct Ground {
    store: Store,
    directory: tempfile::TempDir,
    times: BTreeMap<(String, &'static str), Vec<f64>>,
}

impl Ground {
    fn new(settings: &Settings) -> Result<Self, Failure> {
        let directory = settings.temporary()?;
        let medium = medium(&directory.path().join("store"), Durability::Process)?;
        cenote_store::format(medium.clone(), &FormatOptions::default())?;
        let options = OpenOptions { spare_bytes_max: 0, ..OpenOptions::default() };
        Ok(Self { store: Store::open_on(medium, &options)?, directory, times: BTreeMap::new() })
    }

    fn note(&mut self, row: &str, system: &'static str, begin: Instant) {
        let ms = begin.elapsed().as_secs_f64() * 1e3;
        self.times.entry((row.into(), system)).or_default().push(ms);
    }

    fn archive(&self, pool: &str) -> PathBuf {
        self.directory.path().join(format!("archive of {pool}"))
    }

    /// The files of a pool's puddles.
    fn files(&self, pool: &str) -> Result<Vec<PathBuf>, Failure> {
        let pools = self.store.pools();
        let info = pools.iter().find(|info| info.record.name == pool).ok_or("the pool is gone")?;
        let own =
            self.store.puddle_records().into_iter().filter(|puddle| puddle.pool == info.record.id);
        let name = |hex: [u8; 32]| String::from_utf8_lossy(&hex).into_owned();
        let dir = self.directory.path().join("store/puddles");
        Ok(own.map(|puddle| dir.join(name(puddle.uuid.to_hex()))).collect())
    }

    fn export(&mut self, pool: &str, row: &str) -> Result<(), Failure> {
        let path = self.archive(pool);
        let begin = Instant::now();
        self.store.export_to(&[pool], &path, Exclusive::Replace, ExportOptions::default())?;
        self.note(row, "cenote", begin);
        let files = self.files(pool)?;
        let begin = Instant::now();
        for (number, file) in files.iter().enumerate() {
            copy(file, &self.directory.path().join(format!("copy {number} of {pool}")))?;
        }
        self.note(row, "cp", begin);
        Ok(())
    }

    /// Imports the archive of a pool, as pool "copy".
    fn import(&mut self, pool: &str, row: Option<&str>) -> Result<(), Failure> {
        let path = self.archive(pool);
        let begin = Instant::now();
        let mut last = begin;
        let mut told = |_| {
            last = Instant::now();
            ControlFlow::Continue(())
        };
        let options = ImportOptions { names: vec!["copy".into()], progress: Some(&mut told) };
        self.store.import(File::open(&path)?, options)?;
        let Some(row) = row else { return Ok(()) };
        self.note(row, "cenote", begin);
        self.note(row, "register", last);
        let begin = Instant::now();
        copy(&path, &self.directory.path().join(format!("copy of {pool}")))?;
        self.note(row, "cp", begin);
        Ok(())
    }

    fn rewrite(&mut self, pool: &str, count: u64) -> Result<(), Failure> {
        let row = format!("rewrite_{count}");
        let begin = Instant::now();
        let copy = self.store.pool_with("copy", Access::ReadWrite)?;
        copy.finish_relocation(&mut |_| ControlFlow::Continue(()))?;
        self.note(&row, "cenote", begin);
        let view = copy.read()?;
        let (mut at, mut left) = (view.root::<Node>()?, count);
        while let Some(node) = at {
            left = left
                .checked_sub(1)
                .filter(|left| *left == view.get(node).map_or(0, |node| node.value))
                .ok_or("a copy of a list is not as the list")?;
            at = view.get(node)?.next;
        }
        if left > 0 {
            return Err(format!("{left} of {count} nodes are not reached").into());
        }
        drop(view);
        drop(copy);
        let begin = Instant::now();
        drop(self.store.pool_with(pool, Access::ReadWrite)?);
        self.note(&row, "open", begin);
        let mut bytes = Vec::new();
        for file in self.files(pool)? {
            bytes.extend(std::fs::read(file)?);
        }
        let mut target = vec![1u8; bytes.len()];
        let begin = Instant::now();
        target.copy_from_slice(black_box(&bytes));
        black_box(&target);
        self.note(&row, "memcpy", begin);
        Ok(())
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    std::fs::copy(from, to)?;
    File::open(to)?.sync_all()?;
    Ok(())
}

fn pages(store: &Store, name: &str, count: u64) -> Result<(), Failure> {
    let pool = store.create_pool(name, &PoolOptions::default())?;
    for from in (0..count).step_by(256) {
        pool.write(|tx| -> cenote::Result<()> {
            for word in from..count.min(from + 256) {
                tx.alloc(Page { words: [word + 1; 512] })?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn list(store: &Store, name: &str, count: u64) -> Result<(), Failure> {
    let pool = store.create_pool(name, &PoolOptions::default())?;
    let mut next = None;
    for from in (0..count).step_by(1000) {
        next = pool.write(|tx| -> cenote::Result<_> {
            let mut next = next;
            for value in from..count.min(from + 1000) {
                next = Some(tx.alloc(Node { value, next })?);
            }
            if let Some(first) = next {
                tx.set_root(first)?;
            }
            Ok(next)
        })?;
    }
    Ok(())
}

fn report(settings: &Settings, filter: &Filter, runs: usize, out: &mut dyn Write) -> Rows {
    let mut ground = Ground::new(settings)?;
    let pool = ground.store.create_pool("small", &PoolOptions::default())?;
    pool.write(|tx| tx.alloc(Node { value: 1, next: None }).map(drop))?;
    drop(pool);
    pages(&ground.store, "large", if settings.quick { 256 } else { 4096 })?;
    let lists: &[u64] = if settings.quick { &[20, 2_000] } else { &[20, 2_000, 2_000_000] };
    for count in lists {
        list(&ground.store, &format!("list{count}"), *count)?;
    }
    let runs = if settings.quick { 2 } else { runs };
    for run in 0..runs {
        for (pool, export, import) in
            [("small", "export_16B", "import_16B"), ("large", "export_16M", "import_16M")]
        {
            ground.export(pool, export)?;
            ground.import(pool, Some(import))?;
            ground.store.remove_pool("copy")?;
        }
        for count in lists {
            let name = format!("list{count}");
            let options = ExportOptions::default();
            ground.store.export_to(&[&name], ground.archive(&name), Exclusive::Replace, options)?;
            ground.import(&name, None)?;
            ground.rewrite(&name, *count)?;
            ground.store.remove_pool("copy")?;
        }
        writeln!(out, "  run {} of {runs}", run + 1)?;
    }
    let mut rows = Vec::new();
    for ((row, system), values) in core::mem::take(&mut ground.times) {
        if filter.admits(&row, system, PROCESS) {
            rows.push(Row::of_values(FIGURE.name, row, (system, PROCESS, 1), "ms", values));
        }
    }
    Ok(rows)
}
