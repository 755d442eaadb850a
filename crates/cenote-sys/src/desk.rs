//! A desk at which signal handlers ask a thread for what they may not do themselves: allocate, take
//! locks, read files, use much stack.
//!
//! A handler of faults ([`crate::fault`]) asks, and sleeps until it is answered; a *clerk*, an
//! ordinary thread, answers. That keeps the rules of resolvers as long as the clerk waits for
//! nothing that a thread may hold while it touches a range whose faults end here, and never touches
//! such a range itself.
//!
//! # Algorithm
//!
//! Places for questions, each `FREE`, `TAKEN` (its question is being written), `ASKED`, `WAITED`
//! (asked, and who asked sleeps) or `ANSWERED`. Who asks takes a free one by one compare-and-swap,
//! writes the question, makes it `ASKED` and rings the bell (a counter). The clerk reads the bell,
//! answers every place that is asked, and comes back if the bell reads differently: a question that
//! was asked in between has changed it. If all places are taken, who asks yields until one is free,
//! which takes no longer than the clerk needs.
//!
//! *Who waits looks for a while before he sleeps*, where there is more than one processor: a
//! question that takes a few microseconds is answered before a switch of context would be over, and
//! a clerk that has just answered is often asked again at once. Whoever makes a change calls the
//! system only if the other one sleeps:
//!
//! * the clerk says that it rests, looks at the bell again, and sleeps; who has rung looks whether
//!   it rests. All four are sequentially consistent, so one of them sees the other;
//! * who asks makes `ASKED` into `WAITED` and sleeps; the clerk's answer takes the place's old
//!   state out, and wakes whom it finds waiting.
//!
//! A clerk that ends, also by a panic, closes the desk: whoever waits or comes later is told
//! `false`.
//!
//! # Safety argument
//!
//! No `unsafe`: everything is atomics. `futex` is async-signal-safe. The clerk runs with all
//! signals blocked, so that no handler of the application's runs on it, touches a range, and waits
//! for itself.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use rustix::thread::futex;
use std::sync::OnceLock;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const ASKED: u32 = 2;
const ANSWERED: u32 = 3;
const WAITED: u32 = 4;

/// How often whoever waits looks before he sleeps: some 10 microseconds. An answer takes 3 to 8, a
/// sleep and its end about as much again.
const LOOKS: u32 = 256;

/// Questions that wait at once.
const PLACES: usize = 32;

#[derive(Debug)]
struct Place {
    state: AtomicU32,
    answer: AtomicBool,
    question: AtomicU64,
}

/// Where questions are asked and answered. Shared by handlers and one clerk.
#[derive(Debug)]
pub struct Desk {
    bell: AtomicU32,
    /// The clerk sleeps, or is about to.
    resting: AtomicBool,
    closed: AtomicBool,
    looks: u32,
    places: [Place; PLACES],
}

/// [`LOOKS`] where somebody else can run meanwhile.
fn looks() -> u32 {
    static KNOWN: OnceLock<u32> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        if std::thread::available_parallelism().is_ok_and(|n| n.get() > 1) { LOOKS } else { 0 }
    })
}

impl Default for Desk {
    fn default() -> Self {
        let place = || Place {
            state: AtomicU32::new(FREE),
            answer: AtomicBool::new(false),
            question: AtomicU64::new(0),
        };
        Self {
            bell: AtomicU32::new(0),
            resting: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            looks: looks(),
            places: core::array::from_fn(|_| place()),
        }
    }
}

fn sleep(on: &AtomicU32, while_it_is: u32) {
    // Woken, changed meanwhile, or interrupted: the caller looks again in all cases.
    let _ = futex::wait(on, futex::Flags::PRIVATE, while_it_is, None);
}

fn wake(on: &AtomicU32) {
    let _ = futex::wake(on, futex::Flags::PRIVATE, i32::MAX as u32);
}

/// Looks so often; whether it came true.
fn look_until(looks: u32, mut is_true: impl FnMut() -> bool) -> bool {
    (0..looks).any(|_| {
        core::hint::spin_loop();
        is_true()
    })
}

