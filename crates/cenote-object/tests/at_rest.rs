//! Objects that are protected at rest: they hold what was psynced and nothing can be read without
//! the key. What is changed behind their back: at_rest_damage.rs; crashes: at_rest_crashes.rs.

use crate::common::{self, base_image, key_of, raw, the_key};
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Fault, FaultEffect, FaultPoint, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium, MediumKind, MediumOptions, Operation, RealMedium};
use cenote_object::{
    Argon2Params, AtRestError, Attached, Keyring, Locking, Mechanism, Mode, ObjectError,
    ObjectOptions, Objects, ObjectsOptions, Permission, Store,
};
use cenote_store::{FormatOptions, OpenOptions};
use cenote_sys::memory;
use cenote_testkit::directories::contents;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PROTECTED: [Mode; 4] =
    [Mode::Integrity, Mode::Encryption, Mode::EncryptionIntegrity, Mode::Authenticated];
pub(crate) const PATTERN: &[u8] = b"a secret that no reader may find";

pub(crate) fn key_for(mode: Mode) -> Option<&'static Keyring> {
    mode.has_key().then(the_key)
}

pub(crate) fn real(dir: &Path, format: bool) -> (Store, Objects) {
    real_at(dir, format, 0x5480_0000_0000, 1 << 30)
}

fn real_at(dir: &Path, format: bool, window_base: u64, window_len: u64) -> (Store, Objects) {
    let medium = Arc::new(RealMedium::open(dir, &MediumOptions::default()).expect("medium"));
    if format {
        let options =
            FormatOptions { window_base: Some(window_base), window_len, ..Default::default() };
        cenote_store::format(medium.clone(), &options).expect("format");
    }
    let (store, _) = Store::open(medium, OpenOptions::default()).expect("open");
    let options = ObjectsOptions { half_len: 1 << 20, ..ObjectsOptions::default() };
    let objects = Objects::open(&store, &options).expect("objects");
    (store, objects)
}

pub(crate) fn simulated(window_len: u64) -> (Arc<SimMedium>, Store, Objects) {
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    let medium: Arc<dyn Medium> = sim.clone();
    let format = FormatOptions {
        window_base: Some(common::window_base()),
        window_len,
        ..Default::default()
    };
    cenote_store::format(medium, &format).expect("format");
    let sim = SimMedium::from_image_unrecorded(&sim.image_now(CrashKind::Process));
    let (store, objects) = common::open(&sim, 1 << 16).expect("open");
    (sim, store, objects)
}

pub(crate) fn holds(bytes: &[u8], pattern: &[u8]) -> bool {
    bytes.windows(pattern.len()).any(|window| window == pattern)
}

/// Pages of the pattern, psynced line by line and page by page: in the journal, in the primary,
/// while attached and after.
#[test]
fn plaintext_reaches_no_file_and_the_key_opens_it_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, objects) = real(dir.path(), true);
    let names = ["integrity", "encryption", "both", "authenticated"];
    let mut attached: Vec<Attached> = Vec::new();
    for (name, mode) in names.into_iter().zip(PROTECTED) {
        let options = ObjectOptions { at_rest: mode, permissions: 0o600 };
        let made = objects.pcreate_with(name, 600_000, key_for(mode), &options).expect("create");
        assert_eq!(made.record.at_rest.mode(), mode);
        let object = objects.attach(name, Permission::ReadWrite, key_for(mode)).expect("attach");
        assert_eq!((object.protection(), object.mechanism()), (mode, Some(Mechanism::Mprotect)));
        assert!(object.as_slice().iter().all(|byte| *byte == 0));
        attached.push(object);
    }
    // Only the object without encryption gives it away, which shows that the search works.
    let search = |expected: usize| {
        let all = contents(dir.path());
        let found: Vec<&PathBuf> =
            all.iter().filter(|(_, bytes)| holds(bytes, PATTERN)).map(|(n, _)| n).collect();
        assert_eq!(found.len(), expected, "{found:?}");
    };
    for object in &mut attached[1..] {
        let bytes = object.as_mut_slice().expect("writable");
        bytes.chunks_exact_mut(32).for_each(|line| line.copy_from_slice(PATTERN));
        object.psync().expect("psync");
        let bytes = object.as_mut_slice().expect("writable");
        bytes[5000..5032].copy_from_slice(PATTERN);
        bytes[599_960..599_992].copy_from_slice(PATTERN);
        assert_eq!(object.psync().expect("psync").pages, 2);
        assert_eq!(object.psync().expect("nothing to do").seq, 0);
    }
    // In the journal, and in the primaries.
    objects.checkpoint().expect("checkpoint");
    search(0);
    attached[0].as_mut_slice().expect("writable")[8192..8192 + 32].copy_from_slice(PATTERN);
    attached[0].psync().expect("psync");
    objects.checkpoint().expect("checkpoint");
    search(2); // journal and primary
    // Not psynced: gone, and never in a file.
    attached[3].as_mut_slice().expect("writable")[0] = 99;
    attached.into_iter().for_each(|object| object.detach().expect("detach"));
    drop(objects);
    store.close().expect("close");

    let (store, objects) = real(dir.path(), false);
    for (name, mode) in names.into_iter().zip(PROTECTED).skip(1) {
        let first = objects.attach(name, Permission::Read, key_for(mode)).expect("attach");
        // All readers show a key, and share what is decrypted.
        let refused = objects.attach(name, Permission::Read, Some(&key_of(2)));
        assert!(matches!(refused, Err(ObjectError::AtRest { .. })), "{refused:?}");
        let second = objects.attach(name, Permission::Read, key_for(mode)).expect("attach");
        drop(first);
        let bytes = second.as_slice();
        assert_eq!(
            (&bytes[..32], &bytes[5000..5032], &bytes[599_960..599_992]),
            (PATTERN, PATTERN, PATTERN),
            "{mode}"
        );
        assert_eq!(second.verify(&mut |_, _| true).damaged, []);
    }
    drop(objects);
    store.close().expect("close");
}

