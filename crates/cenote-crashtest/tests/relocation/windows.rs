//! Windows of simulated stores: free ones, and those that another store has.

use cenote_medium::sim::{SimMedium, SimOptions};
use cenote_medium::{Durability, Medium};
use std::sync::Arc;

/// A free window for this thread's simulations.
pub(super) fn window_base() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static MINE: u64 = 0x3900_0000_0000 + (NEXT.fetch_add(1, Ordering::Relaxed) << 32);
    }
    MINE.with(|base| *base)
}

/// A window that another store of this thread has.
pub(super) struct Taken {
    window: (u64, u64),
    sim: Arc<SimMedium>,
}

impl Taken {
    pub(super) fn new(window: (u64, u64)) -> Result<Self, String> {
        let sim = SimMedium::new(SimOptions::new(Durability::Process));
        sim.reserve_window(window.0, window.1).map_err(|error| error.to_string())?;
        Ok(Self { window, sim })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: reserved by `new`; nothing was mapped there.
        let _ = unsafe { self.sim.release_window(self.window.0, self.window.1) };
    }
}
