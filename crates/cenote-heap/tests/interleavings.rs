//! The kernel under the model checker: every interleaving of two or three threads on a superblock
//! of two blocks.

#[allow(dead_code)]
#[path = "../src/traced/anchor.rs"]
mod anchor;
#[allow(dead_code)]
#[path = "../src/traced/gate.rs"]
mod gate;
#[allow(dead_code)]
#[path = "../src/traced/list.rs"]
mod list;
#[allow(dead_code)]
#[path = "../src/traced/marks.rs"]
mod marks;
#[allow(dead_code, unreachable_pub)]
// Here it looks once only.
#[allow(clippy::modulo_one)]
#[path = "../src/robust.rs"]
mod robust;
#[allow(dead_code)]
#[path = "../src/traced/runs.rs"]
mod runs;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

    pub(crate) const STEP: usize = 1;

    /// A waiter goes to sleep at once.
    pub(crate) const LOOKS: u32 = 1;

    /// A wake-up and the end of the time are the same here: the thread looks at the word again, and
    /// asks the judge about the owner.
    pub(crate) fn sleep(_: &AtomicU64, _: u64) -> bool {
        loom::thread::yield_now();
        true
    }

    pub(crate) fn wake_all(_: &AtomicU64) {}

    pub(crate) fn pause() {
        loom::thread::yield_now();
    }

    pub(crate) fn equal(marks: &[AtomicU8], at: usize, value: u8) -> u64 {
        u64::from(marks[at].load(Ordering::Acquire) == value)
    }

    pub(crate) fn fill(marks: &[AtomicU8], at: usize, value: u8) {
        marks[at].store(value, Ordering::Relaxed);
    }
}

use cenote_layout::heap::mark::{CACHED, FREE};
use cenote_medium::planted::{Bug, plant};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use sync::{AtomicU8, AtomicU64, Ordering};

const BLOCKS: usize = 2;

/// Superblocks with references 1, 2, ... and one list.
struct Heap {
    head: AtomicU64,
    superblocks: Vec<Superblock>,
}

struct Superblock {
    anchor: AtomicU64,
    next: AtomicU64,
    marks: Vec<AtomicU8>,
    /// A thread that has a block writes to it: the checker finds two that do so without one
    /// handing it to the other.
    blocks: Vec<UnsafeCell<u32>>,
    /// As the blocks, for the owner of the whole superblock.
    whole: UnsafeCell<u32>,
}

impl Heap {
    /// All blocks are CACHED, by no thread in particular; superblocks are FULL.
    fn new(superblocks: usize) -> Arc<Self> {
        let superblock = |_| Superblock {
            anchor: AtomicU64::new(anchor::FULL),
            next: AtomicU64::new(0),
            marks: (0..BLOCKS).map(|_| AtomicU8::new(CACHED)).collect(),
            blocks: (0..BLOCKS).map(|_| UnsafeCell::new(0)).collect(),
            whole: UnsafeCell::new(0),
        };
        Arc::new(Self {
            head: AtomicU64::new(0),
            superblocks: (0..superblocks).map(superblock).collect(),
        })
    }

    fn get(&self, reference: u32) -> &Superblock {
        &self.superblocks[reference as usize - 1]
    }

    fn push(&self, reference: u32) {
        list::push(&self.head, reference, &self.get(reference).next);
    }

    fn pop(&self) -> Option<u32> {
        list::pop(&self.head, |reference| Some(&self.get(reference).next))
    }

    /// The owner of a block uses it.
    fn touch(&self, reference: u32, block: usize) {
        // SAFETY: the checker panics if two threads are here at a time.
        self.get(reference).blocks[block].with_mut(|value| unsafe { *value += 1 });
    }

    fn spill(&self, reference: u32, block: usize) {
        self.touch(reference, block);
        let superblock = self.get(reference);
        assert_eq!(superblock.marks[block].load(Ordering::Relaxed), CACHED);
        superblock.marks[block].store(FREE, Ordering::Release);
        if anchor::announce(&superblock.anchor) {
            self.push(reference);
        }
    }

    /// Pops and claims: which blocks of which superblock.
    fn refill(&self) -> Option<(u32, u64)> {
        let reference = self.pop()?;
        let superblock = self.get(reference);
        let seen = superblock.anchor.load(Ordering::Acquire);
        let mut claimed = [0; marks::WORDS];
        marks::claim(&superblock.marks, CACHED, &mut claimed);
        if !anchor::settle(&superblock.anchor, seen) {
            self.push(reference);
        }
        for block in (0..BLOCKS).filter(|block| claimed[0] >> block & 1 != 0) {
            self.touch(reference, block);
        }
        Some((reference, claimed[0]))
    }

