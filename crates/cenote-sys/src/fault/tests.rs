//! Tests of resolvers, in this process and in forked children. Tests of faults without a resolver
//! run in fresh processes (this test program again, with a case in the environment), because such
//! a fault depends on the handlers that were installed before, and kills.

use super::*;
use crate::memory::{self, Access};
use crate::testing::{in_child, spawn_child};
use core::sync::atomic::AtomicUsize;
use std::process::{Command, Output};

const PAGE: usize = 4096;

/// Makes the page of the fault readable and writable, and counts.
struct Opener {
    calls: AtomicUsize,
    /// Whether to do what it says.
    honest: bool,
}

impl Opener {
    const fn new(honest: bool) -> Self {
        Self { calls: AtomicUsize::new(0), honest }
    }

    fn ctx(&self) -> *const () {
        ptr::from_ref(self).cast()
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

unsafe fn open_page(ctx: *const (), addr: usize) -> bool {
    // SAFETY: the tests register an Opener that outlives the registration, and ranges that they
    // own.
    unsafe {
        let opener = &*ctx.cast::<Opener>();
        opener.calls.fetch_add(1, Ordering::SeqCst);
        *libc::__errno_location() = libc::E2BIG;
        !opener.honest || memory::protect(addr / PAGE * PAGE, PAGE, Some(Access::ReadWrite)).is_ok()
    }
}

unsafe fn refuse(_: *const (), _: usize) -> bool {
    false
}

/// Inaccessible pages of this test's own.
fn closed_pages(pages: usize) -> memory::OwnedRegion {
    let region = memory::anonymous(pages * PAGE).expect("map");
    close(region.as_ptr().addr(), pages);
    region
}

fn close(addr: usize, pages: usize) {
    // SAFETY: the tests' own memory; a resolver opens it again.
    unsafe { memory::protect(addr, pages * PAGE, None) }.expect("protect");
}

fn store(addr: usize, value: u8) {
    // SAFETY: the tests' own memory, or memory that is meant to fault.
    unsafe { ptr::with_exposed_provenance_mut::<u8>(addr).write_volatile(value) }
}

fn register_opener(addr: usize, len: usize, opener: &Opener) -> Registration {
    // SAFETY: the opener outlives the registration in every test, and keeps the rules.
    unsafe { register(addr, len, open_page, opener.ctx()) }.expect("register")
}

fn signal_of(action: impl FnOnce()) -> i32 {
    let status = spawn_child(action).wait();
    if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 }
}

#[test]
fn a_fault_in_a_registered_range_is_resolved_and_keeps_errno() {
    let region = closed_pages(4);
    let addr = region.as_ptr().addr();
    let opener = Opener::new(true);
    let registration = register_opener(addr, 4 * PAGE, &opener);
    // SAFETY: errno is this thread's.
    let errno = unsafe { &mut *libc::__errno_location() };
    *errno = libc::ENOTTY;
    store(addr + 5, 1);
    assert_eq!(*errno, libc::ENOTTY, "the handler changed errno");
    store(addr + 3 * PAGE, 1);
    store(addr + 3 * PAGE + 9, 1);
    assert_eq!(opener.calls(), 2);
    drop(registration);
}

#[test]
fn a_truncated_file_s_sigbus_is_resolved_too() {
    use std::os::fd::AsFd;
    let fd =
        rustix::fs::memfd_create(c"cenote-test", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    let base = memory::reserve_anywhere(PAGE, PAGE).expect("reserve");
    unsafe fn lengthen(ctx: *const (), _: usize) -> bool {
        // SAFETY: the test registers a descriptor that outlives the registration.
        let fd = unsafe { &*ctx.cast::<std::os::fd::OwnedFd>() };
        rustix::fs::ftruncate(fd, PAGE as u64).is_ok()
    }
    // SAFETY: inside our own reservation; the resolver only makes a system call.
    unsafe {
        memory::map_file(fd.as_fd(), base, PAGE, Access::ReadWrite, memory::Sharing::Shared)
            .expect("map");
        let _registration =
            register(base, PAGE, lengthen, ptr::from_ref(&fd).cast()).expect("register");
        store(base, 1);
        memory::release(base, PAGE).expect("release");
    }
}

#[test]
fn repeated_faults_are_resolved_as_long_as_access_was_taken_away_in_between() {
    let region = closed_pages(1);
    let addr = region.as_ptr().addr();
    let opener = Opener::new(true);
    let _registration = register_opener(addr, PAGE, &opener);
    let rounds = RETRIES_MAX as usize * 5;
    for _ in 0..rounds {
        store(addr, 1);
        close(addr, 1);
    }
    assert_eq!(opener.calls(), rounds);
}

#[test]
fn a_resolver_that_lies_is_not_asked_for_ever() {
    let region = closed_pages(1);
    let addr = region.as_ptr().addr();
    let signal = signal_of(|| {
        // Should it go on for ever, the alarm ends it with another signal.
        // SAFETY: a system call.
        unsafe { libc::alarm(20) };
        let liar = Opener::new(false);
        let _registration = register_opener(addr, PAGE, &liar);
        store(addr, 1);
    });
    assert_eq!(signal, libc::SIGSEGV);
}

#[test]
fn a_resolver_that_declines_leaves_the_fault_to_the_default() {
    let region = closed_pages(1);
    let addr = region.as_ptr().addr();
    let signal = signal_of(|| {
        // SAFETY: the resolver does nothing.
        let _registration = unsafe { register(addr, PAGE, refuse, ptr::null()) };
        store(addr, 1);
    });
    assert_eq!(signal, libc::SIGSEGV);
}

#[test]
fn after_unregistering_no_resolver_is_asked() {
    let region = closed_pages(1);
    let addr = region.as_ptr().addr();
    let signal = signal_of(|| {
        let opener = Opener::new(true);
        drop(register_opener(addr, PAGE, &opener));
        store(addr, 1);
    });
    assert_eq!(signal, libc::SIGSEGV);
}

#[test]
fn a_forked_child_s_faults_are_not_the_parents() {
    let region = closed_pages(2);
    let addr = region.as_ptr().addr();
    let opener = Opener::new(true);
    let _registration = register_opener(addr, PAGE, &opener);
    assert_eq!(signal_of(|| store(addr, 1)), libc::SIGSEGV);
    // Also when the child arms the guard and registers a range of its own, which works.
    assert_eq!(signal_of(|| store(addr, u8::from(fork_guard::token() == 0))), libc::SIGSEGV);
    let seen = in_child(|| {
        let own = Opener::new(true);
        let _registration = register_opener(addr, 2 * PAGE, &own);
        store(addr, 1);
        store(addr + PAGE, 1);
        i32::from(own.calls() != 2)
    });
    assert_eq!(seen, 0);
    assert_eq!(opener.calls(), 0);
}

#[test]
fn bad_and_overlapping_ranges_are_refused() {
    let region = closed_pages(8);
    let addr = region.as_ptr().addr();
    // SAFETY: the resolver does nothing.
    let at = |base, len| unsafe { register(base, len, refuse, ptr::null()) };
    assert!(matches!(at(addr, 0), Err(RegisterError::Range { .. })));
    assert!(matches!(at(usize::MAX, 2), Err(RegisterError::Range { .. })));
    let held: Vec<_> = (0..8).map(|i| at(addr + i * PAGE, PAGE).expect("free")).collect();
    assert!(matches!(at(addr + PAGE / 2, PAGE), Err(RegisterError::Overlap { .. })));
    assert!(matches!(at(addr + PAGE, PAGE), Err(RegisterError::Overlap { .. })));
    drop(held);
    assert!(at(addr + PAGE / 2, PAGE).is_ok());
}

#[test]
fn a_thousand_ranges_are_resolved_at_once_and_their_places_used_again() {
    const RANGES: usize = 1000;
    // In a child, because the table does not shrink, and its size is looked at.
    let seen = in_child(|| {
        let region = closed_pages(RANGES);
        let addr = region.as_ptr().addr();
        let openers: Vec<_> = (0..RANGES).map(|_| Opener::new(true)).collect();
        let register_all = || -> Vec<_> {
            openers
                .iter()
                .enumerate()
                .map(|(i, own)| register_opener(addr + i * PAGE, PAGE, own))
                .collect()
        };
        let held = register_all();
        let slots = table::slots().count();
        for i in 0..RANGES {
            store(addr + i * PAGE, 1);
        }
        if openers.iter().any(|opener| opener.calls() != 1) {
            return 1;
        }
        drop(held);
        close(addr, RANGES);
        let _held = register_all();
        // The last of them is resolved while a thread registers and unregisters others.
        let busy = std::thread::spawn(|| {
            let region = closed_pages(1);
            // SAFETY: the resolver does nothing.
            let at = || unsafe { register(region.as_ptr().addr(), PAGE, refuse, ptr::null()) };
            (0..1000).for_each(|_| drop(at().expect("free")));
        });
        for i in (0..RANGES).rev() {
            store(addr + i * PAGE, 2);
        }
        if busy.join().is_err() || openers.iter().any(|opener| opener.calls() != 2) {
            return 2;
        }
        i32::from(!(RANGES..RANGES + 128).contains(&slots) || table::slots().count() > slots + 64)
            * 3
    });
    assert_eq!(seen, 0);
}

#[test]
fn the_inner_of_two_nested_ranges_is_asked_first_and_the_outer_one_if_it_refuses() {
    const PAGES: usize = 8;
    let region = closed_pages(PAGES);
    let addr = region.as_ptr().addr();
    let (outer, inner) = (Opener::new(true), Opener::new(true));
    let outside = register_opener(addr, PAGES * PAGE, &outer);
    // SAFETY: the resolver does nothing.
    let refusing =
        unsafe { register(addr + 2 * PAGE, 2 * PAGE, refuse, ptr::null()) }.expect("nested");
    store(addr + 2 * PAGE, 1);
    assert_eq!(outer.calls(), 1, "the outer range was asked once, after the inner one refused");
    drop(refusing);
    let inside = register_opener(addr + 2 * PAGE, 2 * PAGE, &inner);
    store(addr + 3 * PAGE, 1);
    assert_eq!((outer.calls(), inner.calls()), (1, 1), "the outer range was asked first");
    store(addr, 1);
    assert_eq!((outer.calls(), inner.calls()), (2, 1));
    drop(inside);
    // An outer range may also come second.
    drop(outside);
    let inside = register_opener(addr + 4 * PAGE, PAGE, &inner);
    let outside = register_opener(addr, PAGES * PAGE, &outer);
    store(addr + 4 * PAGE, 1);
    store(addr + 5 * PAGE, 1);
    assert_eq!((outer.calls(), inner.calls()), (3, 2));
    // SAFETY: the resolver does nothing.
    let same = unsafe { register(addr, PAGES * PAGE, refuse, ptr::null()) };
    assert!(matches!(same, Err(RegisterError::Overlap { .. })), "the same range twice");
    drop((inside, outside));
}

#[test]
fn faults_of_many_threads_and_registrations_coming_and_going_do_not_disturb_each_other() {
    const PAGES: usize = 512;
    let rounds = if cfg!(debug_assertions) { 20 } else { 100 };
    let others = memory::anonymous(PAGE).expect("map");
    for _ in 0..rounds {
        let region = closed_pages(PAGES);
        let addr = region.as_ptr().addr();
        let opener = Opener::new(true);
        let registration = register_opener(addr, PAGES * PAGE, &opener);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..PAGES).for_each(|i| store(addr + i * PAGE, 1)));
            }
            scope.spawn(|| {
                for _ in 0..200 {
                    let other = Opener::new(true);
                    drop(register_opener(others.as_ptr().addr(), PAGE, &other));
                }
            });
        });
        drop(registration);
        assert!(opener.calls() >= PAGES);
    }
}

