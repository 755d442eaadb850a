//! Fuzzes journals of psyncs: written by the production writer, damaged or forged, then scanned.
//! It asserts:
//!
//! * nothing panics, and no record lies outside of what the file can hold;
//! * records come in the order of their numbers, without a gap, from the one behind the last trim;
//! * a record that was not forged is as it was written;
//! * a journal that was not damaged has all records that are needed, and reports no damage;
//! * what a scan accepts, a new session goes on from.

use crate::forge;
use crate::input::Input;
use cenote_journal::{
    ApplyTarget, Draft, Guard, Home, Journal, JournalScan, Roots, Settings, Stopped, Tie, scan,
};
use cenote_layout::PAGE_SIZE;
use cenote_layout::id::Uuid;
use cenote_layout::object::JOURNAL_HALVES_OFFSET;
use cenote_medium::sim::{SimMedium, SimOptions};
use cenote_medium::{Durability, FileHandle, OwnedMedium};
use std::collections::BTreeMap;
use std::sync::Arc;

const STORE: Uuid = Uuid([5; 16]);
const PRIMARY_LEN: u64 = 4 * PAGE_SIZE;
const IDS: [Uuid; 2] = [Uuid([1; 16]), Uuid([2; 16])];
const SETTINGS: Settings =
    Settings { half_len_max: 64 * PAGE_SIZE, syncs: true, background: false };

#[derive(Debug)]
struct Trusting;

impl Guard for Trusting {
    fn check(&self) -> Result<(), Stopped> {
        Ok(())
    }

    fn poison(&self, reason: &str) {
        unreachable!("nothing fails here: {reason}");
    }
}

/// Runs as they are in a record: object, first line, contents.
type Runs = Vec<(u32, u64, Vec<u8>)>;

fn home(medium: &OwnedMedium) -> Home {
    let (medium, guard) = (medium.clone(), Arc::new(Trusting));
    Home { medium, store: STORE, name: "journal", guard, session: 0, tie: Tie::default() }
}

pub(crate) fn run(input: &mut Input<'_>) {
    // SAFETY: nothing maps the files of this simulation.
    let medium: OwnedMedium =
        unsafe { OwnedMedium::new(SimMedium::new(SimOptions::new(Durability::Process))) };
    let half_len = PAGE_SIZE * (2 + input.below(3) as u64);
    let written = write(input, &medium, half_len);

    let len = medium.len("journal").expect("it is there") as usize;
    let original = medium.read("journal").expect("it can be read");
    let mut bytes = damaged(input, &original, half_len);
    let is_damaged = bytes != original;
    let forged = input.one_in(2) && forge::journal(input, &mut bytes);
    if input.one_in(16) {
        bytes.truncate(input.below(len));
    }
    medium.truncate("journal", bytes.len() as u64).expect("shorter");
    medium.write_at("journal", 0, &bytes).expect("written");

    let file = Arc::new(FileHandle::open(&medium, "journal").expect("it is there"));
    for writing in [false, true] {
        let found = match scan(&file, STORE, writing).expect("it can be read") {
            Ok(found) => found,
            Err(problem) => {
                assert!(bytes != original, "refused what was not damaged: {problem}");
                assert!(!problem.is_empty());
                return;
            }
        };
        let last = check_records(&file, &found, bytes.len() as u64, (!forged).then_some(&written));
        if !is_damaged && !forged && bytes == original {
            assert!(found.damage.is_none() && found.torn.is_empty(), "{found:?}");
            assert_eq!(
                last.unwrap_or(found.last_seq()),
                written.keys().last().copied().unwrap_or(0)
            );
        }
        if writing && found.damage.is_none() {
            go_on(&medium, &file, &found);
        }
    }
}