    /// Pops and retires if nothing is in use.
    fn scavenge(&self) -> Option<u32> {
        let reference = self.pop()?;
        let superblock = self.get(reference);
        if !marks::all(&superblock.marks, FREE) {
            self.push(reference);
            return None;
        }
        anchor::retire(&superblock.anchor);
        // SAFETY: as in `touch`.
        superblock.whole.with_mut(|value| unsafe { *value += 1 });
        (0..BLOCKS).for_each(|block| self.touch(reference, block));
        anchor::leave(&superblock.anchor, anchor::FREE);
        Some(reference)
    }

    /// After all threads: every FREE block is in a listed superblock, and every listed one is in
    /// the list, once.
    fn check(&self) -> usize {
        let mut listed = Vec::new();
        while let Some(reference) = self.pop() {
            assert!(!listed.contains(&reference), "listed twice");
            listed.push(reference);
        }
        let mut free = 0;
        for (i, superblock) in self.superblocks.iter().enumerate() {
            let state = anchor::state(superblock.anchor.load(Ordering::Relaxed));
            let here = marks::count(&superblock.marks, FREE) as usize;
            assert_eq!(state == anchor::LISTED, listed.contains(&(i as u32 + 1)));
            if state == anchor::LISTED || state == anchor::FULL {
                assert!(here == 0 || state == anchor::LISTED, "free blocks that no thread gets");
                free += here;
            }
        }
        free
    }
}

/// Everything up to this number of preemptions.
fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(f);
}

fn refill_against_spills() {
    let heap = Heap::new(1);
    heap.spill(1, 0);
    let (one, two) = (heap.clone(), heap.clone());
    let spiller = thread::spawn(move || one.spill(1, 1));
    let refiller = thread::spawn(move || two.refill());
    let mine = heap.refill().map_or(0, |(_, claimed)| claimed);
    spiller.join().unwrap();
    let theirs = refiller.join().unwrap().map_or(0, |(_, claimed)| claimed);
    assert_eq!(mine & theirs, 0, "given out twice");
    assert_eq!(heap.check() as u32 + (mine | theirs).count_ones(), 2, "lost");
}

#[test]
fn no_block_is_lost_or_given_out_twice_by_refills_and_spills() {
    model(4, refill_against_spills);
}

#[test]
fn a_refill_that_does_not_look_for_new_free_blocks_is_noticed() {
    let found = std::panic::catch_unwind(|| {
        model(3, || {
            plant(Bug::RefillUnchecked);
            refill_against_spills();
        });
    });
    plant(Bug::None);
    assert!(found.is_err());
}

#[test]
fn a_head_that_comes_back_is_not_taken_for_unchanged() {
    model(4, || {
        let heap = Heap::new(3);
        heap.push(2);
        heap.push(1);
        let other = heap.clone();
        // Pops two and pushes the first again, while we pop: without the counter our pop would make
        // the second first.
        let thread = thread::spawn(move || {
            let (a, b) = (other.pop(), other.pop());
            if let Some(a) = a {
                other.push(a);
            }
            b
        });
        let mine = heap.pop();
        let theirs = thread.join().unwrap();
        let mut all: Vec<u32> = mine.into_iter().chain(theirs).collect();
        while let Some(reference) = heap.pop() {
            all.push(reference);
        }
        all.sort_unstable();
        assert_eq!(all, [1, 2]);
    });
}

#[test]
fn a_chain_that_is_swapped_out_and_put_back_is_whole() {
    model(4, || {
        let heap = Heap::new(3);
        heap.push(2);
        heap.push(1);
        let (one, two) = (heap.clone(), heap.clone());
        let scavenger = thread::spawn(move || {
            let first = list::take_all(&one.head);
            let mut last = first;
            while last != 0 && one.get(last).next.load(Ordering::Relaxed) != 0 {
                last = one.get(last).next.load(Ordering::Relaxed) as u32;
            }
            if last != 0 {
                list::push(&one.head, first, &one.get(last).next);
            }
        });
        let popper = thread::spawn(move || two.pop());
        heap.push(3);
        scavenger.join().unwrap();
        let mut all: Vec<u32> = popper.join().unwrap().into_iter().collect();
        while let Some(reference) = heap.pop() {
            all.push(reference);
        }
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3]);
    });
}

#[test]
fn a_superblock_is_retired_only_when_no_thread_has_a_block_of_it() {
    model(4, || {
        let heap = Heap::new(1);
        heap.spill(1, 0);
        let (one, two) = (heap.clone(), heap.clone());
        let spiller = thread::spawn(move || one.spill(1, 1));
        let refiller = thread::spawn(move || two.refill());
        let retired = heap.scavenge();
        spiller.join().unwrap();
        let claimed = refiller.join().unwrap().map_or(0, |(_, claimed)| claimed);
        assert!(retired.is_none() || claimed == 0);
        let free = heap.check();
        if retired.is_none() {
            assert_eq!(free as u32 + claimed.count_ones(), 2);
        }
    });
}