#[test]
fn wrong_keys_missing_keys_and_keys_for_nothing_are_told_apart() {
    let (_sim, store, objects) = simulated(64 << 20);
    let create = |name, mode, key| {
        objects.pcreate_with(
            name,
            10_000,
            key,
            &ObjectOptions { at_rest: mode, permissions: 0o600 },
        )
    };
    create("plain", Mode::None, None).expect("create");
    create("sums", Mode::Integrity, None).expect("create");
    objects.pcreate("sealed", 10_000, Some(the_key()), 0o600).expect("create");
    assert!(matches!(
        create("x", Mode::Integrity, Some(the_key())),
        Err(ObjectError::NotProtected { .. })
    ));
    let error = create("x", Mode::Encryption, None).expect_err("no key");
    let no_key = |source: &AtRestError| matches!(source, AtRestError::NoKey { .. });
    assert!(matches!(&error, ObjectError::AtRest { source, .. } if no_key(source)));
    assert_eq!(error.errno(), 13);
    assert!(store.object("x").is_err(), "nothing was made");

    let cheap = Argon2Params { memory_kib: 64, passes: 1, lanes: 1 };
    let phrase = |text: &[u8]| {
        Keyring::from_passphrase(&mut text.to_vec(), cheap, Locking::IfPossible)
            .expect("a passphrase")
    };
    for permission in [Permission::Read, Permission::ReadWrite] {
        let why = |name: &str, key: Option<&Keyring>| match objects.attach(name, permission, key) {
            Err(ObjectError::AtRest { source, .. }) => *source,
            other => panic!("{other:?}"),
        };
        assert!(matches!(why("sealed", None), AtRestError::NoKey { .. }));
        assert!(matches!(why("sealed", Some(&key_of(9))), AtRestError::WrongKey { .. }));
        assert!(matches!(why("sums", Some(the_key())), AtRestError::KeyNotUsed { .. }));
        assert!(matches!(
            why("sealed", Some(&phrase(b"correct horse"))),
            AtRestError::WrongKeyKind { .. }
        ));
        let refused =
            objects.attach("plain", permission, Some(the_key())).expect_err("no key is needed");
        assert!(matches!(refused, ObjectError::NotProtected { .. }), "{refused}");
        objects
            .attach("sealed", permission, Some(the_key()))
            .expect("its key")
            .detach()
            .expect("detach");
    }
    // A passphrase of its own.
    objects.pcreate("phrase", 5000, Some(&phrase(b"battery staple")), 0o600).expect("create");
    objects.attach("phrase", Permission::Read, Some(&phrase(b"battery staple"))).expect("attach");
    objects
        .attach("phrase", Permission::Read, Some(&phrase(b"battery stable")))
        .expect_err("another one");
    // Mechanisms that a protected object cannot have, and a key that is wrong, for destroying.
    for mechanism in [Mechanism::WriteProtect, Mechanism::PrivateCopy] {
        let refused =
            objects.attach_with("sealed", Permission::ReadWrite, Some(the_key()), Some(mechanism));
        assert!(matches!(refused, Err(ObjectError::Mechanism { .. })), "{refused:?}");
    }
    objects.pdestroy("sealed", Some(&key_of(9))).expect_err("a wrong key");
    objects.pdestroy("sealed", Some(the_key())).expect("its key");
    objects.rekey("plain", the_key(), &key_of(9)).expect_err("it has no key");
    objects.rekey("sums", the_key(), &key_of(9)).expect_err("it has no key");
}

