//! Applies committed psyncs to the primaries.
//!
//! A psync is over when its record is durable. No caller waits until its lines are in the
//! primaries: the psync is queued, and a thread applies it. Meanwhile [`Primary`] reads a primary
//! through the queue.
//!
//! # The argument
//!
//! * *Order.* One thread at a time takes from the queue, first in, first out. The psyncs of one
//!   primary enter it one after the other. So a line gets its values in the order of the records.
//! * *A read returns the last commit.* The caller that psyncs a primary is the only one that adds
//!   to its queue, and looks at the queue *before* it reads the file. A line that is in no entry is
//!   in the file, and no thread writes it. A line that is in some may be old, new or torn in the
//!   file; the entries are laid over it in their order, so the last one counts. An entry that is
//!   applied meanwhile does no harm.
//! * *After a crash* the journal has the record until it is in primaries that are synced: until
//!   then its half counts as unapplied.
//! * *A caller that needs the file itself* (a detach, a snapshot, a removal) settles first:
//!   [`Journal::settle`].
//! * *Bounds.* The entries are in memory, and their primaries are open files. There are at most
//!   [`QUEUE_MAX`] entries with [`TARGETS_MAX`] primaries, and no more than the halves of the
//!   journal hold; a caller that finds the queue full helps. Changed primaries stay open until they
//!   are synced; above [`TOUCHED_MAX`] of a half they are synced early, which saves a later trim
//!   that work. Without a thread, a caller that needs an entry applied applies it.
//! * *A primary that cannot be written* poisons: its entry stays in the queue, so the record is not
//!   trimmed, and the next open applies it.

use crate::JournalError;
use crate::apply_queue::{ApplyTarget, Primary, Queued};
use crate::changes::Changes;
use crate::journal::{Journal, Locked, Ticket};
use cenote_layout::id::Uuid;
use cenote_medium::FileHandle;
use cenote_medium::planted::{Bug, planted};
use std::collections::VecDeque;
use std::sync::Arc;

/// Psyncs that may wait for being applied.
const QUEUE_MAX: usize = 64;
/// Primaries of those psyncs, one that is larger apart: each is an open file.
const TARGETS_MAX: usize = 1024;
/// Primaries of a half that were changed and are not synced: with one more they are synced although
/// the half is not full.
const TOUCHED_MAX: usize = 512;
/// Sets of buffers that are kept, and most bytes of one.
const SPARE_MAX: usize = 2;
const SPARE_LEN_MAX: usize = 64 << 20;

impl Journal {
    /// Empty changes, with the memory of earlier ones.
    #[must_use]
    pub fn changes(&self) -> Changes {
        self.lock().spare.pop().unwrap_or_default()
    }

    /// Takes the memory of changes back that were not committed.
    pub fn recycle(&self, changes: Changes) {
        Self::keep(&mut self.lock(), changes);
    }

    fn keep(state: &mut Locked<'_>, mut changes: Changes) {
        if state.spare.len() < SPARE_MAX && changes.data.capacity() <= SPARE_LEN_MAX {
            changes.clear();
            state.spare.push(changes);
        }
    }