#[test]
fn an_announcement_that_comes_late_harms_no_later_life() {
    model(4, || {
        let heap = Heap::new(1);
        heap.spill(1, 0);
        let one = heap.clone();
        // Its announcement may come after the superblock was retired and set up anew.
        let spiller = thread::spawn(move || one.spill(1, 1));
        if heap.scavenge().is_some() {
            let superblock = heap.get(1);
            assert!(anchor::take(&superblock.anchor));
            superblock.marks.iter().for_each(|mark| mark.store(CACHED, Ordering::Relaxed));
            anchor::leave(&superblock.anchor, anchor::FULL);
            heap.touch(1, 0);
            heap.spill(1, 0);
        }
        spiller.join().unwrap();
        let free = heap.check();
        assert!(free == 1 || free == 2);
    });
}

/// Four superblocks of a puddle.
struct Puddle {
    anchors: Vec<AtomicU64>,
    hints: AtomicU64,
    owned: Vec<UnsafeCell<u32>>,
}

impl runs::RunWords for Puddle {
    fn anchor(&self, number: u32) -> &AtomicU64 {
        &self.anchors[number as usize]
    }
    fn hints(&self, _: u32) -> &AtomicU64 {
        &self.hints
    }
    fn len(&self) -> u32 {
        self.anchors.len() as u32
    }
}

#[test]
fn two_that_claim_runs_get_different_superblocks_and_all_come_back() {
    model(3, || {
        let puddle = Arc::new(Puddle {
            anchors: (0..3).map(|_| AtomicU64::new(anchor::FREE)).collect(),
            hints: AtomicU64::new(0b111),
            owned: (0..3).map(|_| UnsafeCell::new(0)).collect(),
        });
        let work = |puddle: &Puddle, count: u32| {
            if let runs::TakenRun::At(start) = runs::take(puddle, count, 1) {
                for number in start..start + count {
                    // SAFETY: the checker panics if two threads are here at a time.
                    puddle.owned[number as usize].with_mut(|value| unsafe { *value += 1 });
                }
                runs::put(puddle, start, count);
            }
        };
        let other = puddle.clone();
        let thread = thread::spawn(move || work(&other, 2));
        work(&puddle, 2);
        thread.join().unwrap();
        // Nothing is lost, and every hint is set again.
        assert_eq!(runs::take(&*puddle, 3, 1), runs::TakenRun::At(0));
    });
}

/// A lock between processes of one thread each, by name; 9 has died.
struct Robust {
    word: AtomicU64,
    places: [AtomicU64; 2],
    /// What the lock protects: the checker finds two that are there at a time.
    data: UnsafeCell<u32>,
}

const DEAD: u64 = 9;

struct Process(u64);

impl robust::OwnerLiveness for Process {
    type Error = core::convert::Infallible;

    fn me(&self) -> u64 {
        self.0
    }

    fn has_ended(&self, owner: u64) -> Result<bool, Self::Error> {
        Ok(owner == DEAD)
    }
}

impl Robust {
    fn new(word: u64, place: u64) -> Arc<Self> {
        Arc::new(Self {
            word: AtomicU64::new(word),
            places: [AtomicU64::new(place), AtomicU64::new(0)],
            data: UnsafeCell::new(0),
        })
    }

    /// Writes as process `me`; whether it is told that the last owner died.
    fn write(&self, me: u64) -> u32 {
        let Ok(taken) = robust::write(&self.word, &self.places, &Process(me));
        // SAFETY: the checker panics if two threads are here at a time.
        self.data.with_mut(|data| unsafe { *data += 1 });
        robust::unlock(&self.word);
        u32::from(taken == robust::LockTaken::Recovered)
    }

    /// Reads as process `me`, likewise.
    fn read(&self, me: u64) -> u32 {
        let Ok((at, taken)) = robust::read(&self.word, &self.places, me as usize - 1, &Process(me));
        // SAFETY: the checker panics if a thread writes meanwhile.
        self.data.with(|data| assert!(unsafe { *data } < 3));
        robust::unlock(&self.places[at]);
        u32::from(taken == robust::LockTaken::Recovered)
    }
}

/// What two processes do with a lock at a time; how many were told that its owner has died.
fn both(lock: &Arc<Robust>, one: fn(&Robust, u64) -> u32, other: fn(&Robust, u64) -> u32) -> u32 {
    let its = lock.clone();
    let thread = thread::spawn(move || one(&its, 1));
    let told = other(lock, 2);
    told + thread.join().unwrap()
}

