//! Metadata are written by code that has entered their guards, and by no other: each mechanism,
//! each way to write. docs/logged-heap.md has the table.

use crate::mapped::{PAGE, Pages};
use cenote_medium::planted::{Bug, GuardBug, plant};
use cenote_protect::{Guards, Inside, Protection, RangeKind, Right, explain};
use cenote_sys::dual_mapping::nameless_file;
use cenote_sys::memory::{self, Access, Sharing};
use cenote_sys::protection_keys::Key;
use cenote_testkit::child::{ended, task, with_task};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

const SIGSEGV: i32 = 11;

/// Pages of a file that has no name, mapped shared.
fn shared(count: usize) -> Pages {
    let pages = Pages::new(count);
    let (base, len) = (pages.base, count * PAGE);
    let file = nameless_file("metadata").expect("a file");
    file.set_len(len as u64).expect("its length");
    // SAFETY: our own pages, which nothing uses yet.
    unsafe { memory::map_file_at(file.as_fd(), 0, base, len, Access::ReadWrite, Sharing::Shared) }
        .expect("mapped");
    pages
}

fn guarded(pages: &Pages, protection: Protection) -> (Guards, usize) {
    let guards = Guards::new(protection, "pool `x`");
    // SAFETY: our own pages, one file; the tests store there as they say.
    let distance = unsafe { guards.add(pages.range()) }.expect("guarded");
    (guards, distance)
}

/// All mechanisms that this machine has.
fn all() -> Vec<Protection> {
    let keys = Key::of_process().map(|_| Protection::Keys);
    [Protection::None, Protection::Hidden, Protection::Mprotect].into_iter().chain(keys).collect()
}

/// A word, of our own pages.
fn word(address: usize) -> *mut u64 {
    core::ptr::with_exposed_provenance_mut(address)
}

fn load(address: usize) -> u64 {
    // SAFETY: a word of our own pages.
    unsafe { word(address).read_volatile() }
}

fn store(address: usize, value: u64) {
    // SAFETY: a word of our own pages, or a fault, which the child is to have.
    unsafe { word(address).write_volatile(value) }
}

#[test]
fn what_enters_stores_and_the_end_of_guards_gives_all_rights_back() {
    for protection in all() {
        let pages = shared(4);
        let (guards, distance) = guarded(&pages, protection);
        let twice = matches!(protection, Protection::Hidden | Protection::Keys);
        assert_eq!((guards.protection(), distance != 0), (protection, twice));
        let closed = if protection == Protection::None { Right::Write } else { Right::Read };
        assert_eq!(pages.rights(), [closed; 4], "{protection:?}");
        {
            let _inside = guards.enter();
            let again = guards.enter();
            store(pages.address(2).wrapping_add(distance), 7);
            drop(again);
            store(pages.address(3).wrapping_add(distance), 8);
        }
        assert_eq!((load(pages.address(2)), load(pages.address(3))), (7, 8));
        assert_eq!(pages.rights(), [closed; 4], "{protection:?}");
        let told = explain(pages.address(1)).map(|found| (found.kind, found.what().to_owned()));
        let metadata = (RangeKind::Metadata, "pool `x`".to_owned());
        assert_eq!(told, Some(metadata).filter(|_| protection != Protection::None));
        drop(guards);
        assert_eq!(pages.rights(), [Right::Write; 4]);
        assert_eq!(explain(pages.address(1)), None);
    }
}

#[test]
fn a_range_that_comes_while_a_thread_is_inside_is_closed_when_that_leaves() {
    let (first, second) = (shared(1), shared(1));
    let (guards, _) = guarded(&first, Protection::Mprotect);
    let inside = guards.enter();
    // SAFETY: our own pages.
    unsafe { guards.add(second.range()) }.expect("guarded");
    assert_eq!((first.right(0), second.right(0)), (Right::Write, Right::Write));
    drop(inside);
    assert_eq!((first.right(0), second.right(0)), (Right::Read, Right::Read));
}

