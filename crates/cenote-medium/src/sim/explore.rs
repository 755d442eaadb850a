//! Walks over the images of crash states: all of them where they are few, samples by seed where
//! they are many.
//!
//! Invariant: which images are visited depends on the history, the limits and the seed alone. An
//! image is visited once per *requirement*: two moments may have the same image, but the later one
//! may demand more of it (an operation was acknowledged in between), so images are told apart by
//! the test's note as well as by their bytes.

use super::crash::{CrashState, Image};
use super::random::{Random, mix};
use std::collections::HashSet;

/// How far to go.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// All images are visited of a state that has no more than 2 to the power of this many; and
    /// all combinations of "durable" and "latest" where no more than this many units are
    /// undecided.
    pub exhaustive_units: u32,
    /// Images visited of a larger state, besides the two extremes.
    pub samples: u32,
    /// Chooses the samples.
    pub seed: u64,
    /// Whether crashes of the process are visited.
    pub process: bool,
    /// Whether losses of power are visited.
    pub power: bool,
}

impl Limits {
    /// Images up to which a state is enumerated without gaps.
    pub(crate) fn exhaustive_images(&self) -> u64 {
        1u64 << self.exhaustive_units.min(62)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { exhaustive_units: 12, samples: 200, seed: 1, process: true, power: true }
    }
}

/// What a walk has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visited {
    /// Crash states.
    pub states: u64,
    /// Of them, those whose images were all visited.
    pub exhausted: u64,
    /// Images visited.
    pub images: u64,
    /// Images skipped because the same was visited before.
    pub duplicates: u64,
    /// Undecided units of the largest state.
    pub units_max: u64,
}

/// A walk over the images of any number of states.
#[derive(Debug, Default)]
pub struct Explorer {
    limits: Limits,
    seen: HashSet<(u64, u64)>,
    visited: Visited,
}

impl Explorer {
    /// A walk that has seen nothing.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// What the walk has seen so far.
    #[must_use]
    pub fn visited(&self) -> Visited {
        self.visited
    }

    /// Calls `f` with the images of one state, as the limits say. If `f` panics, the image is named
    /// on standard error.
    pub fn visit(&mut self, state: &CrashState, f: &mut dyn FnMut(Image)) {
        self.visit_part(state, false, f);
    }

    /// The same; if `contained`, the losses of power are left out, because they will be visited
    /// with another state.
    pub(crate) fn visit_part(
        &mut self,
        state: &CrashState,
        contained: bool,
        f: &mut dyn FnMut(Image),
    ) {
        self.visited.states += 1;
        self.visited.units_max = self.visited.units_max.max(state.units() as u64);
        if self.limits.process {
            self.offer(state, state.image_process(), f);
        }
        if !self.limits.power {
            return;
        }
        if contained {
            self.visited.exhausted += 1;
            return;
        }
        if state.images() <= self.limits.exhaustive_images() {
            self.visited.exhausted += 1;
            let counts: Vec<usize> =
                (0..state.units()).map(|unit| state.alternatives(unit)).collect();
            count_through(&counts, |picks| {
                self.offer(state, state.image(&mut |unit, _| picks[unit]), f);
            });
            return;
        }
        self.offer(state, state.image_oldest(), f);
        self.offer(state, state.image_latest(), f);
        if state.units() <= self.limits.exhaustive_units as usize {
            count_through(&vec![2; state.units()], |picks| {
                self.offer(state, state.image(&mut |unit, _| picks[unit] * state.latest(unit)), f);
            });
        }
        self.sample(state, f);
    }

    /// Half of the samples are one unit against all others, which finds most missing flushes; the
    /// rest is random, by unit or by groups of units that share a line or a page, with many or
    /// with few survivors.
    fn sample(&mut self, state: &CrashState, f: &mut dyn FnMut(Image)) {
        let units = state.units();
        let mut random = Random::new(mix(self.limits.seed ^ mix(state.event() as u64)));
        let singles = (self.limits.samples as usize / 2).min(2 * units);
        let first = random.below(2 * units);
        for i in 0..singles {
            // Steps through the units evenly, from a random one on.
            let number = (first + i * (2 * units) / singles) % (2 * units);
            let (odd_one, survives) = (number / 2, number % 2 == 1);
            let image = state.image(&mut |unit, _| {
                if (unit == odd_one) == survives { state.latest(unit) } else { 0 }
            });
            self.offer(state, image, f);
        }
        for i in singles..self.limits.samples as usize {
            let chance_64ths = [32, 4, 60, 32][i % 4];
            let by_group = random.below(2) == 0;
            let salt = random.next();
            let image = state.image(&mut |unit, alternatives| {
                let draw = if by_group { mix(state.group(unit) ^ salt) } else { random.next() };
                if draw % 64 >= chance_64ths {
                    return 0;
                }
                // Mostly the latest value; sometimes one between.
                if alternatives > 2 && (draw >> 32) % 4 == 0 {
                    random.below(alternatives)
                } else {
                    state.latest(unit)
                }
            });
            self.offer(state, image, f);
        }
    }

    fn offer(&mut self, state: &CrashState, image: Image, f: &mut dyn FnMut(Image)) {
        if !self.seen.insert((state.note(), image.hash())) {
            self.visited.duplicates += 1;
            return;
        }
        self.visited.images += 1;
        let witness = Witness { state, picks: image.picks().to_vec(), kind: image.kind() };
        f(image);
        drop(witness);
    }
}

impl CrashState {
    /// Calls `f` with every image of a loss of power if there are no more than 2 to the power of
    /// `limit_units_exhaustive`, else with `samples` of them and the two extremes. No image comes
    /// twice.
    pub fn for_each_image(
        &self,
        limit_units_exhaustive: u32,
        samples: u32,
        seed: u64,
        mut f: impl FnMut(Image),
    ) -> Visited {
        let limits = Limits {
            exhaustive_units: limit_units_exhaustive,
            samples,
            seed,
            process: false,
            power: true,
        };
        let mut explorer = Explorer::new(limits);
        explorer.visit(self, &mut f);
        explorer.visited()
    }
}

/// Calls `f` with every combination of numbers below `counts`.
fn count_through(counts: &[usize], mut f: impl FnMut(&[usize])) {
    let mut picks = vec![0; counts.len()];
    loop {
        f(&picks);
        let mut place = 0;
        loop {
            let (Some(pick), Some(count)) = (picks.get_mut(place), counts.get(place)) else {
                return;
            };
            *pick += 1;
            if *pick < *count {
                break;
            }
            *pick = 0;
            place += 1;
        }
    }
}

/// Names the image that a test failed on.
struct Witness<'a> {
    state: &'a CrashState,
    picks: Vec<u16>,
    kind: super::crash::CrashKind,
}

impl Drop for Witness<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let Self { state, picks, kind } = self;
        eprintln!(
            "failed on a {kind:?} crash after event {}, note {}, at {:?}",
            state.event(),
            state.note(),
            state.label()
        );
        eprintln!("  picks {picks:?}");
        let survivors = picks.iter().enumerate().filter(|(_, pick)| **pick != 0);
        for (unit, pick) in survivors.take(40) {
            eprintln!("  survived as value {pick}: {}", state.describe(unit));
        }
    }
}