#[test]
fn a_resolver_has_its_stack_on_a_thread_with_an_alternate_one() {
    unsafe fn hungry(ctx: *const (), addr: usize) -> bool {
        let mut stack = [0_u8; STACK_BUDGET_BYTES - 256];
        for byte in &mut stack {
            // SAFETY: a byte of a local.
            unsafe { ptr::from_mut(byte).write_volatile(1) };
        }
        // SAFETY: handed on.
        unsafe { open_page(ctx, addr) }
    }
    std::thread::spawn(|| {
        let region = closed_pages(1);
        let addr = region.as_ptr().addr();
        let opener = Opener::new(true);
        // SAFETY: the opener outlives the registration.
        let _registration =
            unsafe { register(addr, PAGE, hungry, opener.ctx()) }.expect("register");
        store(addr, 1);
        assert_eq!(opener.calls(), 1);
    })
    .join()
    .expect("thread");
}

const CASE: &str = "CENOTE_SYS_FAULT_CASE";

/// Runs `case` of [`the_cases_of_fresh_processes`] in a fresh process.
fn run(case: &str) -> Output {
    Command::new(std::env::current_exe().expect("this program"))
        .args([
            "--exact",
            "fault::tests::the_cases_of_fresh_processes",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(CASE, case)
        .output()
        .expect("start this program again")
}

fn died_of(output: &Output) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt;
    output.status.signal()
}

extern "C" fn with_siginfo(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel's siginfo, by way of the chain; then leaves at once.
    unsafe {
        let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr());
        let blocked = |s| libc::sigismember(mask.as_ptr(), s) == 1;
        // Called as the kernel would: the address, its own signal blocked and the one it asked for,
        // not the others.
        let right = (*info).si_addr().addr() == 0x1000
            && signal == libc::SIGSEGV
            && blocked(libc::SIGSEGV)
            && blocked(libc::SIGUSR1)
            && !blocked(libc::SIGUSR2);
        libc::_exit(if right { 42 } else { 43 })
    }
}