#[test]
fn writers_and_readers_of_a_robust_lock_are_never_in_together() {
    model(3, || assert_eq!(both(&Robust::new(0, 0), Robust::write, Robust::write), 0));
    model(3, || assert_eq!(both(&Robust::new(0, 0), Robust::write, Robust::read), 0));
    model(3, || assert_eq!(both(&Robust::new(0, 0), Robust::read, Robust::read), 0));
}

#[test]
fn a_robust_lock_of_a_dead_process_goes_to_one_who_is_told() {
    model(3, || assert_eq!(both(&Robust::new(DEAD, 0), Robust::write, Robust::write), 1));
    model(3, || assert_eq!(both(&Robust::new(DEAD, 0), Robust::write, Robust::read), 1));
    // A reader that died keeps no thread out, and no thread is told.
    model(3, || assert_eq!(both(&Robust::new(0, DEAD), Robust::write, Robust::write), 0));
    model(3, || assert_eq!(both(&Robust::new(DEAD, DEAD), Robust::write, Robust::read), 1));
}

#[test]
fn faults_of_a_robust_lock_are_noticed() {
    type Does = fn(&Robust, u64) -> u32;
    let cases: [(Bug, u64, Does); 3] = [
        (Bug::ReaderLooksFirst, 0, Robust::read),
        (Bug::ReadersNotAwaited, 0, Robust::read),
        (Bug::TakenOverInSilence, DEAD, Robust::write),
    ];
    for (bug, owner, does) in cases {
        let found = std::panic::catch_unwind(|| {
            model(3, move || {
                plant(bug);
                assert_eq!(
                    both(&Robust::new(owner, 0), Robust::write, does),
                    u32::from(owner == DEAD)
                );
            });
        });
        plant(Bug::None);
        assert!(found.is_err(), "{bug:?}");
    }
}

/// The gate, and how many threads of a living member and of a dead one are inside.
struct Gate {
    closed: AtomicU64,
    living: AtomicU64,
}

/// What a sweep does: a superblock that is LISTED and in no list was in the hands of the dead.
fn sweep(heap: &Heap, gate: &Gate) {
    gate::close(&gate.closed);
    while !gate::is_quiet(&gate.living) {
        thread::yield_now();
    }
    let mut listed = Vec::new();
    let mut reference = heap.head.load(Ordering::Acquire) as u32;
    while reference != 0 {
        assert!(!listed.contains(&reference), "a ring");
        listed.push(reference);
        reference = heap.get(reference).next.load(Ordering::Acquire) as u32;
    }
    for reference in 1..=heap.superblocks.len() as u32 {
        let superblock = heap.get(reference);
        if anchor::state(superblock.anchor.load(Ordering::Acquire)) == anchor::LISTED
            && !listed.contains(&reference)
        {
            heap.push(reference);
        }
        // In no thread's hands.
        if anchor::state(superblock.anchor.load(Ordering::Acquire)) == anchor::LISTED {
            // SAFETY: the checker panics if two threads are here at a time.
            superblock.whole.with_mut(|value| unsafe { *value += 1 });
        }
    }
    gate::open(&gate.closed);
}

/// A dead member has superblock 1 in hands; a living one refills and spills while another one
/// sweeps.
fn sweep_against_a_refill() {
    let heap = Heap::new(2);
    heap.spill(1, 0);
    heap.spill(2, 0);
    assert_eq!(heap.pop(), Some(2));
    assert_eq!(heap.pop(), Some(1));
    heap.push(2);
    let gate = Arc::new(Gate { closed: AtomicU64::new(0), living: AtomicU64::new(0) });
    let (one, its) = (heap.clone(), gate.clone());
    let living = thread::spawn(move || {
        while !gate::enter(&its.closed, &its.living) {
            thread::yield_now();
        }
        let got = one.refill();
        if let Some((reference, _)) = got {
            // SAFETY: as in `sweep`.
            one.get(reference).whole.with_mut(|value| unsafe { *value += 1 });
        }
        gate::leave(&its.living);
        got.map_or(0, |(_, claimed)| claimed.count_ones())
    });
    sweep(&heap, &gate);
    let claimed = living.join().unwrap();
    // Two blocks were free, one in the dead hand.
    assert_eq!(heap.check() as u32 + claimed, 2);
}

#[test]
fn a_sweep_behind_the_gate_and_a_refill_lose_nothing_and_list_nothing_twice() {
    model(3, sweep_against_a_refill);
}

#[test]
fn a_gate_that_is_not_looked_at_is_noticed() {
    let found = std::panic::catch_unwind(|| {
        model(3, || {
            // Planted in the thread that the model runs in, which all its threads share.
            plant(Bug::GateIgnored);
            sweep_against_a_refill();
        });
    });
    plant(Bug::None);
    assert!(found.is_err());
}
