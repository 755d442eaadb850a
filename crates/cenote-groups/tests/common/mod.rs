//! A simulated medium with one durable file that is mapped.

use cenote_medium::sim::{SimMedium, SimOptions};
use cenote_medium::{Durability, MapMode, Medium, Persistence};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const LEN: u64 = 8192;
const WINDOW: u64 = 1 << 20;
pub(crate) const FILE: &str = "puddles/a";

pub(crate) struct MappedFile {
    pub(crate) sim: Arc<SimMedium>,
    pub(crate) persistence: Persistence,
    base: u64,
}

impl MappedFile {
    pub(crate) fn new(level: Durability) -> Self {
        let sim = SimMedium::new(SimOptions::new(level));
        // A window of its own: tests run side by side.
        static NEXT: AtomicU64 = AtomicU64::new(0x3e00_0000_0000);
        let base = NEXT.fetch_add(WINDOW, Ordering::Relaxed);
        sim.make_dir("puddles").unwrap();
        sim.sync_dir("").unwrap();
        sim.create(FILE, LEN).unwrap();
        sim.sync(FILE).unwrap();
        sim.sync_dir("puddles").unwrap();
        sim.reserve_window(base, WINDOW).unwrap();
        // SAFETY: the tests reach the mapping by raw pointers, while it is there.
        unsafe { sim.map(FILE, base, LEN, MapMode::ReadWrite).unwrap() };
        sim.forget_trace();
        let persistence = sim.persistence(level);
        Self { sim, persistence, base }
    }

    /// The word with this number.
    pub(crate) fn word(&self, number: usize) -> *mut u64 {
        assert!((number as u64) < LEN / 8);
        core::ptr::with_exposed_provenance_mut(self.base as usize + number * 8)
    }

    /// Its address.
    pub(crate) fn addr(&self, number: usize) -> usize {
        self.word(number).addr()
    }

    /// What is durable now of some words, if everything that is undecided is lost.
    pub(crate) fn durable(&self, numbers: &[usize]) -> Vec<u64> {
        let image = self.sim.state_now().image_oldest();
        let after = SimMedium::from_image_unrecorded(&image);
        let bytes = after.read(FILE).unwrap();
        numbers.iter().map(|&number| word_of(&bytes, number)).collect()
    }
}

/// A word of a file.
pub(crate) fn word_of(bytes: &[u8], number: usize) -> u64 {
    u64::from_le_bytes(bytes[number * 8..number * 8 + 8].try_into().unwrap())
}
