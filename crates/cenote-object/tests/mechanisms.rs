//! The same random work over each mechanism that finds written pages, on a real directory, compared
//! with plain vectors: stores of any size, psyncs of one object and of all, ends of sessions that
//! are clean and that are not, small journals that wrap and grow.

use cenote_medium::{MediumOptions, RealMedium};
use cenote_object::{
    Attached, Mechanism, Objects, ObjectsOptions, Permission, Store, Trim, psync_all,
};
use cenote_store::{FormatOptions, OpenOptions};
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;

const OBJECTS: [(&str, u64); 3] = [("large", 3 << 20), ("small", 5000), ("tiny", 1)];

#[derive(Clone, Debug)]
enum Step {
    /// Object, offset and length (both taken modulo what there is), value.
    Write(usize, u64, u64, u8),
    /// Object, first page, how many, distance, value: pages that do not lie beside each other, more
    /// of them than a psync protects again by itself.
    Scatter(usize, u64, u64, u64, u8),
    /// Reads all pages: they must not be taken for written ones, nor change anything.
    Read(usize),
    Psync(usize),
    PsyncAll,
    /// Detach and attach again: what was not psynced is gone.
    Detach(usize),
    /// Close the store and open it.
    Reopen,
    /// Let go of everything as a dying process does.
    Die,
}

fn step() -> impl Strategy<Value = Step> {
    let object = 0..OBJECTS.len();
    let len = prop_oneof![1..64u64, 1..9000u64, 1..300_000u64];
    prop_oneof![
        8 => (object.clone(), any::<u64>(), len, any::<u8>())
            .prop_map(|(object, at, len, value)| Step::Write(object, at, len, value)),
        3 => (object.clone(), any::<u64>(), 5..24u64, 2..9u64, any::<u8>())
            .prop_map(|(object, at, count, apart, value)| {
                Step::Scatter(object, at, count, apart, value)
            }),
        1 => object.clone().prop_map(Step::Read),
        4 => object.clone().prop_map(Step::Psync),
        2 => Just(Step::PsyncAll),
        1 => object.prop_map(Step::Detach),
        1 => Just(Step::Reopen),
        1 => Just(Step::Die),
    ]
}

struct World {
    attached: Vec<Option<Attached>>,
    objects: Objects,
    store: Store,
}

fn open(dir: &Path, options: &ObjectsOptions) -> (Store, Objects) {
    let medium = Arc::new(RealMedium::open(dir, &MediumOptions::default()).expect("medium"));
    let (store, _) = Store::open(medium, OpenOptions::default()).expect("open");
    let objects = Objects::open(&store, options).expect("objects");
    (store, objects)
}

impl World {
    fn open(dir: &Path, options: &ObjectsOptions) -> Self {
        let (store, objects) = open(dir, options);
        let attach =
            |(name, _)| Some(objects.attach(name, Permission::ReadWrite, None).expect("attach"));
        Self { attached: OBJECTS.into_iter().map(attach).collect(), objects, store }
    }

    fn attach_again(&mut self, object: usize) {
        self.attached[object].take().expect("attached").detach().expect("detach");
        let again = self.objects.attach(OBJECTS[object].0, Permission::ReadWrite, None);
        self.attached[object] = Some(again.expect("attach"));
    }

    fn get(&mut self, object: usize) -> &mut Attached {
        self.attached[object].as_mut().expect("attached")
    }
}

fn make_objects(dir: &Path, options: &ObjectsOptions) {
    let (store, objects) = open(dir, options);
    for (name, len) in OBJECTS {
        objects.pcreate(name, len, None, 0o600).expect("create");
    }
    drop(objects);
    store.close().expect("close");
}

impl Step {
    /// Stores what a step stores into an object.
    fn store(&self, bytes: &mut [u8]) {
        let all = bytes.len() as u64;
        match *self {
            Step::Write(_, at, len, value) => {
                let at = at % all;
                bytes[at as usize..(at + len).min(all) as usize].fill(value);
            }
            Step::Scatter(_, at, count, apart, value) => {
                for number in 0..count {
                    bytes[((at % all + number * apart * 4096) % all) as usize] = value;
                }
            }
            _ => {}
        }
    }
}

/// Does the steps; `Err` says what differs. The mechanism must work.
fn run(mechanism: Mechanism, steps: &[Step]) -> Result<(), TestCaseError> {
    let dir = tempfile::tempdir().expect("a directory");
    let medium = Arc::new(RealMedium::open(dir.path(), &MediumOptions::default()).expect("medium"));
    cenote_store::format(
        medium,
        &FormatOptions { window_len: 1 << 30, ..FormatOptions::default() },
    )
    .expect("format");
    let options = ObjectsOptions {
        mechanism: Some(mechanism),
        half_len: 64 << 10,
        trim: if steps.len().is_multiple_of(2) { Trim::Background } else { Trim::Inline },
        ..ObjectsOptions::default()
    };
    make_objects(dir.path(), &options);
    let mut shadow: Vec<Vec<u8>> = OBJECTS.iter().map(|(_, len)| vec![0; *len as usize]).collect();
    let mut primary = shadow.clone();
    let mut world = World::open(dir.path(), &options);
    for step in steps.iter().chain([&Step::PsyncAll, &Step::Die]) {
        match *step {
            Step::Write(object, ..) | Step::Scatter(object, ..) => {
                step.store(&mut shadow[object]);
                step.store(world.get(object).as_mut_slice().expect("writable"));
            }
            Step::Read(object) => {
                let sum = |bytes: &[u8]| bytes.iter().map(|b| u64::from(*b)).sum::<u64>();
                prop_assert_eq!(sum(world.get(object).as_slice()), sum(&shadow[object]));
            }
            Step::Psync(object) => {
                let done = world.get(object).psync().expect("psync");
                prop_assert_eq!(done.seq == 0, shadow[object] == primary[object]);
                primary[object].clone_from(&shadow[object]);
            }
            Step::PsyncAll => {
                let mut all: Vec<&mut Attached> = world.attached.iter_mut().flatten().collect();
                psync_all(&mut all).expect("psync");
                primary.clone_from(&shadow);
            }
            Step::Detach(object) => {
                world.attach_again(object);
                prop_assert_eq!(world.get(object).mechanism(), Some(mechanism));
                shadow[object].clone_from(&primary[object]);
            }
            Step::Reopen => {
                world.attached.clear();
                drop(world.objects);
                world.store.close().expect("close");
                shadow.clone_from(&primary);
                world = World::open(dir.path(), &options);
                prop_assert_eq!(world.objects.recovery().records, 0);
            }
            Step::Die => {
                world.objects.abandon();
                world.store.clone().abandon();
                drop(world);
                shadow.clone_from(&primary);
                world = World::open(dir.path(), &options);
            }
        }
        for (object, shadow) in shadow.iter().enumerate() {
            prop_assert!(
                world.get(object).as_slice() == shadow.as_slice(),
                "{} after {:?}",
                OBJECTS[object].0,
                step
            );
        }
    }
    Ok(())
}

