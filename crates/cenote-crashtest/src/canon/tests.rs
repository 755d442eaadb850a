use super::*;
use crate::history::{History, Op};
use crate::rig::{Rig, Strategy, base_image, window_base};
use cenote::HeapKind;
use cenote_medium::Durability;
use cenote_medium::planted::Bug;

fn whole_of(image: &Image) -> u64 {
    canonical(image, &Context::default()).whole
}

/// A loss of power that lost nothing, after operations of which no commit is one.
fn after(ops: &str, place: usize) -> Image {
    let base = base_image(Durability::Power, window_base(8000 + place), HeapKind::Traced)
        .expect("a store");
    let mut rig = Rig::start(&base, Strategy::LAZY).expect("a rig");
    History::parse(ops)
        .0
        .iter()
        .for_each(|&op: &Op| rig.step(op, Bug::None).expect("an operation"));
    rig.sim.state_now().image_latest().at_event(0)
}

#[test]
fn what_recovery_does_not_look_at_is_left_out_and_nothing_else() {
    let image = after("as", 0);
    let at = puddles(&image);
    let log = at.iter().find(|p| view(&image, &at, p).is_some_and(|v| !v.entries.is_empty()));
    let log = log.expect("a log with entries");
    let entries = view(&image, &at, log).expect("a log").entries;
    let changed = |name: &str, offset: u64, with: u64| {
        let mut image = image.clone();
        assert!(image.overwrite(name, offset, &with.to_le_bytes()));
        image
    };
    let undo = entries.iter().rfind(|e| e.kind == EntryKind::Undo).expect("an undo entry");
    let heap = heap_of(&at, undo.addr).expect("its puddle");
    let offset = undo.addr - heap.addr;
    let marks = heap.parts.marks[0].clone();
    let tail = log.body + RANGE_OFFSET + 8;
    for (what, other) in [
        ("marks of blocks that are free", changed(&heap.name, marks.start, 77)),
        ("the tail", changed(&log.name, tail, 77)),
        ("memory under an undo entry", changed(&heap.name, offset, 77)),
    ] {
        assert_ne!(other.hash(), image.hash(), "{what}");
        assert_eq!(whole_of(&other), whole_of(&image), "{what}");
    }
    let process = image.clone().with_kind(CrashKind::Process);
    let last = log.body + ENTRIES_OFFSET;
    for (what, one, other) in [
        ("memory under no entry", image.clone(), changed(&heap.name, offset + 8, 77)),
        ("an entry", image.clone(), changed(&log.name, last, 77)),
        ("a mark that says \"allocated\"", image.clone(), changed(&heap.name, marks.start, 0xff)),
        ("the kind of the crash", image.clone(), process.clone()),
        (
            "marks after a crash of the process",
            process.clone(),
            changed(&heap.name, marks.start, 77).with_kind(CrashKind::Process),
        ),
        ("a file", image.clone(), changed("catalog.0", 64, 77)),
    ] {
        assert_ne!(whole_of(&one), whole_of(&other), "{what}");
    }
}

#[test]
fn the_number_of_a_transaction_does_not_count_but_what_it_does() {
    // Two aborts leave everything as it was, but for the number of the transaction and what
    // stands behind its entries.
    let (one, two, other) = (after("s", 1), after("sXsXs", 1), after("sp", 1));
    assert_ne!(one.hash(), two.hash());
    assert_eq!(whole_of(&one), whole_of(&two));
    assert_ne!(whole_of(&one), whole_of(&other));
}