#[test]
fn a_range_that_cannot_be_closed_is_left_open() {
    let pages = Pages::apart(2);
    // SAFETY: our own page, which nothing uses. What is left of the range fails half way.
    let cut = unsafe { libc::munmap(word(pages.address(1)).cast(), PAGE) };
    assert_eq!(cut, 0);
    let guards = Guards::new(Protection::Mprotect, "pool `x`");
    // SAFETY: our own pages; the guards refuse.
    unsafe { guards.add(pages.range()) }.expect_err("no memory");
    assert_eq!((pages.right(0), explain(pages.base)), (Right::Write, None));
}

#[test]
fn memory_that_is_not_shared_has_no_second_mapping() {
    let pages = Pages::new(1);
    let guards = Guards::new(Protection::Hidden, "pool `x`");
    // SAFETY: our own pages; the guards refuse.
    let refused = unsafe { guards.add(pages.range()) }.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
    assert_eq!((pages.right(0), explain(pages.base)), (Right::Write, None));
    assert_eq!(Protection::Hidden.within(false), Protection::None);
    assert_eq!(Protection::Keys.within(false), Protection::None);
    assert_eq!(Protection::Mprotect.within(false), Protection::Mprotect);
    let keys = if Key::of_process().is_some() { Protection::Keys } else { Protection::Hidden };
    assert_eq!(Protection::Keys.within(true), keys);
}

/// Lets the kernel store 8 bytes that it reads from a pipe.
fn read_into(address: usize) -> bool {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    writer.write_all(&9u64.to_ne_bytes()).expect("written");
    // SAFETY: a slice of bytes of our own pages, which no reference leads to; the kernel stores
    // there, or refuses.
    let bytes = unsafe { core::slice::from_raw_parts_mut(word(address).cast::<u8>(), 8) };
    std::io::Read::read(&mut { reader }, bytes).is_ok()
}

/// Writes this process's memory through its file.
fn through_proc(address: usize) -> bool {
    let mut file = std::fs::File::options().write(true).open("/proc/self/mem").expect("a file");
    file.seek(SeekFrom::Start(address as u64)).expect("an address");
    file.write_all(&9u64.to_ne_bytes()).is_ok()
}

/// Whether a way to write gets through, by where the writer is: outside of all guards, inside, and
/// outside through a pointer to where stores go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gets {
    outside: bool,
    inside: bool,
    leaked: bool,
}

fn try_all(protection: Protection, write: impl Fn(usize) -> bool) -> Gets {
    let pages = shared(1);
    let (guards, distance) = guarded(&pages, protection);
    let reaches = |address: usize| {
        let before = load(pages.base);
        let got = write(address);
        assert_eq!(got, load(pages.base) != before, "{protection:?}");
        {
            let _inside = guards.enter();
            store(pages.base.wrapping_add(distance), 0);
        }
        got
    };
    let outside = reaches(pages.base);
    let leaked = reaches(pages.base.wrapping_add(distance));
    let inside = guards.enter();
    let inside = (reaches(pages.base), drop(inside)).0;
    Gets { outside, inside, leaked }
}

fn expected(protection: Protection, keys_hold: bool) -> Gets {
    match protection {
        Protection::Hidden => Gets { outside: false, inside: false, leaked: true },
        Protection::Mprotect => Gets { outside: false, inside: true, leaked: false },
        Protection::Keys => Gets { outside: false, inside: false, leaked: !keys_hold },
        _ => Gets { outside: true, inside: true, leaked: true },
    }
}

#[test]
fn the_kernel_reads_into_metadata_only_where_a_store_would_get_through() {
    for protection in all() {
        assert_eq!(try_all(protection, read_into), expected(protection, true), "{protection:?}");
    }
}

#[test]
fn the_file_of_a_process_memory_writes_where_pages_are_writable_whatever_their_key() {
    for protection in all() {
        let found = try_all(protection, through_proc);
        assert_eq!(found, expected(protection, false), "{protection:?}");
    }
}