extern "C" fn without_siginfo(signal: c_int) {
    // SAFETY: leaves at once.
    unsafe { libc::_exit(if signal == libc::SIGBUS { 44 } else { 45 }) }
}

fn set_action(signal: c_int, handler: usize, flags: c_int) {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zero is a valid sigaction; the handlers have the form that the flags say.
    unsafe {
        let filled = action.assume_init_mut();
        filled.sa_sigaction = handler;
        filled.sa_flags = flags;
        libc::sigaddset(&raw mut filled.sa_mask, libc::SIGUSR1);
        assert_eq!(libc::sigaction(signal, action.as_ptr(), ptr::null_mut()), 0);
    }
}

#[allow(unconditional_recursion)]
fn overflow(depth: u64) -> u64 {
    let frame = [depth; 64];
    core::hint::black_box(&frame)[3] + overflow(core::hint::black_box(depth) + 1)
}

#[test]
fn the_cases_of_fresh_processes() {
    let Ok(case) = std::env::var(CASE) else { return };
    // SAFETY: system calls; no core files from deliberate crashes.
    unsafe {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::alarm(30);
    }
    match case.as_str() {
        "overflow" => {
            install().expect("install");
            core::hint::black_box(overflow(0));
        }
        "null" => {
            install().expect("install");
            store(0x1000, 1);
        }
        "siginfo" => {
            set_action(libc::SIGSEGV, with_siginfo as *const () as usize, libc::SA_SIGINFO);
            install().expect("install");
            store(0x1000, 1);
        }
        "plain" => {
            set_action(libc::SIGBUS, without_siginfo as *const () as usize, 0);
            install().expect("install");
            // SAFETY: a signal to ourselves.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        "ignored and sent" => {
            set_action(libc::SIGSEGV, libc::SIG_IGN, 0);
            install().expect("install");
            // SAFETY: a signal to ourselves.
            unsafe { libc::raise(libc::SIGSEGV) };
            // SAFETY: leaves at once.
            unsafe { libc::_exit(46) };
        }
        "ignored and real" => {
            set_action(libc::SIGSEGV, libc::SIG_IGN, 0);
            install().expect("install");
            store(0x1000, 1);
        }
        "default and sent" => {
            set_action(libc::SIGSEGV, libc::SIG_DFL, 0);
            install().expect("install");
            // SAFETY: a signal to ourselves.
            unsafe { libc::raise(libc::SIGSEGV) };
        }
        other => panic!("no such case: {other}"),
    }
    // SAFETY: leaves at once: the case did not end as it should.
    unsafe { libc::_exit(1) }
}

#[test]
fn a_stack_overflow_is_still_told_by_rust() {
    let output = run("overflow");
    assert_eq!(died_of(&output), Some(libc::SIGABRT), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("has overflowed its stack"),
        "{output:?}"
    );
}

#[test]
fn a_wild_store_still_kills_with_the_right_signal() {
    assert_eq!(died_of(&run("null")), Some(libc::SIGSEGV));
}

#[test]
fn an_earlier_handler_gets_an_unresolved_fault_as_the_kernel_would_give_it() {
    assert_eq!(run("siginfo").status.code(), Some(42));
    assert_eq!(run("plain").status.code(), Some(44));
}

#[test]
fn ignored_and_default_signals_stay_ignored_and_deadly() {
    assert_eq!(run("ignored and sent").status.code(), Some(46));
    assert_eq!(died_of(&run("ignored and real")), Some(libc::SIGSEGV));
    assert_eq!(died_of(&run("default and sent")), Some(libc::SIGSEGV));
}