/// An object of 4 GiB is made without writing its pages, and attached in the time of one of 64 KiB.
/// On a disk's file system: elsewhere its pages would take memory.
#[test]
fn attaching_takes_the_same_time_for_any_size() {
    const MODES: [Mode; 3] = [Mode::Encryption, Mode::EncryptionIntegrity, Mode::Authenticated];
    const LARGE: u64 = 4 << 30;
    let dir = tempfile::tempdir().expect("a directory");
    let (store, objects) = real_at(dir.path(), true, 0x5490_0000_0000, 16 << 30);
    let medium = raw(&store).medium();
    if medium.describe().kind == MediumKind::Tmpfs || medium.free_bytes() < 2 * LARGE {
        println!("skipped: no file system with 8 GiB of free space behind the page cache");
        return;
    }
    for mode in MODES {
        let options = ObjectOptions { at_rest: mode, permissions: 0o600 };
        // The best of many: others use the machine too.
        let best = |name: &str, size| {
            let info = objects.pcreate_with(name, size, Some(the_key()), &options).expect("create");
            let times = (0..40).map(|_| {
                let start = Instant::now();
                let attached =
                    objects.attach(name, Permission::ReadWrite, Some(the_key())).expect("attach");
                let took = start.elapsed();
                attached.detach().expect("detach");
                took
            });
            (times.min().expect("some"), info)
        };
        let (small, _) = best("small", 64 << 10);
        let (large, info) = best("large", LARGE);
        println!("{mode}: {small:?}, of 4 GiB {large:?}");
        assert!(large < Duration::from_millis(2), "{mode}: {large:?}");
        // Its last page is there, and zero.
        let object = objects.attach("large", Permission::Read, Some(the_key())).expect("attach");
        let mut last = [1; 4096];
        object.read_at(LARGE - 4096, &mut last).expect("read");
        assert!(last == [0; 4096] && info.record.data_len == LARGE);
        drop(object);
        for name in ["small", "large"] {
            objects.pdestroy(name, None).expect("destroyed");
        }
    }
}

pub(crate) fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 24
}

/// Whether an object of so many pages is filled whole when it is attached, and what was stored into
/// found by comparing (`cenote_atrest::view`, `View`).
fn is_whole(mode: Mode, pages: usize) -> bool {
    pages <= if matches!(mode, Mode::Encryption | Mode::Authenticated) { 32 } else { 8 }
}

/// Stores, psyncs, sessions that end well or not, loads by many threads: always what a plain copy
/// in memory says. Of objects that are filled page by page, and of those that are filled whole.
fn are_as_their_models(pages: usize) {
    let len = pages * 4096 - 100;
    for mode in PROTECTED {
        let (_sim, store, objects) = simulated(64 << 20);
        let options = ObjectOptions { at_rest: mode, permissions: 0o600 };
        objects.pcreate_with("model", len as u64, key_for(mode), &options).expect("create");
        let expected = if is_whole(mode, pages) { Mechanism::Compare } else { Mechanism::Mprotect };
        let (mut psynced, mut seed) = (vec![0u8; len], 1 + mode as u64);
        for session in 0..6 {
            let attach =
                |by| objects.attach_with("model", Permission::ReadWrite, key_for(mode), by);
            if expected != Mechanism::Compare {
                let refused = attach(Some(Mechanism::Compare));
                assert!(matches!(refused, Err(ObjectError::Mechanism { .. })), "{refused:?}");
            }
            // As it is chosen, as it is chosen and asked for, and by faults however few pages there
            // are.
            let asked = [None, Some(expected), Some(Mechanism::Mprotect)][session as usize % 3];
            let mut object = attach(asked).expect("attach");
            assert_eq!(
                object.mechanism(),
                Some(asked.unwrap_or(expected)),
                "{mode}, {pages} pages"
            );
            let mut now = psynced.clone();
            for _ in 0..12 {
                for _ in 0..1 + random(&mut seed) % 6 {
                    let at = random(&mut seed) as usize % (len - 300);
                    let (len, value) =
                        (1 + random(&mut seed) as usize % 300, random(&mut seed) as u8);
                    now[at..at + len].fill(value);
                    object.as_mut_slice().expect("writable")[at..at + len].fill(value);
                }
                if random(&mut seed).is_multiple_of(2) {
                    let done = object.psync().expect("psync");
                    assert_eq!(done.seq == 0, now == psynced, "{mode}, {pages} pages");
                    psynced.clone_from(&now);
                }
            }
            if session % 2 == 0 {
                assert!(object.as_slice() == now, "{mode}, {pages} pages");
            }
            drop(object);
            let object = objects.attach("model", Permission::Read, key_for(mode)).expect("attach");
            let (object, expected) = (&object, &psynced);
            std::thread::scope(|scope| {
                for thread in 0..4u64 {
                    scope.spawn(move || {
                        let mut seed = thread + 7 * session;
                        for _ in 0..200 {
                            let at = random(&mut seed) as usize % len;
                            assert_eq!(
                                object.as_slice()[at],
                                expected[at],
                                "{mode}, {pages} pages: byte {at}"
                            );
                        }
                    });
                }
            });
            assert!(object.as_slice() == psynced, "{mode}, {pages} pages");
            assert_eq!(object.verify(&mut |_, _| true).damaged, []);
        }
        drop(objects);
        store.close().expect("close");
    }
}