/// Not a test of its own: what a child process runs, which stores into metadata.
#[test]
fn child() {
    let Some((task, _)) = task() else { return };
    let [protection, place] = task.split(' ').collect::<Vec<_>>()[..] else { panic!("{task}") };
    // Threads that are told where to store: one from before there is a key, and one from after.
    let earlier = storing_thread();
    let named = all().into_iter().find(|of| format!("{of:?}") == protection);
    let pages = shared(2);
    let (guards, distance) = guarded(&pages, named.expect("a mechanism"));
    let later = storing_thread();
    let at = pages.address(1) + 16;
    let beside = |(told, thread): (Sender<usize>, JoinHandle<()>)| {
        let inside = guards.enter();
        told.send(at.wrapping_add(distance)).expect("told");
        thread.join().expect("stored");
        drop(inside);
    };
    match place {
        "earlier" => beside(earlier),
        "later" => beside(later),
        "outside" => store(at, 1),
        "thread" => std::thread::scope(|scope| {
            let inside = guards.enter();
            scope.spawn(move || store(at, 1)).join().expect("stored");
            drop(inside);
        }),
        "inside" => {
            let _inside = guards.enter();
            store(at, 1);
        }
        "leaked" => store(at.wrapping_add(distance), 1),
        "handler" => {
            let _inside = guards.enter();
            AT.store(at.wrapping_add(distance), Ordering::SeqCst);
            signal_self();
        }
        other => panic!("{other}"),
    }
}

static AT: AtomicUsize = AtomicUsize::new(0);

/// A thread that stores where it is told to.
fn storing_thread() -> (Sender<usize>, JoinHandle<()>) {
    let (told, hears) = channel();
    (told, std::thread::spawn(move || hears.recv().into_iter().for_each(|at| store(at, 1))))
}

extern "C" fn handler(_: i32) {
    store(AT.load(Ordering::SeqCst), 1);
}

fn signal_self() {
    let handler = handler as extern "C" fn(i32);
    // SAFETY: the handler stores a word, which may fault, as the child is to.
    unsafe {
        libc::signal(libc::SIGUSR1, handler as *const () as usize);
        libc::raise(libc::SIGUSR1);
    }
}

/// Runs a child that stores; whether it got through, and what it said.
fn dies(protection: Protection, place: &str) -> (bool, String) {
    let task = format!("{protection:?} {place}");
    let (status, said) = ended(&mut with_task("guards::child", &task, Path::new("/")));
    match status.signal() {
        Some(SIGSEGV) => (true, said),
        None if status.success() => (false, said),
        _ => panic!("{task}: {status}: {said}"),
    }
}

/// Whether a stray write gets through, by mechanism: outside, in another thread while one is
/// inside, by the thread that is inside; and through a leaked pointer: outside, in a signal handler
/// whose thread is inside, in other threads while one is inside.
#[test]
fn a_stray_store_ends_the_process_and_is_explained() {
    let places = ["outside", "thread", "inside", "leaked", "handler", "earlier", "later"];
    let leaked = &places[3..];
    for protection in all() {
        let through = match protection {
            Protection::Hidden => [false, false, false, true, true, true, true],
            Protection::Mprotect => [false, true, true, false, true, true, true],
            Protection::Keys => [false; 7],
            _ => [true; 7],
        };
        for (place, through) in places.into_iter().zip(through) {
            let (died, said) = dies(protection, place);
            assert_eq!(died, !through, "{protection:?} {place}: {said}");
            // The place of a second mapping is in no table.
            if died && !(protection == Protection::Keys && leaked.contains(&place)) {
                assert!(said.contains("cenote: stray write at 0x"), "{said}");
                assert!(said.contains("metadata of pool `x`: this process ends"), "{said}");
            }
        }
    }
}

#[test]
fn guards_that_leave_pages_open_are_found() {
    let pages = shared(1);
    plant(Bug::Guard(GuardBug::GuardsOpen));
    let (_guards, _) = guarded(&pages, Protection::Hidden);
    plant(Bug::None);
    assert_eq!(pages.right(0), Right::Write);
    assert!(read_into(pages.base));
}

#[test]
fn nothing_is_to_be_done_to_enter_guards_with_a_hidden_mapping() {
    let pages = shared(1);
    let (guards, _) = guarded(&pages, Protection::Hidden);
    assert!(matches!(guards.enter(), Inside::Nothing));
}
