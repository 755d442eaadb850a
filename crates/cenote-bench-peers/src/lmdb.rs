//! LMDB, by the crate `heed`: in the figures of persistent memory objects it keeps what an object would, and commits where that psyncs.
//!
//! *Kernels*: the program computes in its own memory. A commit finds the pages of 4 KiB that differ from what was committed, by comparison with a copy, and puts them under their
//! numbers. *Files*: a value for each file; an update reads it, changes it and puts it.

use cenote_bench::case::{Case, Failure};
use cenote_bench::figures::{Figure, pmo_files, pmo_kernels};
use cenote_bench::place::{Settings, level_of};
use heed::byteorder::NativeEndian;
use heed::types::{Bytes, U32};
use heed::{Database, Env, EnvOpenOptions};
use std::rc::Rc;
use std::sync::Arc;
use tempfile::TempDir;

/// Its name in the rows.
pub const SYSTEM: &str = "lmdb";

const PAGE: usize = 4096;
/// Most bytes of a file of the database.
const MAP_SIZE: usize = 1 << 30;

type Table = Database<U32<NativeEndian>, Bytes>;

/// A database in a directory of its own.
#[derive(Clone)]
struct Base {
    env: Env,
    table: Table,
    _directory: Arc<TempDir>,
}

impl Base {
    fn new(settings: &Settings) -> Result<Self, Failure> {
        let directory = settings.temporary()?;
        // SAFETY: a new directory that nobody else knows, so nobody changes its files.
        let env = unsafe { EnvOpenOptions::new().map_size(MAP_SIZE).open(directory.path()) }?;
        let mut transaction = env.write_txn()?;
        let table = env.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Self { env, table, _directory: Arc::new(directory) })
    }
}

struct Computed {
    base: Base,
    memory: pmo_kernels::Plain,
    committed: Vec<u8>,
}

impl pmo_kernels::Memory for Computed {
    fn bytes(&mut self) -> Result<&mut [u8], Failure> {
        Ok(self.memory.bytes())
    }

    fn sync(&mut self) -> Result<(), Failure> {
        let mut transaction = self.base.env.write_txn()?;
        let pages = self.memory.bytes().chunks(PAGE).zip(self.committed.chunks_mut(PAGE));
        for (number, (now, before)) in (0u32..).zip(pages).filter(|(_, (now, before))| now != before) {
            self.base.table.put(&mut transaction, &number, now)?;
            before.copy_from_slice(now);
        }
        Ok(transaction.commit()?)
    }
}

struct Values {
    base: Base,
    first: u32,
    buffer: Vec<u8>,
}

impl pmo_files::Files for Values {
    fn update(&mut self, file: usize, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        let key = self.first + file as u32;
        let mut transaction = self.base.env.write_txn()?;
        let value = self.base.table.get(&transaction, &key)?.ok_or("a value is missing")?;
        self.buffer.clear();
        self.buffer.extend_from_slice(value);
        self.buffer[at..at + bytes.len()].copy_from_slice(bytes);
        self.base.table.put(&mut transaction, &key, &self.buffer)?;
        Ok(transaction.commit()?)
    }

    fn read(&mut self, file: usize) -> Result<u64, Failure> {
        let transaction = self.base.env.read_txn()?;
        let value =
            self.base.table.get(&transaction, &(self.first + file as u32))?.ok_or("a value is missing")?;
        Ok(pmo_files::taken(value, &mut self.buffer))
    }
}

/// Its cases of a figure.
///
/// # Errors
/// What keeps a database from being made.
pub fn cases(figure: &Figure, settings: &Settings) -> Result<Vec<Case>, Failure> {
    if figure.name == pmo_kernels::FIGURE.name {
        let level = level_of(settings)?;
        let own = settings.clone();
        let make: pmo_kernels::Make = Rc::new(move |len| {
            let memory = pmo_kernels::Plain::new(len)?;
            let committed = vec![0; len.next_multiple_of(PAGE)];
            Ok(Box::new(Computed { base: Base::new(&own)?, memory, committed }) as _)
        });
        return Ok(pmo_kernels::cases_of(settings, SYSTEM, level, false, &make));
    }
    if figure.name != pmo_files::FIGURE.name {
        return Ok(Vec::new());
    }
    let base = Base::new(settings)?;
    // Values of other personalities have other lengths: they are put anew for each run.
    let make: pmo_files::Make = Arc::new(move |thread, count, len| {
        let first = thread * count as u32;
        let mut transaction = base.env.write_txn()?;
        for file in 0..count as u32 {
            base.table.put(&mut transaction, &(first + file), &vec![1; len])?;
        }
        transaction.commit()?;
        Ok(Box::new(Values { base: base.clone(), first, buffer: Vec::new() }))
    });
    Ok(pmo_files::cases_of(settings, SYSTEM, level_of(settings)?, false, &make))
}
