//! Random lives of a store against a model: random transactions, a crash at a random event,
//! recovery (which may be interrupted too), and on. What was acknowledged is there; what was not is
//! there as a whole or not at all.
//!
//! A failure names its seed; `CENOTE_LOG_SEED` repeats one, `CENOTE_LOG_SEEDS` runs more.

use crate::common::*;
use cenote_log::{CrashKind, LogWriter, Outcome};

/// Bytes of each puddle that transactions change; what lies above is where fresh blocks are
/// written.
const OWNED: usize = 512;

/// The word of the blocks' marks. The test does not compare it after a loss of power.
const MARKS_ADDR: u64 = DATA_ADDR + (DATA + OWNED) as u64;

/// A state that may be found: the owned bytes, and the fresh block of the transaction that led to
/// it.
#[derive(Clone, PartialEq)]
struct Known {
    owned: Vec<u8>,
    fresh: Option<(u64, Vec<u8>)>,
}

fn owned(data: &[u8]) -> Vec<u8> {
    [&data[..OWNED], &data[DATA..DATA + OWNED], &data[2 * DATA..]].concat()
}

impl Known {
    fn is(&self, world: &World) -> bool {
        owned(&world.data()) == self.owned
            && self
                .fresh
                .as_ref()
                .is_none_or(|(addr, bytes)| world.read(*addr, bytes.len()) == *bytes)
    }
}

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.next() as u8).collect()
}

/// A range of the owned bytes of one puddle, not in `taken`.
fn range(random: &mut Random, taken: &[(u64, usize)]) -> Option<(u64, usize)> {
    let max = if random.below(6) == 0 { OWNED } else { 40 };
    let len = 1 + random.below(max);
    let addr = DATA_ADDR + (random.below(2) * DATA + random.below(OWNED - len + 1)) as u64;
    let free = taken.iter().all(|&(a, l)| addr + len as u64 <= a || a + l as u64 <= addr);
    free.then_some((addr, len))
}

/// One transaction; `block` is the number of a free block. Returns what is true once it
/// is committed; `None` if it was aborted.
fn transaction(
    world: &World,
    writer: &mut LogWriter,
    random: &mut Random,
    power: bool,
    block: u64,
) -> Option<Known> {
    let mut tx = Tx::begin(world, writer);
    let mut old = Vec::new();
    let (mut changed, mut set) = (Vec::new(), Vec::new());
    let mut fresh = None;
    for _ in 0..1 + random.below(6) {
        match random.below(8) {
            0..=3 => {
                // As `cenote-tx`: a range is logged once.
                if let Some((addr, len)) = range(random, &[&changed[..], &set[..]].concat()) {
                    old.push((addr, world.read(addr, len)));
                    tx.change(addr, &bytes(random, len));
                    changed.push((addr, len));
                }
            }
            4..=5 => {
                if let Some((addr, len)) = range(random, &changed) {
                    tx.set(addr, &bytes(random, len));
                    set.push((addr, len));
                }
            }
            6 if fresh.is_none() => {
                let addr = DATA_ADDR + OWNED as u64 + block * 64;
                let len = 1 + random.below(64);
                let new = bytes(random, len);
                match random.below(2) {
                    0 => tx.fresh(addr, &new),
                    _ => tx.allocate(addr, &new, MARKS_ADDR, 1 << block),
                }
                fresh = Some((addr, new));
            }
            _ => tx.volatile(random.next(), &[1; 9]),
        }
    }
    if tx.writer.entries() == 0 {
        return None;
    }
    if random.below(6) == 0 {
        for (addr, bytes) in old.iter().rev() {
            world.write(*addr, bytes);
            // SAFETY: `at` checks the range.
            unsafe { world.persistence.flush(world.at(*addr, bytes.len()), bytes.len()) };
        }
        tx.writer.fence();
        tx.writer.finish();
        tx.writer.fence();
        return None;
    }
    let how = match random.below(3) {
        _ if !power => Commit::Process,
        0 => Commit::Marked,
        1 => Commit::Sealed,
        _ => Commit::Lazy,
    };
    tx.commit(how);
    Some(Known { owned: owned(&world.data()), fresh })
}