#[test]
fn protected_objects_are_as_their_models() {
    are_as_their_models(80);
}

#[test]
fn protected_objects_that_only_some_modes_fill_whole_are_as_their_models() {
    are_as_their_models(31);
}

#[test]
fn protected_objects_that_every_mode_fills_whole_are_as_their_models() {
    are_as_their_models(7);
}

/// An object whose pages are closed at first, in every mode: what `test` says that its last psync
/// left of pages is there after a loss of power.
fn with_closed_pages(test: impl Fn(&SimMedium, &mut Attached) -> Vec<(usize, u8)>) {
    for mode in PROTECTED {
        let sim = SimMedium::from_image(&base_image(1 << 16));
        let (store, objects) = common::open(&sim, 1 << 16).expect("open");
        let options = ObjectOptions { at_rest: mode, permissions: 0o600 };
        objects.pcreate_with("o", 64 * 4096, key_for(mode), &options).expect("create");
        let mut o = objects.attach("o", Permission::ReadWrite, key_for(mode)).expect("attach");
        assert_eq!(o.mechanism(), Some(Mechanism::Mprotect));
        let left = test(&sim, &mut o);
        let image = sim.state_now().image_oldest();
        objects.abandon();
        drop((o, objects));
        store.abandon();
        let (_store, objects) =
            common::open(&SimMedium::from_image_unrecorded(&image), 1 << 16).expect("open");
        let o = objects.attach("o", Permission::Read, key_for(mode)).expect("attach");
        for (page, value) in left {
            assert_eq!(o.as_slice()[page * 4096], value, "{mode}: page {page}");
        }
    }
}

fn store(o: &mut Attached, pages: &[usize], value: u8) {
    let bytes = o.as_mut_slice().expect("writable");
    pages.iter().for_each(|page| bytes[page * 4096] = value);
}

/// Pages of a psync that failed are pending, and the one behind them comes to them: it is closed as
/// others are, so that the next store into it is found, too.
#[test]
fn what_is_stored_behind_pages_that_are_pending_is_found_every_time() {
    with_closed_pages(|sim, o| {
        store(o, &[20], 1);
        let full = Fault::once(FaultPoint::Operation(Operation::Write), 0, FaultEffect::NoSpace);
        sim.inject(full.on("journal"));
        o.psync().expect_err("the disk is full");
        store(o, &[21], 2);
        assert_eq!(o.psync().expect("psync").pages, 2);
        store(o, &[20, 21], 3);
        assert_eq!(o.psync().expect("psync").pages, 2);
        vec![(20, 3), (21, 3)]
    });
}

