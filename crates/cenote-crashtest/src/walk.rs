//! The walk over what crashes leave, for scripts of updates: every state of a trace, its images,
//! and crashes of the recoveries of some of these.
//!
//! Invariant: an image to which the same is allowed is looked at once.

use crate::explore::{ExploreTally, guarded, name_image};
use crate::tier::Sampled;
use crate::units::{Grain, Images, Reach};
use cenote_medium::sim::{CrashState, Image, SimMedium};
use std::collections::HashSet;
use std::sync::Arc;

/// Says what an image holds, or what does not hold; with the image whose recovery was crashed, if
/// this one is of such a crash.
pub(crate) type Look<'a> = &'a dyn Fn(&Image, Option<&Image>) -> Result<(), String>;
/// Recovers an image on a medium that records it; false: there is nothing to be recovered.
pub(crate) type Recover<'a> = &'a dyn Fn(&Arc<SimMedium>) -> bool;

/// What was seen, and how much.
#[derive(Default)]
pub(crate) struct Walk {
    /// Images whose recovery is crashed as well.
    pub(crate) recoveries: Sampled,
    /// States of at most so many units that may be lost have every subset looked at; of others
    /// there are samples.
    pub(crate) exhaustive: u32,
    seen: HashSet<(u64, u64)>,
    pub(crate) tally: ExploreTally,
}

impl Walk {
    pub(crate) fn new(recoveries: Sampled) -> Self {
        Self { recoveries, exhaustive: 12, ..Self::default() }
    }

    /// Looks at the images of one state; `requirement` stands for what is allowed in it.
    pub(crate) fn state(
        &mut self,
        state: &CrashState,
        requirement: u64,
        look: Look<'_>,
        recover: Recover<'_>,
    ) -> Result<(), String> {
        let mut result = Ok(());
        let reach = Reach { grain: Grain::Words, exhaustive: self.exhaustive, samples: 64 };
        let images = Images::of(state, reach, true);
        let mut check = |image: Image| {
            let hash = image.hash();
            if !self.seen.insert((hash, requirement)) {
                self.tally.duplicates += 1;
                return true;
            }
            self.tally.images += 1;
            result = guarded(|| look(&image, None))
                .and_then(|()| match self.recoveries.takes(hash) {
                    true => self.recovery(&image, look, recover),
                    false => Ok(()),
                })
                .map_err(|what| format!("{what}\n{}", name_image(state, &image)));
            result.is_ok()
        };
        if check(state.image_process()) {
            images.visit(state, &mut check);
        }
        self.tally.points += 1;
        self.tally.exhausted += u64::from(images.exhausted);
        self.tally.units_max = self.tally.units_max.max(images.units);
        result
    }

    /// Crashes the recovery of an image.
    fn recovery(
        &mut self,
        image: &Image,
        look: Look<'_>,
        recover: Recover<'_>,
    ) -> Result<(), String> {
        let sim = SimMedium::from_image(image);
        if !recover(&sim) {
            return Ok(());
        }
        self.tally.recoveries += 1;
        let reach = Reach { grain: Grain::Words, exhaustive: 5, samples: 8 };
        let mut seen = HashSet::new();
        for event in 1..=sim.trace_len() {
            let state = sim.state_after(event);
            let mut result = Ok(());
            let mut check = |again: Image| {
                if seen.insert(again.hash()) {
                    self.tally.recovery_images += 1;
                    result = guarded(|| look(&again, Some(image))).map_err(|what| {
                        format!("crash of the recovery: {what}\n{}", name_image(&state, &again))
                    });
                }
                result.is_ok()
            };
            if check(state.image_process()) {
                Images::of(&state, reach, true).visit(&state, &mut check);
            }
            result?;
        }
        Ok(())
    }
}
