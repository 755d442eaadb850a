//! Condemns what a trace has not reached ([`super::recover`]).

use super::claims::Claim;
use super::condemn::Condemning;
use super::state::TracedHeap;
use super::superblock::PuddleHeap;
use super::trace::Tracer;
use crate::backing::Backing;
use crate::error::RecoverError;
use cenote_medium::planted::{Bug, planted};
use std::sync::Arc;

impl<G: Backing> TracedHeap<G> {
    /// Condemns what is allocated and not reached, unless all of that is kept.
    pub(super) fn condemn_unreached(
        &self,
        tracer: &Tracer<'_, G>,
        puddles: &[Arc<PuddleHeap>],
        keep: bool,
    ) -> Result<(), RecoverError> {
        let known = self.sweep_state().is_some();
        if keep || !known || planted(Bug::GivenBackOneByOne) || planted(Bug::RecoveryKeepsMarks) {
            return Ok(());
        }
        let mut sweep = Condemning::new(self);
        for (ordinal, puddle) in puddles.iter().enumerate() {
            for (number, claim) in tracer.claims(ordinal).iter().enumerate() {
                let class = match *claim {
                    Claim::Small { class, .. } => class,
                    Claim::Large { .. } => 0,
                    _ => continue,
                };
                let all = puddle.class_marks(number as u32, class);
                for (word, some) in all.chunks(64).enumerate() {
                    sweep.condemn(some, !tracer.reached(ordinal, number as u32, word));
                }
            }
        }
        self.backing.usable()?;
        sweep.commit();
        Ok(())
    }
}
