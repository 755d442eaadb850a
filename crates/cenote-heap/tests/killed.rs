//! Real processes on one heap, killed with SIGKILL: at each step of the protocol in turn, and at
//! any moment. (RAL-8)
//!
//! The main process is a member too, and is never killed. The others are this program again, told
//! by the environment what to do.

mod common;

use cenote_heap::{Heap as _, Inspect as _, TracedHeap, Trim as _};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, Step, plant, watch};
use cenote_testkit::child::again;
use cenote_testkit::environment::rounds;
use common::Random;
use common::shared::{Control, Files, KEPT, SharedBacking, WORKERS, Worker};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Heap = TracedHeap<SharedBacking>;

const SIZES: [u64; 12] = [16, 48, 64, 64, 64, 200, 400, 1000, 3000, 14_000, 70_000, 190_000];

/// Every step, and how often a process comes there before it stops.
const STEPS: [(Step, u64); 28] = [
    (Step::Popped, 3),
    (Step::Claimed, 2),
    (Step::Taken, 4),
    (Step::Described, 3),
    (Step::SetUp, 5),
    (Step::Spilled, 4),
    (Step::Announced, 3),
    (Step::Scavenging, 2),
    (Step::Retired, 1),
    (Step::PutOne, 4),
    (Step::Unhinted, 3),
    (Step::EndCut, 2),
    (Step::LargeTails, 3),
    (Step::LargeHead, 2),
    (Step::LargeFreed, 2),
    (Step::LargeIdle, 2),
    (Step::Grown, 1),
    (Step::Adopting, 1),
    (Step::Adopted, 1),
    (Step::Joined, 1),
    (Step::TrimTaken, 2),
    (Step::HoleDeclared, 2),
    (Step::TrimPunched, 2),
    (Step::HoleFilled, 2),
    (Step::SweepClosed, 1),
    (Step::SweepHand, 1),
    (Step::SweepFreed, 2),
    (Step::SweepDone, 1),
];

/// Steps that only a member comes to which trims now and then.
const TRIMS: [Step; 4] = [Step::TrimTaken, Step::HoleDeclared, Step::TrimPunched, Step::HoleFilled];

/// Allocates and frees as `random` says, in this worker's places.
fn operate(heap: &Heap, worker: &Worker, random: &mut Random) {
    let at = random.below(KEPT as u64) as usize;
    match worker.blocks[at].load(Ordering::Acquire) {
        0 => {
            let size = SIZES[random.below(SIZES.len() as u64) as usize];
            worker.alloc(heap, at, size, TypeId(1 + random.below(3)));
        }
        given if given & 1 != 0 => {}
        addr if random.below(4) == 0 => worker.blocks[at].store(addr | 1, Ordering::Release),
        _ => worker.free(heap, at),
    }
    worker.operations.fetch_add(1, Ordering::Relaxed);
}

static CONTROL: AtomicPtr<Control> = AtomicPtr::new(std::ptr::null_mut());
static LEFT: AtomicU64 = AtomicU64::new(0);

/// Here the process is killed.
fn stand_still() {
    if LEFT.fetch_sub(1, Ordering::Relaxed) != 1 {
        return;
    }
    // SAFETY: set by `child`, which never ends after that.
    let control = unsafe { &*CONTROL.load(Ordering::Acquire) };
    control.reached.store(1, Ordering::Release);
    loop {
        std::thread::park();
    }
}

/// Not a test by itself: the other processes.
#[test]
fn child() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let Some(base) = number("MEMBERS_BASE") else { return };
    let files = Files::found(&std::env::var("MEMBERS_PATH").unwrap(), base);
    let backing = files.real();
    let control: *const Control = backing.control();
    CONTROL.store(control.cast_mut(), Ordering::Release);
    // SAFETY: mapped until this process ends: `files` and the pool stay.
    let control = unsafe { &*control };
    let mine = workers_of(control, number("MEMBERS_WORKER").unwrap() as usize);
    mine.iter().for_each(|worker| worker.who.store(backing.who, Ordering::Release));
    let step = number("MEMBERS_STEP").map(|step| STEPS[step as usize]);
    let trims = step.is_some_and(|(step, _)| TRIMS.contains(&step));
    if let Some((step, times)) = step {
        LEFT.store(times, Ordering::Relaxed);
        watch(Some(Box::new(move |reached| {
            if reached == step {
                stand_still();
            }
        })));
    }
    let heap = Heap::open(backing).unwrap();
    let (seed, operations) =
        (number("MEMBERS_SEED").unwrap(), number("MEMBERS_OPERATIONS").unwrap());
    let work = |worker: &Worker, seed: u64| {
        let (mut random, mut left) = (Random(seed), operations);
        while left > 0 && control.stop.load(Ordering::Relaxed) == 0 {
            operate(&heap, worker, &mut random);
            if trims && left % 32 == 0 {
                heap.trim().unwrap();
            }
            left -= 1;
        }
    };
    std::thread::scope(|scope| {
        if number("MEMBERS_THREADS") == Some(2) {
            scope.spawn(|| work(mine[1], !seed));
        }
        work(mine[0], seed);
    });
    // Its blocks stay where they are noted; what it has in caches goes back.
    drop(heap);
    mine.iter().for_each(|worker| worker.replay());
    control.reached.store(2, Ordering::Release);
}

