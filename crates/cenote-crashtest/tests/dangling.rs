//! Pointers that dangle in reachable data, through the safe interface, and power that fails: what
//! is free is no value for the next opener of the pool, whatever leads there and whatever a
//! transaction that was not committed had written there.
//!
//! Each scenario ends in a transaction that is not committed, and looks at what a loss of power may
//! leave then: everything old, everything new, and draws.

use cenote::{Error, FormatOptions, Persist, Pool, Ptr, Reader, Result, Store};
use cenote_crashtest::rig::{WINDOW_LEN, open_options, pool_options, window_base};
use cenote_medium::Durability;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{Image, SimMedium, SimOptions};
use std::cell::Cell;
use std::sync::Arc;

/// A value of which not every pattern of bits is one.
#[derive(Persist)]
#[persist(name = "dangling::Flagged")]
#[repr(C)]
struct Flagged {
    flag: bool,
    twin: u64,
}

/// Where pointers are kept too long.
#[derive(Persist)]
#[persist(name = "dangling::Keeper")]
struct Keeper {
    kept: [Option<Ptr<Flagged>>; 3],
}

/// A quarter of a superblock, three times and a little less.
#[derive(Persist)]
#[persist(name = "dangling::Page")]
struct Page {
    words: [u64; 2000],
}

const VALUE: u64 = 0x1234;

struct Scene {
    sim: Arc<SimMedium>,
    store: Store,
    pool: Pool,
}

impl Scene {
    fn new(place: usize, superblocks: u64) -> Self {
        let sim = SimMedium::new(SimOptions::new(Durability::Power));
        let window = Some(window_base(7100 + place));
        let format = FormatOptions { window_base: window, window_len: WINDOW_LEN, uuid: None };
        cenote_store::format(sim.clone(), &format).expect("format");
        let store = Store::open_on(sim.clone(), &open_options()).expect("open");
        let pool = store.create_pool("p", &pool_options(superblocks)).expect("a pool");
        Self { sim, store, pool }
    }

    /// Closes the store and opens it again: nothing is in caches then.
    fn reopened(self) -> Self {
        let Self { sim, store, pool } = self;
        drop(pool);
        store.close().expect("close");
        let store = Store::open_on(sim.clone(), &open_options()).expect("open");
        let pool = store.pool("p").expect("the pool");
        Self { sim, store, pool }
    }

    /// Images of what a loss of power leaves while a transaction is under way that takes `blocks`
    /// values.
    fn interrupted(self, blocks: u64) -> Vec<Image> {
        let mut images = Vec::new();
        let ended = self.pool.write(|tx| -> Result<()> {
            for number in 0..blocks {
                tx.alloc(Flagged { flag: true, twin: 0xbad0 + number })?;
            }
            let state = self.sim.state_now();
            images.extend([state.image_oldest(), state.image_latest()]);
            for seed in 0..60u64 {
                let drawn = Cell::new(seed);
                images.push(state.image(&mut |_, alternatives| {
                    let next = drawn
                        .get()
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    drawn.set(next);
                    // Some are mostly old, some mostly new.
                    match seed % 3 {
                        0 if next >> 61 != 0 => 0,
                        1 if next >> 61 != 0 => alternatives - 1,
                        _ => (next >> 33) as usize % alternatives,
                    }
                }));
            }
            Err(Error::Aborted("not committed".into()))
        });
        assert!(matches!(ended, Err(Error::Aborted(_))), "{ended:?}");
        let Self { store, pool, .. } = self;
        drop(pool);
        store.abandon();
        images
    }
}

/// In how many of the images a pointer at one of these places leads to a value.
fn shown(images: &[Image], places: &[usize]) -> usize {
    let shows = |image: &&Image| {
        let store =
            Store::open_on(SimMedium::from_image_unrecorded(image), &open_options()).expect("open");
        let pool = store.pool("p").expect("the pool");
        let report = pool.traced().expect("power failed");
        assert!(report.revived_blocks == 0 && report.damage.is_empty(), "{report:?}");
        let shows = {
            let view = pool.read().expect("a view");
            let keeper = view
                .get(view.root::<Keeper>().expect("a root").expect("it is set"))
                .expect("a keeper");
            places.iter().any(|&place| {
                let kept = keeper.kept[place].expect("it was kept");
                match view.get(kept) {
                    Ok(_) => true,
                    Err(Error::Dangling { .. }) => false,
                    Err(error) => panic!("{error}"),
                }
            })
        };
        drop(pool);
        store.abandon();
        shows
    };
    images.iter().filter(shows).count()
}

