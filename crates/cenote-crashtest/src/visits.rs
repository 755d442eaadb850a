//! The crash states of one history, each with the images that are to be looked at.
//!
//! Invariant: a state is given without losses of power only if the next one has all of its images,
//! to the same requirement, and is given with every combination of them.

use crate::units::{Images, Reach};
use cenote_medium::sim::{CrashState, SimMedium, Walk};
use std::sync::Arc;

/// Names of the puddles that a process sees.
fn names(state: &CrashState) -> Vec<Arc<str>> {
    let mut out = Vec::new();
    state.image_process().for_each_file(|name, _| {
        if name.starts_with("puddles/") {
            out.push(Arc::clone(name));
        }
    });
    out
}

/// The states of a history that are looked at, each with its images of losses of power; none, where
/// the next state has them all.
pub(crate) struct Visits {
    walk: Walk,
    reach: Reach,
    power: bool,
    /// Where the note is higher, the rig is being taken down.
    last_note: u64,
    next: Option<(CrashState, Images, bool)>,
    begun: bool,
    /// Puddles that were there at the start.
    old: Vec<Arc<str>>,
}

impl Visits {
    pub(crate) fn new(sim: &SimMedium, reach: Reach, power: bool, last_note: u64) -> Self {
        let walk = if power { sim.walk() } else { sim.walk_of_processes() };
        Self { walk, reach, power, last_note, next: None, begun: false, old: Vec::new() }
    }

    /// The next state, its images, and whether the one after it has them all.
    fn fetch(&mut self) -> Option<(CrashState, Images, bool)> {
        let state = self.walk.next().filter(|state| state.note() <= self.last_note)?;
        let mut images = Images::of(&state, self.reach, self.power);
        images.context.new =
            names(&state).into_iter().filter(|name| !self.old.contains(name)).collect();
        Some((state, images, self.walk.next_only_adds()))
    }

    pub(crate) fn next(&mut self) -> Option<(CrashState, Images)> {
        if !self.begun {
            // The state before the first event belongs to what went before.
            self.begun = true;
            self.old = names(&self.walk.next()?);
            self.next = self.fetch();
        }
        let (state, images, only_adds) = self.next.take()?;
        self.next = self.fetch();
        let contained = only_adds
            && self
                .next
                .as_ref()
                .is_some_and(|(after, images, _)| after.note() == state.note() && images.exhausted);
        let mut images = images;
        if contained {
            images.contained();
        }
        Some((state, images))
    }
}
