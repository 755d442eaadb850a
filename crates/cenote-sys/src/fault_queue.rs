//! A queue of questions from signal handlers to a thread, which does what a handler may not do:
//! allocate, take locks, read files, use much stack.
//!
//! A handler of faults ([`crate::fault`]) asks, and sleeps until the answer is there. A *fault
//! worker*, an ordinary thread, answers. That keeps the rules of resolvers under two conditions:
//!
//! * the worker waits for nothing that a thread may hold while it touches a range whose faults end
//!   here;
//! * the worker never touches such a range itself.
//!
//! # States
//!
//! Each place holds one question:
//!
//! | state | meaning | next |
//! | --- | --- | --- |
//! | `FREE` | no question | `TAKEN`, by the handler's compare-and-swap |
//! | `TAKEN` | the handler writes its question | `ASKED` |
//! | `ASKED` | the question is there; its handler looks for the answer | `WAITED`, `ANSWERED` |
//! | `WAITED` | as `ASKED`, but the handler sleeps | `ANSWERED`, by the worker |
//! | `ANSWERED` | the answer is there | `FREE`, by the handler |
//!
//! After `ASKED` the handler rings the bell, a counter. The worker reads the bell, answers all
//! questions, and starts again if the bell has changed meanwhile. If all places are taken, a
//! handler yields until one is free, which takes no longer than the worker's answer.
//!
//! *Each side looks for a while before it sleeps*, if there is more than one processor: the worker
//! answers a question of a few microseconds before a switch of context would be over, and the next
//! question often follows at once. Each side calls the system only if the other side sleeps:
//!
//! * the worker sets `resting`, reads the bell again, and sleeps; a handler rings the bell, then
//!   reads `resting`. All four accesses are sequentially consistent, so one side sees the other;
//! * a handler makes `ASKED` into `WAITED` and sleeps; the worker swaps `ANSWERED` in, and wakes
//!   the handler if the old state was `WAITED`.
//!
//! A worker that ends, also by a panic, closes the queue: waiting and later handlers get `false`.
//!
//! # Safety argument
//!
//! No `unsafe`: everything is atomics. `futex` is async-signal-safe. The worker runs with all
//! signals blocked, so that no handler of the application's runs on it, touches a range, and waits
//! for the worker.

use crate::cpu_number;
use crate::futex::{sleep_here, wake_here};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const ASKED: u32 = 2;
const ANSWERED: u32 = 3;
const WAITED: u32 = 4;

/// How often a waiting thread looks before it sleeps: some 10 microseconds. An answer takes 3 to 8,
/// a sleep and its end about as much again.
const LOOKS: u32 = 256;

/// Questions that wait at once.
const PLACES: usize = 32;

#[derive(Debug)]
struct QueuePlace {
    state: AtomicU32,
    answer: AtomicBool,
    question: AtomicU64,
}

/// The questions and their answers. Handlers and one worker share it.
#[derive(Debug)]
pub struct FaultQueue {
    bell: AtomicU32,
    /// The worker sleeps, or is about to.
    resting: AtomicBool,
    closed: AtomicBool,
    looks: u32,
    places: [QueuePlace; PLACES],
}

/// [`LOOKS`] where another thread can run meanwhile, else 0.
fn looks() -> u32 {
    if cpu_number::available().get() > 1 { LOOKS } else { 0 }
}

impl Default for FaultQueue {
    fn default() -> Self {
        let place = || QueuePlace {
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

/// Looks up to `looks` times. Returns whether the condition came true.
fn look_until(looks: u32, mut is_true: impl FnMut() -> bool) -> bool {
    (0..looks).any(|_| {
        core::hint::spin_loop();
        is_true()
    })
}

impl FaultQueue {
    /// Asks, and waits for the answer; `false` if the queue is closed. Async-signal-safe.
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
            wake_here(&self.bell);
        }
        let is_asked = || matches!(place.state.load(Ordering::SeqCst), ASKED | WAITED);
        look_until(self.looks, || !is_asked());
        // Either this sees that the queue is closed, or `close` sees the question and answers it:
        // both orders are sequentially consistent.
        while is_asked() && !self.closed.load(Ordering::SeqCst) {
            let waits =
                place.state.compare_exchange(ASKED, WAITED, Ordering::SeqCst, Ordering::SeqCst);
            if matches!(waits, Ok(_) | Err(WAITED)) {
                sleep_here(&place.state, WAITED);
            }
        }
        let answered = place.state.load(Ordering::Acquire) == ANSWERED;
        let answer = answered && place.answer.load(Ordering::Relaxed);
        place.state.store(FREE, Ordering::Release);
        answer
    }

    /// Answers questions until [`FaultQueue::close`]. The worker runs this.
    pub fn serve(&self, mut answer: impl FnMut(u64) -> bool) {
        crate::signals::block_all();
        let _closing = Closing(self);
        loop {
            let bell = self.bell.load(Ordering::SeqCst);
            let is_asked =
                |place: &&QueuePlace| matches!(place.state.load(Ordering::SeqCst), ASKED | WAITED);
            for place in self.places.iter().filter(is_asked) {
                let says = answer(place.question.load(Ordering::Relaxed));
                place.answer.store(says, Ordering::Relaxed);
                if place.state.swap(ANSWERED, Ordering::SeqCst) == WAITED {
                    wake_here(&place.state);
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
                sleep_here(&self.bell, bell);
            }
            self.resting.store(false, Ordering::SeqCst);
        }
    }

    /// Ends the worker. Every later question gets `false`.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.bell.fetch_add(1, Ordering::SeqCst);
        wake_here(&self.bell);
        for place in &self.places {
            // The answer stays `false`, as `ask` has set it.
            let mut asked = [ASKED, WAITED].into_iter();
            if asked.any(|asked| {
                place
                    .state
                    .compare_exchange(asked, ANSWERED, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
            }) {
                wake_here(&place.state);
            }
        }
    }

    /// Whether the worker has ended, or is about to.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}

/// Closes the queue when the worker leaves [`FaultQueue::serve`], also by a panic.
struct Closing<'a>(&'a FaultQueue);

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
    fn every_question_is_answered_and_no_handler_waits_for_a_worker_that_ended() {
        let queue = Arc::new(FaultQueue::default());
        let worker = std::thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.serve(|question| question.is_multiple_of(3))
        });
        let asking: Vec<_> = (0..40u64)
            .map(|thread| {
                let queue = Arc::clone(&queue);
                std::thread::spawn(move || {
                    for question in 0..200 {
                        let question = thread * 1000 + question;
                        assert_eq!(queue.ask(question), question.is_multiple_of(3), "{question}");
                    }
                })
            })
            .collect();
        asking.into_iter().for_each(|thread| thread.join().expect("answered"));
        queue.close();
        worker.join().expect("the worker ended");
        assert!(!queue.ask(3), "no worker is there");
    }

    #[test]
    fn a_worker_that_panics_leaves_no_handler_waiting() {
        let queue = Arc::new(FaultQueue::default());
        let worker = std::thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.serve(|_| panic!("on purpose"))
        });
        assert!(!queue.ask(1));
        worker.join().expect_err("it panicked");
    }
}