impl Desk {
    /// Asks, and waits for the answer; `false` if the desk is closed. Async-signal-safe.
    #[must_use]
    pub fn ask(&self, question: u64) -> bool {
        let place = loop {
            if self.closed.load(Ordering::SeqCst) {
                return false;
            }
            let free = self.places.iter().find(|place| {
                place
                    .state
                    .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            });
            match free {
                Some(place) => break place,
                None => std::thread::yield_now(),
            }
        };
        place.question.store(question, Ordering::Relaxed);
        place.answer.store(false, Ordering::Relaxed);
        place.state.store(ASKED, Ordering::SeqCst);
        self.bell.fetch_add(1, Ordering::SeqCst);
        if self.resting.load(Ordering::SeqCst) {
            wake(&self.bell);
        }
        let is_asked = || matches!(place.state.load(Ordering::SeqCst), ASKED | WAITED);
        look_until(self.looks, || !is_asked());
        // Either this sees that the desk is closed, or closing sees the question and takes it away:
        // both orders are sequentially consistent.
        while is_asked() && !self.closed.load(Ordering::SeqCst) {
            let waits =
                place.state.compare_exchange(ASKED, WAITED, Ordering::SeqCst, Ordering::SeqCst);
            if matches!(waits, Ok(_) | Err(WAITED)) {
                sleep(&place.state, WAITED);
            }
        }
        let answered = place.state.load(Ordering::Acquire) == ANSWERED;
        let answer = answered && place.answer.load(Ordering::Relaxed);
        place.state.store(FREE, Ordering::Release);
        answer
    }

    /// What the clerk does, until [`Desk::close`]: answers questions.
    pub fn serve(&self, mut answer: impl FnMut(u64) -> bool) {
        crate::signals::block_all();
        let _closing = Closing(self);
        loop {
            let bell = self.bell.load(Ordering::SeqCst);
            let is_asked =
                |place: &&Place| matches!(place.state.load(Ordering::SeqCst), ASKED | WAITED);
            for place in self.places.iter().filter(is_asked) {
                let says = answer(place.question.load(Ordering::Relaxed));
                place.answer.store(says, Ordering::Relaxed);
                if place.state.swap(ANSWERED, Ordering::SeqCst) == WAITED {
                    wake(&place.state);
                }
            }
            if self.closed.load(Ordering::SeqCst) {
                return;
            }
            let has_rung = || self.bell.load(Ordering::SeqCst) != bell;
            if look_until(self.looks, has_rung) {
                continue;
            }
            self.resting.store(true, Ordering::SeqCst);
            if !has_rung() {
                sleep(&self.bell, bell);
            }
            self.resting.store(false, Ordering::SeqCst);
        }
    }

    /// Sends the clerk home. Nobody is answered any more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.bell.fetch_add(1, Ordering::SeqCst);
        wake(&self.bell);
        for place in &self.places {
            // With the answer that it has from the beginning: no.
            let mut asked = [ASKED, WAITED].into_iter();
            if asked.any(|asked| {
                place
                    .state
                    .compare_exchange(asked, ANSWERED, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
            }) {
                wake(&place.state);
            }
        }
    }

    /// Whether the clerk has gone home, or is about to.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}

/// Closes the desk when the clerk leaves it, in whatever way.
struct Closing<'a>(&'a Desk);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn every_question_is_answered_and_nobody_waits_for_a_clerk_that_left() {
        let desk = Arc::new(Desk::default());
        let clerk = std::thread::spawn({
            let desk = Arc::clone(&desk);
            move || desk.serve(|question| question.is_multiple_of(3))
        });
        let asking: Vec<_> = (0..40u64)
            .map(|thread| {
                let desk = Arc::clone(&desk);
                std::thread::spawn(move || {
                    for question in 0..200 {
                        let question = thread * 1000 + question;
                        assert_eq!(desk.ask(question), question.is_multiple_of(3), "{question}");
                    }
                })
            })
            .collect();
        asking.into_iter().for_each(|thread| thread.join().expect("answered"));
        desk.close();
        clerk.join().expect("went home");
        assert!(!desk.ask(3), "nobody is there");
    }

    #[test]
    fn a_clerk_that_panics_leaves_nobody_waiting() {
        let desk = Arc::new(Desk::default());
        let clerk = std::thread::spawn({
            let desk = Arc::clone(&desk);
            move || desk.serve(|_| panic!("on purpose"))
        });
        assert!(!desk.ask(1));
        clerk.join().expect_err("it panicked");
    }
}