/// One of several pages cannot be closed: those behind it are open still, and what is stored into
/// them later is found all the same.
#[test]
fn pages_that_could_not_be_closed_are_found_again() {
    with_closed_pages(|_, o| {
        store(o, &[10, 20, 30, 40], 1);
        let page = o.as_slice()[20 * 4096..].as_ptr().expose_provenance();
        // SAFETY: a page of the object's own memory, which no thread touches before there is
        // another in its place. Its contents are at the alias.
        unsafe { memory::release(page, 4096) }.expect("released");
        o.psync().expect_err("nothing is there that could be protected");
        // SAFETY: nothing is mapped there; the addresses are the object's.
        unsafe { memory::map_anonymous(page, 4096) }.expect("mapped");
        assert_eq!(o.psync().expect("psync").pages, 4);
        store(o, &[10, 30, 40], 2);
        assert_eq!(o.psync().expect("psync").pages, 3);
        vec![(10, 2), (20, 1), (30, 2), (40, 2)]
    });
}

/// One mapping as `/proc/self/smaps` has it.
struct Mapped {
    range: Range<usize>,
    /// Device and inode of its file.
    file: String,
    flags: Vec<String>,
}

fn mapped() -> Vec<Mapped> {
    let text = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let mut found: Vec<Mapped> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |digits| usize::from_str_radix(digits, 16).ok();
        let range =
            words[0].split_once('-').and_then(|(start, end)| Some(number(start)?..number(end)?));
        if let (Some(range), [_, _, _, device, inode, ..]) = (range, &words[..]) {
            found.push(Mapped { range, file: format!("{device} {inode}"), flags: Vec::new() });
        } else if let (["VmFlags:", flags @ ..], Some(last)) = (&words[..], found.last_mut()) {
            last.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        }
    }
    found
}

/// Plaintext is in memory only: not in a core dump, and not in a child. Of objects that are filled
/// whole and of those that are filled through an alias, which has it too.
#[test]
fn what_is_decrypted_is_neither_dumped_nor_inherited() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, objects) = real(dir.path(), true);
    for (mode, pages) in PROTECTED.into_iter().skip(1).flat_map(|mode| [(mode, 8usize), (mode, 64)])
    {
        let name = format!("{mode} {pages}");
        let options = ObjectOptions { at_rest: mode, permissions: 0o600 };
        objects.pcreate_with(&name, pages as u64 * 4096, key_for(mode), &options).expect("create");
        let mut object =
            objects.attach(&name, Permission::ReadWrite, key_for(mode)).expect("attach");
        let base = object.as_slice().as_ptr().addr();
        let span = base..base + pages * 4096;
        let check = |when: &str| {
            let all = mapped();
            let of_it = |map: &&Mapped| map.range.start < span.end && span.start < map.range.end;
            let at_base = all.iter().find(of_it).expect("a mapping");
            // An alias is the same file at another address.
            let has_file = !at_base.file.ends_with(" 0");
            assert_eq!(has_file, !is_whole(mode, pages), "{name} {when}: {}", at_base.file);
            let (mut covered, mut elsewhere) = (0, 0);
            for map in all.iter().filter(|map| of_it(map) || (has_file && map.file == at_base.file))
            {
                let from = map.range.start.max(span.start);
                covered += map.range.end.min(span.end).saturating_sub(from);
                elsewhere += usize::from(!of_it(&map));
                for wanted in ["dd", "dc"] {
                    let flags = &map.flags;
                    assert!(
                        flags.iter().any(|flag| flag == wanted),
                        "{name} {when}: no {wanted} in {flags:?}"
                    );
                }
            }
            assert_eq!((covered, elsewhere), (span.len(), usize::from(has_file)), "{name} {when}");
        };
        check("before a page is touched");
        assert_eq!(object.as_slice()[5 * 4096], 0);
        object.as_mut_slice().expect("writable")[2 * 4096..2 * 4096 + 32].copy_from_slice(PATTERN);
        check("after pages were touched");
        object.psync().expect("psync");
        check("after a psync");
        object.as_mut_slice().expect("writable").fill(9);
        object.psync().expect("psync");
        check("after a psync of all");
        object.detach().expect("detach");
    }
    drop(objects);
    store.close().expect("close");
}

#[test]
fn pages_that_are_journalled_before_they_are_sealed_are_found() {
    let in_journal = |bug| {
        let (sim, _store, objects) = simulated(64 << 20);
        objects.pcreate("a", 4096, Some(the_key()), 0o600).expect("create");
        let mut a = objects.attach("a", Permission::ReadWrite, Some(the_key())).expect("attach");
        a.as_mut_slice().expect("writable")[..PATTERN.len()].copy_from_slice(PATTERN);
        plant(bug);
        a.psync().expect("psync");
        plant(Bug::None);
        holds(&sim.read("journal").expect("read"), PATTERN)
    };
    assert!(!in_journal(Bug::None));
    assert!(in_journal(Bug::PlainJournalled), "the search finds it");
}
