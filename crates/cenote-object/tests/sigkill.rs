//! `kill -9` loses nothing that was acknowledged: a child stores into two objects and psyncs them,
//! by turns alone and together, and acknowledges each psync through a pipe; this process kills it
//! at random moments and looks at what is there.
//!
//! What must hold after every kill: both objects are as the last acknowledged psync left them, or
//! as the one in flight did: every page that a step changes says which step it was, so that a
//! mixture of two steps is seen. Each kill is followed by another child, which recovers.
//!
//! The children are this test binary again. `CENOTE_KILLS` sets the number of kills (40),
//! `CENOTE_SEED` the seed.

use cenote_medium::{MediumOptions, RealMedium};
use cenote_object::{Attached, Mechanism, Objects, ObjectsOptions, Permission, Store, psync_all};
use cenote_store::{FormatOptions, OpenOptions};
use cenote_testkit::child::{Acknowledging, acknowledge, again};
use cenote_testkit::environment::number;
use cenote_testkit::random::mix;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const LEN: u64 = 1 << 20;
const PAGES: u64 = LEN / 4096;

/// What step `step` stores: object, offset and value of each word. The first word of each object is
/// the step; every third step changes one object only.
fn stores(step: u64) -> Vec<(usize, u64, u64)> {
    let mut out = Vec::new();
    let objects: &[usize] = if step.is_multiple_of(3) { &[0] } else { &[0, 1] };
    for object in objects {
        out.push((*object, 0, step));
        let count = 1 + mix(step) % 24;
        for i in 0..count {
            let random = mix(step * 1000 + i * 2 + *object as u64);
            let word = 1 + random % (LEN / 8 - 1);
            out.push((*object, word * 8, mix(step ^ word)));
        }
        if step.is_multiple_of(7) {
            // A whole page, and the one behind it.
            let page = 1 + mix(step + 5) % (PAGES - 2);
            out.extend((0..1024).map(|i| (*object, page * 4096 + i * 8, step + i)));
        }
    }
    out
}

fn open(dir: &Path, mechanism: Option<Mechanism>) -> (Store, Objects) {
    let medium = Arc::new(RealMedium::open(dir, &MediumOptions::default()).expect("medium"));
    let options = OpenOptions { lock_timeout: Duration::from_secs(20), ..OpenOptions::default() };
    let (store, _) = Store::open(medium, options).expect("open");
    let options = ObjectsOptions { mechanism, half_len: 128 << 10, ..ObjectsOptions::default() };
    let objects = Objects::open(&store, &options).expect("objects");
    (store, objects)
}

const CHILD_DIR: &str = "CENOTE_OBJECT_CHILD_DIR";
const CHILD_MECHANISM: &str = "CENOTE_OBJECT_CHILD_MECHANISM";

/// Not a test of its own: what a child process runs.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let number: usize = std::env::var(CHILD_MECHANISM).unwrap().parse().unwrap();
    let mechanism = Mechanism::ALL.get(number).copied();
    let (_store, objects) = open(Path::new(&dir), mechanism);
    let mut attached: Vec<Attached> = ["x", "y"]
        .iter()
        .map(|name| objects.attach(name, Permission::ReadWrite, None).unwrap())
        .collect();
    let word = |object: &Attached| u64::from_le_bytes(object.as_slice()[..8].try_into().unwrap());
    let mut step = word(&attached[0]);
    loop {
        step += 1;
        for (object, at, value) in stores(step) {
            attached[object].as_mut_slice().unwrap()[at as usize..][..8]
                .copy_from_slice(&value.to_le_bytes());
        }
        let mut all: Vec<&mut Attached> = attached.iter_mut().collect();
        if step.is_multiple_of(3) {
            all[0].psync().unwrap()
        } else {
            psync_all(&mut all).unwrap()
        };
        if !acknowledge(step) {
            return;
        }
    }
}

#[test]
fn kill_nine_loses_no_acknowledged_psync_and_mixes_none() {
    let (kills, seed) = (number("CENOTE_KILLS", 40), number("CENOTE_SEED", 0xce01));
    println!("seed {seed}");
    let dir = tempfile::tempdir().unwrap();
    let medium = Arc::new(RealMedium::open(dir.path(), &MediumOptions::default()).unwrap());
    cenote_store::format(
        medium,
        &FormatOptions { window_len: 1 << 30, ..FormatOptions::default() },
    )
    .unwrap();
    {
        let (_store, objects) = open(dir.path(), None);
        for name in ["x", "y"] {
            let made = objects.pcreate(name, LEN, None, 0o600).unwrap();
            // No psync finds the disk full.
            let file = std::fs::metadata(dir.path().join(made.file())).unwrap();
            assert!(
                file.len() >= LEN && file.blocks() * 512 >= file.len(),
                "{} blocks",
                file.blocks()
            );
        }
    }
    let mut model = vec![vec![0u8; LEN as usize]; 2];
    let (mut step, mut acknowledged, mut recovered, mut in_flight) = (0, 0, 0, 0);
    for round in 0..kills {
        let random = mix(seed + round);
        // By turns: the default (there is no fourth), and each mechanism.
        let mechanism = [4, 0, 1, 2, 3][round as usize % 5];
        let mut command = again("child");
        command.env(CHILD_DIR, dir.path()).env(CHILD_MECHANISM, mechanism.to_string());
        let child = Acknowledging::start(&mut command);
        // Every eighth is killed while it starts, which may be in recovery.
        let at_work = round % 8 != 7;
        let after = Duration::from_micros(random % 30_000);
        let steps = child.kill(at_work, after, |step| step < 1 << 40);
        acknowledged = steps.last().copied().unwrap_or(acknowledged);
        let (_store, objects) = open(dir.path(), None);
        recovered += objects.recovery().records;
        let x = objects.attach("x", Permission::Read, None).unwrap();
        let there = u64::from_le_bytes(x.as_slice()[..8].try_into().unwrap());
        assert!(
            there == acknowledged || there == acknowledged + 1,
            "round {round}: step {there} is there, {acknowledged} was acknowledged"
        );
        in_flight += u64::from(there > acknowledged);
        acknowledged = there;
        while step < there {
            step += 1;
            for (object, at, value) in stores(step) {
                model[object][at as usize..][..8].copy_from_slice(&value.to_le_bytes());
            }
        }
        let y = objects.attach("y", Permission::Read, None).unwrap();
        for (object, name, model) in [(&x, "x", &model[0]), (&y, "y", &model[1])] {
            let differs = object.as_slice().iter().zip(model).position(|(is, must)| is != must);
            assert_eq!(differs, None, "round {round}: {name} is not as step {there} left it");
        }
    }
    println!(
        "{step} steps, {kills} kills, {recovered} records replayed, {in_flight} psyncs in flight \
         survived"
    );
    assert!(step > kills / 2, "the children hardly did anything");
}
