//! A pool in shadowed mode whose contents tell how many steps made them, and a loss of power made
//! by hand: another boot id in the superblock, and rubbish in every file that a psync does not
//! answer for.

use cenote::{Persist, Pool, PoolMode, PoolOptions, Ptr, Reader, Result, Store, field};
use cenote_layout::header::{read, seal};
use cenote_layout::superblock::{COPY_SIZE, Superblock};
use cenote_testkit::random::mix;
use std::path::Path;
use zerocopy::IntoBytes;

pub(crate) const CELLS: usize = 300;

#[derive(Persist)]
#[persist(name = "shadowed::Root")]
pub(crate) struct Root {
    pub(crate) step: u64,
    pub(crate) cells: [Option<Ptr<Cell>>; CELLS],
}

#[derive(Persist)]
#[persist(name = "shadowed::Cell")]
pub(crate) struct Cell {
    step: u64,
    value: u64,
    pad: [u64; 40],
}

pub(crate) fn shadowed() -> PoolOptions {
    PoolOptions { mode: PoolMode::Shadowed, puddle_size: 256 << 10, ..PoolOptions::default() }
}

pub(crate) fn make(store: &Store, name: &str) -> Pool {
    let pool = store.create_pool(name, &shadowed()).unwrap();
    pool.write(|tx| -> Result<()> {
        let root = tx.alloc(Root { step: 0, cells: [None; CELLS] })?;
        tx.set_root(root)
    })
    .unwrap();
    pool
}

/// Step `step` in one pool: replaces a few cells.
pub(crate) fn apply(tx: &mut cenote::Tx<'_>, pool: &Pool, step: u64) -> Result<()> {
    let root = tx.root_in::<Root>(pool, 0)?.expect("a root");
    for i in 0..1 + mix(step) % 5 {
        let at = (mix(step * 8 + i) % CELLS as u64) as usize;
        let old = tx.get(root)?.cells[at];
        let value = mix(step ^ at as u64);
        let new = tx.alloc_in(pool, Cell { step, value, pad: [value; 40] })?;
        tx.get_mut(root)?.cells[at] = Some(new);
        if let Some(old) = old {
            tx.free(old)?;
        }
    }
    tx.set(root, field!(Root, step), step)
}

/// The step that a pool is at, if it is exactly what the steps up to that make.
pub(crate) fn step_of(pool: &Pool) -> u64 {
    let view = pool.read().unwrap();
    let root = view.get(view.root::<Root>().unwrap().expect("a root")).unwrap();
    let mut model = vec![0; CELLS];
    for step in 1..=root.step {
        for i in 0..1 + mix(step) % 5 {
            model[(mix(step * 8 + i) % CELLS as u64) as usize] = step;
        }
    }
    for (at, (cell, step)) in root.cells.iter().zip(model).enumerate() {
        match cell {
            None => assert_eq!(step, 0, "cell {at} of {} is missing", pool.name()),
            Some(cell) => {
                let cell = view.get(*cell).unwrap();
                let value = mix(step ^ at as u64);
                assert_eq!(
                    (cell.step, cell.value, cell.pad),
                    (step, value, [value; 40]),
                    "cell {at}"
                );
            }
        }
    }
    let step = root.step;
    drop(view);
    let report = pool.check().unwrap();
    assert!(report.is_sound(), "{}: {report:?}", pool.name());
    step
}

pub(crate) fn steps(pool: &Pool, from: u64, to: u64) {
    for step in from..=to {
        pool.write(|tx| apply(tx, pool, step)).unwrap();
    }
}

/// Makes it so that the machine seems to have gone down since the store was open.
pub(crate) fn lose_power(dir: &Path, seed: u64) {
    let path = dir.join("superblock");
    let mut bytes = std::fs::read(&path).unwrap();
    for copy in bytes.chunks_exact_mut(COPY_SIZE as usize) {
        let Ok(mut block) = read::<Superblock>(copy, true) else { continue };
        block.boot_id.0[3] ^= 0x55;
        seal(&mut block);
        copy.copy_from_slice(block.as_bytes());
    }
    std::fs::write(&path, bytes).unwrap();
    // Shadows and logs hold anything.
    let mut random = seed;
    for entry in std::fs::read_dir(dir.join("puddles")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let is_shadow = dir.join("primary").join(path.file_name().unwrap()).exists();
        // Headers were synced when the file was made, but a shadow needs none.
        let from = if is_shadow && mix(random).is_multiple_of(2) { 0 } else { 4096 };
        for page in bytes[from..].chunks_mut(4096) {
            random = mix(random);
            match random % 4 {
                0 => page.fill(0),
                1 => page
                    .iter_mut()
                    .enumerate()
                    .for_each(|(i, b)| *b = (mix(random + i as u64)) as u8),
                2 => page[..512].fill(0xff),
                _ => {}
            }
        }
        if is_shadow && random % 16 == 5 {
            std::fs::remove_file(&path).unwrap();
        } else {
            std::fs::write(&path, bytes).unwrap();
        }
    }
}