/// What the two threads of a process have.
fn workers_of(control: &Control, worker: usize) -> [&Worker; 2] {
    [&control.workers[worker], &control.workers[worker + WORKERS / 2]]
}

/// Starts a process: with one thread that stops at a step, or with two.
fn start(files: &Files, worker: usize, seed: u64, operations: u64, step: Option<usize>) -> Child {
    let mut command = again("child");
    command
        .env("MEMBERS_BASE", files.base.to_string())
        .env("MEMBERS_PATH", &files.path)
        .env("MEMBERS_WORKER", worker.to_string())
        .env("MEMBERS_SEED", seed.to_string())
        .env("MEMBERS_OPERATIONS", operations.to_string())
        .stdout(Stdio::null());
    match step {
        Some(step) => command.env("MEMBERS_STEP", step.to_string()),
        None => command.env("MEMBERS_THREADS", "2"),
    };
    command.spawn().unwrap()
}

fn wait_for(what: &str, is: impl Fn() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < Duration::from_secs(600), "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Runs a process up to a step, and kills it there.
fn kill_at(files: &Files, control: &Control, worker: usize, seed: u64, step: usize) {
    control.reached.store(0, Ordering::Release);
    let mut child = start(files, worker, seed, 200_000, Some(step));
    wait_for("a step is reached", || control.reached.load(Ordering::Acquire) != 0);
    let reached = control.reached.load(Ordering::Acquire);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(reached, 1, "{:?} was never reached, seed {seed}", STEPS[step].0);
    workers_of(control, worker).iter().for_each(|worker| worker.replay());
}

/// Frees what a worker that is dead, or has ended, had; verified by its stamps.
fn free_all(heap: &Heap, worker: &Worker) {
    for block in &worker.blocks {
        let addr = block.swap(0, Ordering::AcqRel) & !1;
        if addr != 0 {
            worker.verify(addr, heap.usable_size(addr).unwrap());
            heap.free(addr).unwrap();
        }
    }
}

/// All and only the blocks that `workers` have are allocated; then everything is freed, and every
/// superblock can be had.
fn settle(heap: &Heap, control: &Control, context: &str) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let noted = |w: &Worker| {
                w.blocks.iter().filter(|b| b.load(Ordering::Acquire) != 0).count() as u64
            };
            let expected: u64 = control.workers.iter().map(noted).sum();
            let report = heap.check(None).unwrap();
            assert!(
                report.miscounted.is_empty() && report.damage.is_empty(),
                "{context}: {report:?}"
            );
            assert_eq!(
                report.stats.blocks, expected,
                "{context}: blocks that no thread has, or that are lost"
            );
            control.workers.iter().for_each(|worker| free_all(heap, worker));
        });
        // A scope by itself does not wait until caches are given up.
        thread.join().unwrap();
        let mut all = Vec::new();
        while let Ok(block) = heap.alloc(65_536, 16, TypeId(9)) {
            all.push(block.addr.as_ptr() as u64);
        }
        let stats = heap.stats().unwrap();
        assert_eq!(stats.cached_blocks, 0, "{context}");
        let whole = stats.superblocks - stats.metadata_superblocks;
        assert_eq!(all.len() as u64, whole, "{context}: superblocks are lost");
        all.iter().for_each(|&addr| heap.free(addr).unwrap());
    });
}

/// A pool of an earlier session, with two puddles half full; no member is in it.
fn used_pool(seed: u64) -> Files {
    let files = Files::new(common::room_for(15), 12 << 20);
    let heap = Heap::open(files.played(100)).unwrap();
    let worker = &heap.backing().control().workers[0];
    let mut random = Random(seed);
    for at in 0..KEPT / 4 {
        let size = SIZES[random.below(SIZES.len() as u64) as usize];
        worker.alloc(&heap, at, size, TypeId(1 + random.below(3)));
        if random.below(3) == 0 && worker.blocks[at].load(Ordering::Relaxed) != 0 {
            worker.free(&heap, at);
        }
    }
    heap.backing().kill();
    std::mem::forget(heap);
    files
}

fn kill_at_each_step(seed: u64) {
    (0..STEPS.len()).for_each(|step| kill_at_step(seed, step));
}

/// One process is killed at that step, while two others have the pool open and go on.
fn kill_at_step(seed: u64, step: usize) {
    let name = STEPS[step].0;
    let files = used_pool(seed);
    let main = Heap::open(files.played(1)).unwrap();
    let control = main.backing().control();
    let context = format!("{name:?}, seed {seed}");
    // Another one of the living, which has blocks and caches of its own.
    let other = Heap::open(files.played(2)).unwrap();
    let mut random = Random(seed ^ 1);
    (0..400).for_each(|_| operate(&other, &control.workers[1], &mut random));
    let sweeps = STEPS.iter().position(|(s, _)| *s == Step::SweepClosed).unwrap();
    if step >= sweeps {
        // A sweep needs a dead member: with a superblock in hands, and with blocks in caches.
        kill_at(&files, control, 2, seed, 0);
    }
    kill_at(&files, control, 3, seed, step);
    // The living members go on before anything is put right.
    (0..400).for_each(|_| operate(&other, &control.workers[1], &mut random));
    main.sweep_dead().unwrap();
    assert_eq!(main.sweep_dead().unwrap().members, 0, "{context}");
    (0..400).for_each(|_| operate(&other, &control.workers[1], &mut random));
    drop(other);
    settle(&main, control, &context);
}

