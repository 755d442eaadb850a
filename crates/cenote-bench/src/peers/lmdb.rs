//! LMDB: in the figures of persistent memory objects it keeps what an object would, and commits
//! where that psyncs.
//!
//! *Kernels*: the program computes in its own memory. A commit finds the pages of 4 KiB that differ
//! from what was committed, by comparison with a copy, and puts them under their numbers. *Files*:
//! a value for each file; an update reads it, changes it and puts it.
//!
//! The crate `lmdb-master-sys` builds the C library and declares its functions; `Base` and
//! `Transaction` are all that the figures need of it.

use crate::case::{Case, Failure};
use crate::figures::{Figure, pmo_files, pmo_kernels};
use crate::place::{Settings, level_of};
use lmdb_master_sys as c;
use std::ffi::{CStr, CString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{null, null_mut};
use std::rc::Rc;
use std::sync::Arc;
use tempfile::TempDir;

/// Its name in the rows.
pub const SYSTEM: &str = "lmdb";

const PAGE: usize = 4096;
/// Most bytes of a file of the database.
const MAP_SIZE: usize = 1 << 30;

fn checked(code: c_int) -> Result<(), Failure> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the function gives a string that lasts, for any number.
    let text = unsafe { CStr::from_ptr(c::mdb_strerror(code)) };
    Err(format!("LMDB: {}", text.to_string_lossy()).into())
}

fn val(bytes: &[u8]) -> c::MDB_val {
    c::MDB_val { mv_size: bytes.len(), mv_data: bytes.as_ptr().cast_mut().cast() }
}

/// A database in a directory of its own: numbers, and bytes for each.
struct Base {
    env: *mut c::MDB_env,
    table: c::MDB_dbi,
    _directory: TempDir,
}

// SAFETY: LMDB allows several threads to use one environment and its tables; it takes its own
// locks. A transaction stays in its thread: `Transaction` is not `Send`.
unsafe impl Send for Base {}
// SAFETY: no method changes a field after `new`, and LMDB takes locks where threads share one
// environment.
unsafe impl Sync for Base {}

impl Base {
    fn new(settings: &Settings) -> Result<Arc<Self>, Failure> {
        let directory = settings.temporary()?;
        let path = CString::new(directory.path().as_os_str().as_bytes())?;
        let mut base = Self { env: null_mut(), table: 0, _directory: directory };
        // SAFETY: the function writes a pointer to a new environment, which `base` closes when it
        // is dropped.
        checked(unsafe { c::mdb_env_create(&raw mut base.env) })?;
        // SAFETY: a new environment, in a new directory that no other program knows; the path ends
        // in a zero and is copied.
        unsafe {
            checked(c::mdb_env_set_mapsize(base.env, MAP_SIZE))?;
            checked(c::mdb_env_open(base.env, path.as_ptr(), 0, 0o600))?;
        }
        let transaction = base.begin(0)?;
        let mut table = 0;
        // SAFETY: a transaction in progress that may write; no name stands for the one table.
        checked(unsafe {
            c::mdb_dbi_open(transaction.transaction, null(), c::MDB_CREATE, &raw mut table)
        })?;
        transaction.commit()?;
        base.table = table;
        Ok(Arc::new(base))
    }

    fn begin(&self, flags: u32) -> Result<Transaction<'_>, Failure> {
        let mut transaction = null_mut();
        // SAFETY: the environment is open as long as `self` is; the function writes a pointer.
        checked(unsafe { c::mdb_txn_begin(self.env, null_mut(), flags, &raw mut transaction) })?;
        Ok(Transaction { base: self, transaction })
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        // SAFETY: transactions borrow `self`, so none is in progress; null where none was made.
        unsafe { c::mdb_env_close(self.env) };
    }
}

/// A transaction of the thread that began it; ends when it is dropped, without a commit.
struct Transaction<'a> {
    base: &'a Base,
    /// Null after a commit.
    transaction: *mut c::MDB_txn,
}

impl Transaction<'_> {
    /// The value under a number, as long as nothing is put.
    fn get(&self, number: u32) -> Result<&[u8], Failure> {
        let key = number.to_ne_bytes();
        let (mut key, mut value) = (val(&key), val(&[]));
        // SAFETY: a transaction in progress; the key outlives the call, which does not change it.
        checked(unsafe {
            c::mdb_get(self.transaction, self.base.table, &raw mut key, &raw mut value)
        })?;
        // SAFETY: LMDB gives bytes in its map that stay until the transaction ends or puts
        // something: both take `self` otherwise than by this reference. The pointer is not null.
        Ok(unsafe { std::slice::from_raw_parts(value.mv_data.cast(), value.mv_size) })
    }

    fn put(&mut self, number: u32, value: &[u8]) -> Result<(), Failure> {
        let key = number.to_ne_bytes();
        let (mut key, mut value) = (val(&key), val(value));
        // SAFETY: a transaction in progress; key and value outlive the call, which copies both.
        checked(unsafe {
            c::mdb_put(self.transaction, self.base.table, &raw mut key, &raw mut value, 0)
        })
    }

    fn commit(mut self) -> Result<(), Failure> {
        // SAFETY: a transaction in progress, which this call ends whatever it returns: so it is
        // forgotten.
        checked(unsafe { c::mdb_txn_commit(std::mem::replace(&mut self.transaction, null_mut())) })
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if !self.transaction.is_null() {
            // SAFETY: it is in progress: a commit would have left null.
            unsafe { c::mdb_txn_abort(self.transaction) };
        }
    }
}

struct Computed {
    base: Arc<Base>,
    memory: pmo_kernels::Plain,
    committed: Vec<u8>,
}

impl pmo_kernels::Memory for Computed {
    fn bytes(&mut self) -> Result<&mut [u8], Failure> {
        Ok(self.memory.bytes())
    }

    fn sync(&mut self) -> Result<(), Failure> {
        let mut transaction = self.base.begin(0)?;
        let pages = self.memory.bytes().chunks(PAGE).zip(self.committed.chunks_mut(PAGE));
        for (number, (now, before)) in
            (0u32..).zip(pages).filter(|(_, (now, before))| now != before)
        {
            transaction.put(number, now)?;
            before.copy_from_slice(now);
        }
        transaction.commit()
    }
}

struct Values {
    base: Arc<Base>,
    first: u32,
    buffer: Vec<u8>,
}

impl pmo_files::Files for Values {
    fn update(&mut self, file: usize, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        let key = self.first + file as u32;
        let mut transaction = self.base.begin(0)?;
        let value = transaction.get(key)?;
        self.buffer.clear();
        self.buffer.extend_from_slice(value);
        self.buffer[at..at + bytes.len()].copy_from_slice(bytes);
        transaction.put(key, &self.buffer)?;
        transaction.commit()
    }

    fn read(&mut self, file: usize) -> Result<u64, Failure> {
        let transaction = self.base.begin(c::MDB_RDONLY)?;
        Ok(pmo_files::taken(transaction.get(self.first + file as u32)?, &mut self.buffer))
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
        let mut transaction = base.begin(0)?;
        for file in 0..count as u32 {
            transaction.put(first + file, &vec![1; len])?;
        }
        transaction.commit()?;
        Ok(Box::new(Values { base: base.clone(), first, buffer: Vec::new() }))
    });
    Ok(pmo_files::cases_of(settings, SYSTEM, level_of(settings)?, false, &make))
}