/// Whether a mechanism works here; says so if not.
fn works(mechanism: Mechanism) -> bool {
    let dir = tempfile::tempdir().expect("a directory");
    let medium = Arc::new(RealMedium::open(dir.path(), &MediumOptions::default()).expect("medium"));
    cenote_store::format(
        medium,
        &FormatOptions { window_len: 64 << 20, ..FormatOptions::default() },
    )
    .expect("format");
    let options = ObjectsOptions { mechanism: Some(mechanism), ..ObjectsOptions::default() };
    let (_store, objects) = open(dir.path(), &options);
    objects.pcreate("o", 4096, None, 0o600).expect("create");
    match objects.attach("o", Permission::ReadWrite, None) {
        Ok(_) => true,
        Err(error) => {
            println!("skipped: {error}");
            false
        }
    }
}

fn tries(mechanism: Mechanism) {
    if !works(mechanism) {
        return;
    }
    let config =
        ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(steps in prop::collection::vec(step(), 1..40))| run(mechanism, &steps)?);
}

#[test]
fn objects_are_as_their_models_by_write_protection() {
    tries(Mechanism::WriteProtect);
}

#[test]
fn objects_are_as_their_models_by_private_copies() {
    tries(Mechanism::PrivateCopy);
}

#[test]
fn objects_are_as_their_models_by_mprotect() {
    tries(Mechanism::Mprotect);
}

#[test]
fn objects_are_as_their_models_by_comparison() {
    tries(Mechanism::Compare);
}

#[test]
fn the_choice_is_the_first_mechanism_that_works() {
    let best = Mechanism::ALL.into_iter().find(|mechanism| works(*mechanism));
    let dir = tempfile::tempdir().expect("a directory");
    let medium = Arc::new(RealMedium::open(dir.path(), &MediumOptions::default()).expect("medium"));
    cenote_store::format(
        medium,
        &FormatOptions { window_len: 64 << 20, ..FormatOptions::default() },
    )
    .expect("format");
    let (_store, objects) = open(dir.path(), &ObjectsOptions::default());
    objects.pcreate("o", 4096, None, 0o600).expect("create");
    let attached = objects.attach("o", Permission::ReadWrite, None).expect("attach");
    assert_eq!(attached.mechanism(), best);
    println!("{}", best.expect("comparison works everywhere"));
}

#[test]
fn only_pages_and_lines_that_changed_are_journalled() {
    for mechanism in Mechanism::ALL.into_iter().filter(|mechanism| works(*mechanism)) {
        let dir = tempfile::tempdir().expect("a directory");
        let medium =
            Arc::new(RealMedium::open(dir.path(), &MediumOptions::default()).expect("medium"));
        cenote_store::format(
            medium,
            &FormatOptions { window_len: 64 << 20, ..FormatOptions::default() },
        )
        .expect("format");
        let options = ObjectsOptions { mechanism: Some(mechanism), ..ObjectsOptions::default() };
        let (_store, objects) = open(dir.path(), &options);
        objects.pcreate("o", 8 << 20, None, 0o600).expect("create");
        let mut o = objects.attach("o", Permission::ReadWrite, None).expect("attach");
        let sum: u64 = o.as_slice().iter().map(|b| u64::from(*b)).sum();
        assert_eq!(
            (sum, o.psync().expect("psync").pages),
            (0, 0),
            "{mechanism}: reading dirties nothing"
        );
        for page in [3, 700, 1999] {
            o.as_mut_slice().expect("writable")[page * 4096 + 77] = 1;
        }
        let done = o.psync().expect("psync");
        assert_eq!(
            (done.pages, done.data_bytes, done.journal_bytes),
            (3, 3 * 64, 4096),
            "{mechanism}"
        );
        o.as_mut_slice().expect("writable")[3 * 4096 + 77] = 1;
        assert_eq!(
            o.psync().expect("psync").seq,
            0,
            "{mechanism}: the same value again is no change"
        );
        o.as_mut_slice().expect("writable")[4096..3 * 4096].fill(9);
        let done = o.psync().expect("psync");
        assert_eq!(
            (done.pages, done.data_bytes, done.journal_bytes),
            (2, 8192, 3 * 4096),
            "{mechanism}"
        );
        assert_eq!(o.psync().expect("psync").seq, 0, "{mechanism}: nothing is left");
    }
}
