//! The sensor figure with libpmemobj: a pool file holds in one process's copy what it holds in
//! another's, but its pointers name the pool, so a program that brings several together opens each
//! copy and allocates what is in it again.

use crate::case::{Failure, POWER};
use crate::figures::sensors::{Aggregated, Way};
use crate::peers::libpmemobj::{SYSTEM, checked, error, force_persistent_memory};
use std::ffi::{CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// Bytes of a node's pool: the least that the library takes.
const NODE_SIZE: u64 = 8 << 20;
/// Bytes of the pool of all: 128 for each of 320,000 variables, and more than that.
const ALL_SIZE: u64 = 128 << 20;

/// First argument of a child.
pub const CHILD: &str = "--libpmemobj-sensor-node";

/// The library's part in the figure.
pub const WAYS: &[Way] = &[Way { system: SYSTEM, level: POWER, child: CHILD, aggregate }];

#[repr(C)]
struct Pool([u8; 0]);

unsafe extern "C" {
    fn peer_sense(path: *const c_char, size: u64, node: u64, variables: u64) -> c_int;
    fn peer_gather_begin(path: *const c_char, size: u64) -> *mut Pool;
    fn peer_gather(all: *mut Pool, path: *const c_char) -> c_int;
    fn peer_gather_end(all: *mut Pool, max: u64, found: *mut [u64; 2]) -> u64;
}

fn pool_in(directory: &Path) -> Result<CString, Failure> {
    Ok(CString::new(directory.join("pool").as_os_str().as_bytes())?)
}

/// What a child does: arguments are [`CHILD`], its number, variables, its directory.
pub fn child(arguments: &[String]) -> ExitCode {
    force_persistent_memory();
    let sensed = || -> Result<(), Failure> {
        let [_, node, variables, directory] = arguments else {
            return Err(format!("{CHILD} is only for this program itself").into());
        };
        let path = pool_in(Path::new(directory))?;
        // SAFETY: a path that ends with a zero byte.
        checked(unsafe { peer_sense(path.as_ptr(), NODE_SIZE, node.parse()?, variables.parse()?) })
    };
    match sensed() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn aggregate(directory: &Path, nodes: u64, target: &Path) -> Result<Aggregated, Failure> {
    let (all, mut paths) = (pool_in(target)?, Vec::new());
    for node in 0..nodes {
        paths.push(pool_in(&directory.join(node.to_string()))?);
    }
    // SAFETY: paths that end with a zero byte; the pool is open until `peer_gather_end`, which
    // fills as many places as there are.
    unsafe {
        // As for the others, the store of all is there before.
        let pool = peer_gather_begin(all.as_ptr(), ALL_SIZE);
        if pool.is_null() {
            return Err(error());
        }
        let begin = Instant::now();
        for path in &paths {
            checked(peer_gather(pool, path.as_ptr()))?;
        }
        let ms = begin.elapsed().as_secs_f64() * 1e3;
        let mut found = vec![[0u64; 2]; (ALL_SIZE / 64) as usize];
        let count = peer_gather_end(pool, found.len() as u64, found.as_mut_ptr());
        found.truncate(count as usize);
        Ok((ms, found.into_iter().map(|[node, number]| (node, number)).collect()))
    }
}