    /// A primary as the last committed psync left it: for the thread that psyncs it, and for
    /// readers of bytes that no psync changes meanwhile.
    #[must_use]
    pub fn primary<'a>(&self, id: Uuid, file: &'a FileHandle, data_offset: u64) -> Primary<'a> {
        let mut later = Vec::new();
        if !planted(Bug::LaterNotLaidOver) {
            later.extend(self.lock().queue.iter().filter(|later| later.has(id)).cloned());
        }
        Primary { file, id, data_offset, later }
    }

    /// Queues a committed psync. The journal's thread applies it; without one, the next caller that
    /// needs it does. The primaries are in the order in which `changes` counts them.
    ///
    /// # Errors
    /// [`JournalError::NotCopied`], of this psync or of an earlier one: the psync is committed all
    /// the same, and the guard was told.
    pub fn apply_later(
        &self,
        ticket: Ticket,
        changes: Changes,
        targets: Vec<ApplyTarget>,
    ) -> Result<(), JournalError> {
        let later = Arc::new(Queued::new(ticket.half(), changes, targets));
        let mut state = self.lock();
        state.queue.push_back(later);
        self.notify();
        let full = |queue: &VecDeque<Arc<Queued>>| {
            let targets = queue.iter().map(|later| later.targets.len()).sum::<usize>();
            queue.len() > QUEUE_MAX || (queue.len() > 1 && targets > TARGETS_MAX)
        };
        while full(&state.queue) {
            self.usable()?;
            state = self.apply_or_wait(state)?;
        }
        Ok(())
    }

    /// Whether something of a primary is committed and not there yet.
    #[must_use]
    pub fn is_behind(&self, id: Uuid) -> bool {
        self.lock().queue.iter().any(|later| later.has(id))
    }

    /// Brings all that is committed of a primary into its file, unsynced.
    ///
    /// # Errors
    /// [`JournalError::NotCopied`]; the journal has stopped.
    pub fn settle(&self, id: Uuid) -> Result<(), JournalError> {
        let mut state = self.lock();
        while state.queue.iter().any(|later| later.has(id)) {
            self.usable()?;
            state = self.apply_or_wait(state)?;
        }
        Ok(())
    }

    /// Applies the psync that has waited longest. Waits for a change if another thread is applying,
    /// or if there is none.
    pub(crate) fn apply_or_wait<'a>(
        &'a self,
        mut state: Locked<'a>,
    ) -> Result<Locked<'a>, JournalError> {
        let first = state.queue.front().filter(|_| !state.applying).map(Arc::clone);
        let Some(later) = first else { return Ok(self.wait(state)) };
        state.applying = true;
        drop(state);
        let applied = later.apply().and_then(|()| later.roots());
        let mut state = self.lock();
        state.applying = false;
        let roots = match applied {
            Ok(roots) => roots,
            Err((name, source)) => {
                drop(state);
                return Err(self.not_copied(name, source));
            }
        };
        for (id, root) in roots {
            state.roots.set(id, root);
        }
        drop(state.queue.pop_front());
        let half = &mut state.halves[later.half];
        half.unapplied = half.unapplied.saturating_sub(1);
        half.touched
            .extend(later.targets.iter().map(|target| (target.id, Arc::clone(&target.file))));
        let (number, many) = (later.half, half.touched.len() > TOUCHED_MAX && !half.trimming);
        if let Ok(later) = Arc::try_unwrap(later) {
            Self::keep(&mut state, later.changes);
        }
        self.notify();
        if !many {
            return Ok(state);
        }
        match self.trim_or_wait(state, number) {
            // This trim is early, and no caller waits for it: the caller's psync may be committed,
            // and a caller that needs the half tries again. But a primary that cannot be synced
            // poisons.
            Err(_) if self.usable().is_ok() => Ok(self.lock()),
            trimmed => trimmed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::own;
    use crate::{Draft, Guard, Home, Roots, Settings, Stopped, Tie, scan};
    use cenote_layout::object::LineRun;
    use cenote_medium::Durability;
    use cenote_medium::sim::{CrashKind, Image, SimMedium, SimOptions};

    #[derive(Debug)]
    struct Healthy;

    impl Guard for Healthy {
        fn check(&self) -> Result<(), Stopped> {
            Ok(())
        }

        fn poison(&self, reason: &str) {
            panic!("{reason}");
        }
    }

    const STORE: Uuid = Uuid([9; 16]);

    /// A journal whose halves are large enough for all records of a test; nothing is applied by
    /// itself.
    fn journal() -> (Arc<SimMedium>, cenote_medium::OwnedMedium, Journal) {
        let sim = SimMedium::new(SimOptions::new(Durability::Process));
        let medium = own(sim.clone());
        let home = Home {
            medium: medium.clone(),
            store: STORE,
            name: "journal",
            guard: Arc::new(Healthy),
            session: 0,
            tie: Tie::default(),
        };
        let settings = Settings { half_len_max: 64 << 20, syncs: true, background: false };
        let journal =
            Journal::create(home, 32 << 20, (1, Roots::default()), settings).expect("a journal");
        (sim, medium, journal)
    }

    fn id(number: usize) -> Uuid {
        Uuid((number as u128 + 1).to_le_bytes())
    }

    #[test]
    fn as_many_primaries_wait_as_there_may_be_open_files_and_the_oldest_are_written_first() {
        const EACH: usize = 300;
        let (_sim, medium, journal) = journal();
        medium.create("p", 4096).expect("a file");
        // One file for all: what counts is how many of them are kept.
        let file = Arc::new(FileHandle::open(&medium, "p").expect("it is there"));
        let mut given = Vec::new();
        let mut psync = |value: u8, ids: Vec<Uuid>| {
            let changes = changes(&[(0, u64::from(value) % 64, 1, value)]);
            let ticket =
                journal.append(&Draft::new(&ids, &changes).expect("a record")).expect("appended");
            journal.make_durable(&ticket).expect("durable");
            let target = |id: &Uuid| ApplyTarget {
                id: *id,
                file: Arc::clone(&file),
                data_offset: 0,
                rooted: None,
            };
            journal.apply_later(ticket, changes, ids.iter().map(target).collect()).expect("queued");
            given.push(value);
            // The newest record waits, and everything before it is written.
            let state = journal.lock();
            let waiting = &given[given.len() - state.queue.len()..];
            let waits: Vec<u8> = state.queue.iter().map(|later| later.changes.data[0]).collect();
            assert_eq!(waits, waiting);
            let mut bytes = [0; 4096];
            file.read_exact_at(0, &mut bytes).expect("read");
            for value in &given {
                let there = bytes[usize::from(*value) % 64 * 64] == *value;
                assert_eq!(
                    there,
                    !waiting.contains(value),
                    "psync {value} of {given:?}, {waiting:?} wait"
                );
            }
            (state.queue.len(), state.queue.iter().map(|later| later.targets.len()).sum::<usize>())
        };
        let many = |from: usize, count: usize| (from..from + count).map(id).collect::<Vec<Uuid>>();
        for (value, expected) in (1..).zip([1, 2, 3, 3, 3, 3]) {
            let (psyncs, targets) = psync(value, many(usize::from(value) * EACH, EACH));
            assert_eq!((psyncs, targets), (expected, expected * EACH));
            assert!(targets <= TARGETS_MAX);
        }
        // Exactly as many as there may be; then one more.
        assert_eq!(psync(7, many(0, TARGETS_MAX - 3 * EACH)), (4, TARGETS_MAX));
        assert_eq!(psync(8, many(0, 1)), (4, TARGETS_MAX - EACH + 1));
        // One that is larger by itself waits alone, and makes way for the next.
        assert_eq!(psync(9, many(0, TARGETS_MAX + 1)), (1, TARGETS_MAX + 1));
        assert_eq!(psync(10, many(0, 2)), (1, 2));
        // Nor are there more psyncs than there may be.
        for value in 11..=80 {
            let (psyncs, _) = psync(value, many(0, 2));
            assert_eq!(psyncs, (usize::from(value) - 9).min(QUEUE_MAX), "{value}");
        }
        journal.settle(id(0)).expect("applied");
        assert!(journal.lock().queue.is_empty());
    }

    #[test]
    fn a_record_that_is_too_long_to_be_gathered_survives_a_session_that_is_given_up() {
        // Of more than `record::GATHER_MAX`, which is written in three parts.
        for lines in [4097u32, 1 << 14] {
            let (sim, medium, journal) = journal();
            medium.create("p", 2 << 20).expect("a file");
            medium.sync_dir("").expect("names");
            let changes = changes(&[(0, 7, 1, 3), (0, 100, lines, 5), (0, 99, 1, 4)]);
            let ids = [id(0)];
            let found = |image: &Image| {
                let medium = own(SimMedium::from_image_unrecorded(image));
                let file = FileHandle::open(&medium, "journal").expect("it is there");
                let scan = scan::scan(&file, STORE, true).expect("read").expect("believed");
                assert_eq!(scan.damage, None);
                let mut runs = Vec::new();
                for record in &scan.records {
                    assert_eq!((record.header.seq, &record.objects[..]), (1, &ids[..]));
                    let data = record.read_data(&file).expect("read");
                    let collect = |id, offset, bytes: &[u8]| {
                        runs.push((id, offset, bytes.to_vec()));
                        Ok::<_, ()>(())
                    };
                    record.for_each_run(&data, collect).expect("collected");
                }
                (scan.last_seq(), runs)
            };
            let run =
                |first: u64, lines: usize, value: u8| (id(0), first * 64, vec![value; lines * 64]);
            let all = (1, vec![run(7, 1, 3), run(100, lines as usize, 5), run(99, 1, 4)]);
            assert_eq!(found(&sim.state_now().image_oldest()), (0, Vec::new()), "before it");
            let ticket =
                journal.append(&Draft::new(&ids, &changes).expect("a record")).expect("appended");
            // Not acknowledged yet: all of it or nothing.
            assert_eq!(found(&sim.image_now(CrashKind::Process)), all);
            assert_eq!(found(&sim.state_now().image_oldest()), (0, Vec::new()), "no sync yet");
            journal.make_durable(&ticket).expect("durable");
            // The session ends here, and the journal's thread has not applied the record.
            drop((ticket, journal));
            for image in [sim.state_now().image_oldest(), sim.image_now(CrashKind::Process)] {
                assert_eq!(found(&image), all, "{lines} lines");
            }
        }
    }

    #[test]
    fn however_many_primaries_are_changed_few_stay_open_and_a_loss_of_power_takes_nothing() {
        let (sim, medium, journal) = journal();
        let most = TOUCHED_MAX + 100;
        for number in 0..most {
            let name = format!("p{number}");
            medium.create(&name, 4096).expect("a file");
            let file = Arc::new(FileHandle::open(&medium, &name).expect("it is there"));
            let id = id(number);
            let changes = changes(&[(0, 3, 1, 7)]);
            let ids = [id];
            let ticket =
                journal.append(&Draft::new(&ids, &changes).expect("a record")).expect("appended");
            journal.make_durable(&ticket).expect("durable");
            journal
                .apply_later(
                    ticket,
                    changes,
                    vec![ApplyTarget { id, file, data_offset: 0, rooted: None }],
                )
                .expect("queued");
            journal.settle(id).expect("applied");
            let open = journal.lock().halves[0].touched.len();
            assert!(open <= TOUCHED_MAX, "{open}");
        }
        medium.sync_dir("").expect("names");
        // What is not open any more is durable; what is, is in the journal.
        let open = journal.lock().halves[0].touched.len();
        assert!(open < most);
        let image = sim.state_now().image_oldest();
        let there = |number: &usize| {
            image.file(&format!("p{number}")).is_some_and(|bytes| bytes.get(3 * 64) == Some(&7))
        };
        assert!((0..most).filter(there).count() >= most - open);
    }

    fn changes(runs: &[(u32, u64, u32, u8)]) -> Changes {
        let mut changes = Changes::default();
        for (object, first_line, lines, value) in runs.iter().copied() {
            changes.runs.push(LineRun { object, lines, first_line });
            changes.data.extend(std::iter::repeat_n(value, lines as usize * 64));
        }
        changes
    }

    #[test]
    fn reads_return_what_was_committed_last_whatever_the_file_holds() {
        let medium = own(SimMedium::new(SimOptions::new(Durability::Process)));
        medium.create("p", 3 * 4096).expect("a file");
        medium.create("q", 4096).expect("a file");
        let file = |name| Arc::new(FileHandle::open(&medium, name).expect("it is there"));
        let ids = [Uuid::from_random_bytes([1; 16]), Uuid::from_random_bytes([2; 16])];
        let targets = || {
            vec![
                ApplyTarget { id: ids[0], file: file("p"), data_offset: 4096, rooted: None },
                ApplyTarget { id: ids[1], file: file("q"), data_offset: 0, rooted: None },
            ]
        };
        // Neither sorted nor of one primary alone; the second comes over the first.
        let entries = [
            changes(&[(1, 2, 1, 9), (0, 64, 2, 3), (0, 0, 3, 1)]),
            changes(&[(0, 2, 4, 2), (0, 65, 63, 4)]),
        ];
        let mut expected = vec![0u8; 2 * 4096];
        for (first, lines, value) in [(64, 2, 3), (0, 3, 1), (2, 4, 2), (65, 63, 4)] {
            expected[first * 64..][..lines * 64].fill(value);
        }
        let later: Vec<Arc<Queued>> = entries
            .into_iter()
            .map(|changes| Arc::new(Queued::new(0, changes, targets())))
            .collect();
        let primary_file = file("p");
        let primary =
            Primary { file: &primary_file, id: ids[0], data_offset: 4096, later: later.clone() };
        for done in 0..3 {
            for (offset, len) in
                [(0u64, 8192usize), (100, 60), (128, 1), (4096, 4096), (4159, 3), (8191, 1)]
            {
                let mut bytes = vec![7; len];
                primary.read(offset, &mut bytes).expect("read");
                assert!(bytes == expected[offset as usize..][..len], "{done} {offset} {len}");
            }
            if let Some(later) = later.get(done) {
                later.apply().expect("applied");
            }
        }
        let mut other = [0; 4096];
        file("q").read_exact_at(0, &mut other).expect("read");
        assert!(other[128..192].iter().all(|b| *b == 9) && other[..128].iter().all(|b| *b == 0));
    }
}
