//! A daemon that dies while it makes a pool for a client: the client, which lives, asks the next daemon again, and has one pool.
//!
//! Every crash point of the request; of each, the image that a crash of processes leaves, and those of losses of power (after which the client is gone, and the pool is there whole or not at all).

use cenote_crashtest::rig::{SMALL_LOG, WINDOW_LEN, pool_options, window_base};
use cenote_crashtest::units::{Grain, Images, Reach};
use cenote_layout::catalog::GuestRecord;
use cenote_layout::id::Uuid;
use cenote_medium::Durability;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Image, SimMedium, SimOptions};
use cenote_store::{Credentials, FormatOptions, OpenOptions, Store, StoreError};

const CLIENT: Uuid = Uuid([0x11; 16]);
const TOKEN: Uuid = Uuid([0x22; 16]);

/// This process is the client: it lives.
fn guest() -> GuestRecord {
    let pid = std::process::id();
    let start_ticks = start_of(pid);
    GuestRecord { client: CLIENT, pid, start_ticks, uid: 0, gid: 0 }
}

/// When a process started, from the 22nd field of its line in `/proc`.
fn start_of(pid: u32) -> u64 {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("/proc");
    let rest = line.rsplit_once(')').expect("a name in parentheses").1;
    rest.split_whitespace().nth(19).and_then(|ticks| ticks.parse().ok()).expect("a start time")
}

fn options() -> OpenOptions {
    OpenOptions { log_puddle_size: SMALL_LOG, hosting: true, ..OpenOptions::default() }
}

fn ask(store: &Store, name: &str) -> Result<u64, StoreError> {
    let root = Credentials { uid: 0, gid: 0, groups: Vec::new() };
    store.guest_create((CLIENT, TOKEN), &root, name, &pool_options(1)).map(|pool| pool.0)
}

/// The next daemon, and the client that asks it once more.
fn next(image: &Image) -> Result<(), String> {
    let text = |error: StoreError| error.to_string();
    let sim = SimMedium::from_image_unrecorded(image);
    let (store, report) = Store::open(sim, options()).map_err(|error| error.to_string())?;
    if !report.damage.is_empty() {
        return Err(format!("a crash that is legal is reported as damage: {:?}", report.damage));
    }
    let there: Vec<u64> = store.pools().iter().map(|pool| pool.record.id.0).collect();
    if image.kind() == CrashKind::Power {
        store.abandon();
        return if there.len() <= 1 { Ok(()) } else { Err(format!("pools {there:?}")) };
    }
    // One that had been given nothing begins again under its name.
    if store.guests().is_empty() {
        store.admit(guest()).map_err(text)?;
    }
    let made = ask(&store, "a").map_err(|error| format!("asked again: {error}; there is {there:?}"))?;
    let again = ask(&store, "a").map_err(text)?;
    let pools = store.pools().len();
    if pools != 1 || made != again || there.first().is_some_and(|first| *first != made) {
        return Err(format!("pool {made}, then {again}, of {pools}; there was {there:?}"));
    }
    store.guest_end(CLIENT, true).map_err(text)?;
    store.close().map_err(text)
}

fn run(bug: Bug, worker: usize) -> Result<u64, String> {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    let format = FormatOptions { window_base: Some(window_base(worker)), window_len: WINDOW_LEN, uuid: None };
    cenote_store::format(sim.clone(), &format).map_err(|error| error.to_string())?;
    let (store, _) = Store::open(sim.clone(), options()).map_err(|error| error.to_string())?;
    store.admit(guest()).map_err(|error| error.to_string())?;
    sim.forget_trace();
    plant(bug);
    let made = ask(&store, "a");
    plant(Bug::None);
    made.map_err(|error| error.to_string())?;
    let events = sim.trace_len();
    store.abandon();
    let mut images = 0;
    for event in 1..=events {
        let state = sim.state_after(event);
        let mut result = Ok(());
        let mut check = |image: Image| {
            images += 1;
            result = next(&image).map_err(|what| format!("after event {event} of {events}: {what}"));
            result.is_ok()
        };
        if check(state.image_process()) {
            let reach = Reach { grain: Grain::Words, exhaustive: 8, samples: 24 };
            Images::of(&state, reach, true).visit(&state, &mut check);
        }
        result?;
    }
    Ok(images)
}

#[test]
fn a_pool_whose_answer_was_lost_is_made_once_wherever_the_daemon_dies() {
    let images = run(Bug::None, 5100).expect("it holds");
    println!("{images} images");
    assert!(images > 20, "{images}");
}

#[test]
fn a_request_that_is_recorded_apart_from_its_pool_is_found() {
    let found = run(Bug::PoolMadeApart, 5101).expect_err("a crash between the two batches");
    assert!(found.contains("already"), "{found}");
}
