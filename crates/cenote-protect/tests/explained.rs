//! Faults are explained by the ranges in which they lie.

use crate::mapped::{PAGE, Pages};
use cenote_protect::{Owner, RangeKind, Right, Tracked, Whole, explain};
use cenote_sys::fault;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

fn told(address: usize) -> Option<(RangeKind, String)> {
    explain(address).map(|found| (found.kind, found.what().to_owned()))
}

#[test]
fn the_narrowest_range_explains_and_an_ended_one_does_not() {
    // The first and the last page stay free: beyond them another test's ranges may lie.
    let pages = Pages::new(8);
    let tracked = Tracked::new(pages.address(1)..pages.address(7), "pool \"accounts\"");
    let inner = pages.address(2)..pages.address(4);
    let heap =
        Owner::new(inner.clone(), RangeKind::Metadata, "pool \"b\"", Whole::new(Right::Read));
    let outer = Some((RangeKind::Tracked, "pool \"accounts\"".to_owned()));
    assert_eq!(told(pages.address(1) + PAGE - 1), outer);
    assert_eq!(told(pages.address(2)), Some((RangeKind::Metadata, "pool \"b\"".to_owned())));
    assert_eq!(explain(pages.address(3)).expect("explained").range, inner);
    assert_eq!(told(pages.address(4)), outer);
    assert_eq!((told(pages.address(1) - 1), told(pages.address(7))), (None, None));
    heap.retire();
    assert_eq!(told(pages.address(2)), outer);
    drop(tracked);
    assert_eq!(told(pages.address(1)), None);
}

#[test]
fn a_long_name_is_cut_between_characters() {
    let pages = Pages::new(1);
    let what = format!("object \"{}\"", "ä".repeat(127));
    let _owner = Owner::new(pages.range(), RangeKind::ReadOnly, &what, Whole::new(Right::Read));
    let found = explain(pages.base).expect("explained");
    assert_eq!((found.what().len(), &what[..128]), (128, found.what()));
    let what = format!("pool \"{}\"", "ä".repeat(127));
    let _other = Owner::new(pages.range(), RangeKind::ReadOnly, &what, Whole::new(Right::Read));
    drop(_owner);
    let found = explain(pages.base).expect("explained");
    assert_eq!(&what[..found.what().len()], found.what());
}

static SEEN: AtomicU32 = AtomicU32::new(0);

/// Resolver of faults that explains them.
///
/// # Safety
/// `context` is a [`Tracked`] whose range `address` lies in.
unsafe fn explain_and_allow(context: *const (), address: usize) -> bool {
    let found = explain(address);
    if found.is_some_and(|found| found.kind == RangeKind::Tracked && found.what() == "pool \"x\"") {
        SEEN.fetch_add(1, Ordering::SeqCst);
    }
    // SAFETY: by contract.
    unsafe { (*context.cast::<Tracked>()).allow(address) }
}

/// Handlers explain faults while owners come and go beside them.
#[test]
fn a_handler_explains_while_owners_come_and_go() {
    let pages = Pages::new(256);
    let tracked = Tracked::new(pages.range(), "pool \"x\"");
    // SAFETY: `explain_and_allow` keeps the rules, and `tracked` outlives the registration.
    let registered = unsafe {
        fault::register(
            pages.base,
            pages.range().len(),
            explain_and_allow,
            (&raw const tracked).cast(),
        )
    };
    let registered = registered.expect("registered");
    // SAFETY: our own pages; the resolver gives writing back.
    unsafe { tracked.protect(0..256) }.expect("protected");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let beside = Pages::new(64);
            while !done.load(Ordering::SeqCst) {
                let owners: Vec<_> = (0..64)
                    .map(|page| {
                        let range = beside.address(page)..beside.address(page) + PAGE;
                        Owner::new(range, RangeKind::ReadOnly, "beside", Whole::new(Right::Read))
                    })
                    .collect();
                assert_eq!(
                    told(owners[7].range().start),
                    Some((RangeKind::ReadOnly, "beside".into()))
                );
            }
        });
        (0..256).for_each(|page| pages.store(page));
        done.store(true, Ordering::SeqCst);
    });
    assert_eq!((SEEN.load(Ordering::SeqCst), tracked.notes().count()), (256, 256));
    drop(registered);
}