fn keep(pool: &Pool, kept: [Option<Ptr<Flagged>>; 3]) -> Result<()> {
    pool.write(|tx| {
        let keeper = tx.alloc(Keeper { kept })?;
        tx.set_root(keeper)
    })
}

fn flagged(pool: &Pool) -> Result<Ptr<Flagged>> {
    pool.write(|tx| tx.alloc(Flagged { flag: false, twin: VALUE }))
}

#[test]
fn a_pointer_that_was_kept_too_long_shows_nothing_after_a_loss_of_power() -> Result<()> {
    let scene = Scene::new(0, 4);
    let pool = &scene.pool;
    let [freed, uncommitted, live] = [flagged(pool)?, flagged(pool)?, flagged(pool)?];
    keep(pool, [Some(freed), Some(uncommitted), Some(live)])?;
    pool.write(|tx| tx.free(freed).and_then(|()| tx.free(uncommitted)))?;
    let images = scene.interrupted(2);
    assert_eq!(shown(&images, &[0, 1]), 0, "of {} images", images.len());
    assert_eq!(shown(&images, &[2]), images.len(), "what is committed is there");
    Ok(())
}

/// Marks of blocks that nothing leads to are durable as well: only tracing gives such blocks back.
#[test]
fn marks_that_are_not_computed_again_after_a_loss_of_power() -> Result<()> {
    for (place, bug) in [(5, Bug::None), (6, Bug::TraceDueForgotten)] {
        let scene = Scene::new(place, 4);
        flagged(&scene.pool)?;
        keep(&scene.pool, [None; 3])?;
        for image in scene.interrupted(1) {
            plant(bug);
            let opened = Store::open_on(SimMedium::from_image_unrecorded(&image), &open_options());
            plant(Bug::None);
            let store = opened?;
            let pool = store.pool("p")?;
            let report = pool.check()?;
            assert_eq!(
                (report.leaked_blocks, report.stats.blocks),
                if bug == Bug::None { (0, 1) } else { (1, 2) }
            );
            drop(pool);
            store.abandon();
        }
    }
    Ok(())
}

#[test]
fn a_leak_that_is_given_back_does_not_come_back_through_a_pointer_that_was_kept() -> Result<()> {
    for (place, bug) in [(1, Bug::None), (2, Bug::TraceMarkNotFlushed)] {
        let scene = Scene::new(place, 4);
        let pool = &scene.pool;
        // Committed, and never attached; and another one, so that the superblock stays in use.
        let [leak, live] = [flagged(pool)?, flagged(pool)?];
        keep(pool, [None, None, Some(live)])?;
        plant(bug);
        let collected = pool.collect();
        plant(Bug::None);
        assert_eq!(collected?.freed_blocks, 1);
        keep(pool, [Some(leak), None, Some(live)])?;
        let images = scene.interrupted(1);
        let shown = shown(&images, &[0]);
        assert_eq!(shown > 0, bug != Bug::None, "{bug:?}: in {shown} of {} images", images.len());
    }
    Ok(())
}

#[test]
fn what_a_superblock_held_before_is_not_taken_for_marks() -> Result<()> {
    let scene = Scene::new(3, 2);
    // The first superblock for the keeper, the other one for all else, one after the other.
    keep(&scene.pool, [None; 3])?;
    let first = flagged(&scene.pool)?;
    scene.pool.write(|tx| -> Result<()> {
        let keeper = tx.root::<Keeper>()?.expect("it is set");
        tx.get_mut(keeper)?.kept[0] = Some(first);
        tx.free(first)
    })?;
    let scene = scene.reopened();
    let pages = scene.pool.write(|tx| -> Result<Vec<_>> {
        (0..4).map(|_| tx.alloc(Page { words: [u64::MAX; 2000] })).collect()
    })?;
    assert!(
        pages.iter().any(|page| page.addr() >> 16 == first.addr() >> 16),
        "in the same superblock"
    );
    scene.pool.write(|tx| pages.into_iter().try_for_each(|page| tx.free(page)))?;
    let scene = scene.reopened();
    let images = scene.interrupted(1);
    assert_eq!(shown(&images, &[0]), 0, "of {} images", images.len());
    Ok(())
}