#[test]
fn a_member_that_is_killed_at_any_step_loses_nothing_and_harms_no_other() {
    (1..=2).for_each(kill_at_each_step);
}

#[test]
fn hands_that_a_sweep_forgets_are_noticed() {
    let hands = [
        Step::Popped,
        Step::Claimed,
        Step::Taken,
        Step::SetUp,
        Step::Announced,
        Step::Scavenging,
        Step::Retired,
        Step::Unhinted,
        Step::LargeTails,
        Step::LargeHead,
        Step::LargeFreed,
        Step::LargeIdle,
        Step::TrimTaken,
        Step::HoleDeclared,
        Step::TrimPunched,
    ];
    for (at, _) in STEPS.iter().enumerate().filter(|(_, (step, _))| hands.contains(step)) {
        let found = std::panic::catch_unwind(|| {
            plant(Bug::SweepForgetsHands);
            kill_at_step(1, at);
        });
        plant(Bug::None);
        assert!(found.is_err(), "{:?}", STEPS[at].0);
    }
}

/// Kills `kills` times one of `workers` processes at random moments, while the others, and this
/// one, go on.
fn kill_at_random(kills: u64, workers: usize, seed: u64) {
    let files = Files::new(1 << 20, 12 << 20);
    let main = Heap::open(files.played(1)).unwrap();
    let control = main.backing().control();
    let mut random = Random(seed);
    let mut children: Vec<Child> =
        (1..=workers).map(|w| start(&files, w, random.next(), u64::MAX, None)).collect();
    let mut swept = 0;
    for kill in 0..kills {
        let victim = random.below(workers as u64) as usize;
        let its = workers_of(control, victim + 1);
        // It has come to work, and works a little more.
        let done =
            || its.iter().map(|worker| worker.operations.load(Ordering::Relaxed)).sum::<u64>();
        let before = done();
        wait_for("a member works", || done() > before + 200);
        let until = Instant::now() + Duration::from_micros(random.below(3000));
        while Instant::now() < until {
            operate(&main, &control.workers[0], &mut random);
            // What others have given to this process.
            let from = 1 + random.below(workers as u64) as usize;
            let from = workers_of(control, from)[random.below(2) as usize];
            let cell = &from.blocks[random.below(KEPT as u64) as usize];
            let addr = cell.load(Ordering::Acquire);
            if addr & 1 != 0 {
                from.verify(addr & !1, main.usable_size(addr & !1).unwrap());
                main.free(addr & !1).unwrap();
                cell.store(0, Ordering::Release);
            }
        }
        children[victim].kill().unwrap();
        children[victim].wait().unwrap();
        its.iter().for_each(|worker| worker.replay());
        match random.below(3) {
            0 => swept += main.sweep_dead().map_or(0, |swept| swept.members),
            1 => its.iter().for_each(|worker| free_all(&main, worker)),
            // The next one goes on with its blocks, and sweeps when it joins.
            _ => {}
        }
        children[victim] = start(&files, victim + 1, random.next(), u64::MAX, None);
        if kill % 50 == 49 {
            println!("{} kills, {swept} swept by the main process", kill + 1);
        }
    }
    control.stop.store(1, Ordering::Release);
    for mut child in children {
        assert!(child.wait().unwrap().success(), "a member failed, seed {seed}");
    }
    let _ = main.sweep_dead().unwrap();
    settle(&main, control, &format!("seed {seed}"));
}

#[test]
fn processes_that_are_killed_at_random_moments_harm_no_other() {
    kill_at_random(rounds(200), 3, 1);
}

/// How long a sweep holds others up follows the largest puddle and the number of superblocks, not
/// the blocks.
#[test]
fn a_sweep_of_a_large_heap_holds_others_up_for_a_moment() {
    let files = Files::new(64 << 20, 256 << 20);
    let main = Heap::open(files.played(1)).unwrap();
    let mut blocks = 0u64;
    while main.alloc(64, 16, TypeId(1)).is_ok() {
        blocks += 1;
        if blocks == 3_500_000 {
            break;
        }
    }
    let step = STEPS.iter().position(|(step, _)| *step == Step::SetUp).unwrap();
    kill_at(&files, main.backing().control(), 3, 1, step);
    let swept = main.sweep_dead().unwrap();
    println!("among {blocks} blocks: {swept:?}");
    assert!(swept.members == 1 && blocks > 3_000_000);
    assert!(swept.longest_pause < Duration::from_secs(1), "{swept:?}");
}

#[test]
fn two_thousand_kills() {
    (2..6).for_each(|seed| kill_at_random(rounds(500), 3, seed));
}