fn check(allowed: &[Known], image: &Image, crash: CrashKind) -> (Outcome, usize) {
    let world = World::from_image(image);
    let outcome = world.replay(crash);
    let found = allowed.iter().rposition(|known| known.is(&world));
    match found {
        Some(found) => (outcome, found),
        None => panic!("{crash}: {outcome:?} leaves a state that is none of {}", allowed.len()),
    }
}

/// One life: transactions until the crash. Returns the image that the next life begins with.
fn life(image: Option<&Image>, random: &mut Random, power: bool) -> Image {
    let mut world = match image {
        Some(image) => World::from_image(image),
        None => World::new(cenote_medium::Persistence::PROCESS),
    };
    world.record();
    let mut writer = world.writer();
    if random.below(4) == 0 {
        writer.skip_to_last_base();
    }
    // What is acknowledged, and from which event on.
    let mut acknowledged = vec![(0, Known { owned: owned(&world.data()), fresh: None })];
    for block in 0..1 + random.below(6) {
        if let Some(known) = transaction(&world, &mut writer, random, power, block as u64) {
            acknowledged.push((world.recorder().events(), known));
        }
    }
    let cuts = world.recorder().take_cuts();
    if cuts.is_empty() {
        return world.image();
    }
    let allowed = |event: usize| {
        let last = acknowledged.iter().rposition(|(from, _)| *from <= event).unwrap_or(0);
        acknowledged[last..(last + 2).min(acknowledged.len())]
            .iter()
            .map(|(_, k)| k.clone())
            .collect::<Vec<_>>()
    };
    for _ in 0..12 {
        let event = random.below(cuts.len());
        check(&allowed(event), &cuts[event].latest, CrashKind::Process);
        if power {
            cuts[event].for_each_image(&mut Random(random.next()), 4, &mut |image| {
                check(&allowed(event), image, CrashKind::Power);
            });
        }
    }
    // The crash that really happens; recovery is interrupted now and then, by a loss of power.
    let event = random.below(cuts.len());
    let (mut image, mut crash) = if power && random.below(2) == 0 {
        let mut choose = Random(random.next());
        (cuts[event].image(&mut |n| choose.below(n)), CrashKind::Power)
    } else {
        (cuts[event].latest.clone(), CrashKind::Process)
    };
    let (_, decided) = check(&allowed(event), &image, crash);
    while random.below(3) == 0 {
        let mut world = World::from_image(&image);
        world.record();
        world.replay(crash);
        let cuts = world.recorder().take_cuts();
        let cut = &cuts[random.below(cuts.len())];
        if power && crash == CrashKind::Power {
            let mut choose = Random(random.next());
            image = cut.image(&mut |n| choose.below(n));
        } else {
            image = cut.latest.clone();
            crash = CrashKind::Process;
        }
        let (_, again) = check(&allowed(event), &image, crash);
        assert_eq!(again, decided, "a repeated recovery decides otherwise");
    }
    let world = World::from_image(&image);
    let outcome = world.replay(crash);
    assert!(!matches!(outcome, Outcome::Quarantined(_)), "{outcome:?}");
    world.image()
}

fn lives(power: bool) {
    let number = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seeds = match number("CENOTE_LOG_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CENOTE_LOG_SEEDS").unwrap_or(if cfg!(miri) { 1 } else { 60 }),
    };
    // Miri takes a minute for a life.
    let count = if cfg!(miri) { 1 } else { 8 };
    for seed in seeds {
        let result = std::panic::catch_unwind(|| {
            let mut random = Random(seed);
            let mut image = None;
            for _ in 0..count {
                image = Some(life(image.as_ref(), &mut random, power));
            }
        });
        assert!(result.is_ok(), "CENOTE_LOG_SEED={seed} repeats this (power: {power})");
    }
}

#[test]
fn random_lives_at_power_keep_what_was_acknowledged() {
    lives(true);
}

#[test]
fn random_lives_at_process_keep_what_was_acknowledged() {
    lives(false);
}