/// Writes a journal as a session does. Returns what is in its records, by number.
fn write(input: &mut Input<'_>, medium: &OwnedMedium, half_len: u64) -> BTreeMap<u64, Runs> {
    let journal = Journal::create(home(medium), half_len, (1, Roots::default()), SETTINGS)
        .expect("a new journal");
    let targets: Vec<ApplyTarget> = ["p", "q"]
        .into_iter()
        .zip(IDS)
        .map(|(name, id)| {
            medium.create(name, PRIMARY_LEN).expect("space");
            let file = Arc::new(FileHandle::open(medium, name).expect("it is there"));
            ApplyTarget { id, file, data_offset: 0, rooted: None }
        })
        .collect();
    let mut written: BTreeMap<u64, Runs> = BTreeMap::new();
    for _ in 0..input.below(6) {
        let mut changes = journal.changes();
        for object in 0..2 {
            for line in 0..input.below(3) as u64 {
                let lines = vec![input.byte(); 64 * (1 + input.below(20))];
                changes.add_lines(object, line * 22 + input.below(2) as u64, &lines);
            }
        }
        if changes.runs.is_empty() {
            continue;
        }
        let runs =
            changes.iter().map(|(run, data)| (run.object, run.first_line, data.to_vec())).collect();
        let draft = Draft::new(&IDS, &changes).expect("a small record");
        let ticket = journal.append(&draft).expect("there is space");
        written.insert(ticket.seq, runs);
        journal.make_durable(&ticket).expect("a sync");
        journal.apply_later(ticket, changes, targets.clone()).expect("room");
        if input.one_in(4) {
            journal.checkpoint().expect("a checkpoint");
        }
    }
    written
}

/// A journal with damage in some pages.
fn damaged(input: &mut Input<'_>, original: &[u8], half_len: u64) -> Vec<u8> {
    let mut bytes = original.to_vec();
    for _ in 0..input.below(5) {
        // The two headers, or the beginning of some page of the halves.
        let page = match input.below(4) {
            0 => input.below(2),
            _ => {
                JOURNAL_HALVES_OFFSET as usize / PAGE_SIZE as usize
                    + input.below(2 * half_len as usize / 4096)
            }
        } * PAGE_SIZE as usize;
        let reach = if input.one_in(2) { 128 } else { PAGE_SIZE as usize };
        let end = (page + reach).min(bytes.len());
        if page < end {
            input.damage(&mut bytes[page..end]);
        }
    }
    bytes
}

/// Checks the records of a scan: their order, their lengths and, unless they were forged, what is
/// in them. Returns the number of the last.
fn check_records(
    file: &FileHandle,
    found: &JournalScan,
    len: u64,
    written: Option<&BTreeMap<u64, Runs>>,
) -> Option<u64> {
    let mut last = None;
    for record in &found.records {
        let seq = record.header.seq;
        assert!(record.header.total_len <= len, "longer than its file");
        assert!(
            found.damage.is_some() || last.is_none_or(|last| seq == last + 1),
            "a gap before {seq}"
        );
        last = Some(seq);
        let data = record.read_data(file).expect("it can be read");
        let mut runs = Runs::new();
        record
            .for_each_run(&data, |id, offset, bytes| {
                let object = u32::from(id == IDS[1]);
                runs.push((object, offset / 64, bytes.to_vec()));
                Ok::<(), ()>(())
            })
            .expect("nothing fails");
        assert!(
            written.is_none_or(|written| written.get(&seq) == Some(&runs)),
            "record {seq} is not as it was written"
        );
    }
    last
}

/// A new session goes on from what was found, and leaves no record and no damage.
fn go_on(medium: &OwnedMedium, file: &Arc<FileHandle>, found: &JournalScan) {
    let records = found.records.len();
    let roots = found.roots.clone().unwrap_or_default();
    let again = Journal::resume(home(medium), Arc::clone(file), (found, roots), SETTINGS);
    drop(again.expect("a header is written"));
    let next = scan(file, STORE, true).expect("it can be read").expect("its header is whole");
    assert!(next.records.is_empty() && next.damage.is_none(), "{records} records, then {next:?}");
}
