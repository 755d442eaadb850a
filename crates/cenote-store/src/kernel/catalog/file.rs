//! Reads the two files of the catalog: what each holds, what the two hold together, and what of
//! that is damage.
//!
//! A file is scanned for whole frames. Where none begins, the scan goes on at the next multiple of
//! 8, so one damaged frame costs only itself. The frames of both files are put together by (batch,
//! index). Bytes without a frame in both files are damage, with one exception:
//!
//! **Torn tail.** A batch is appended to `catalog.0` and synced before `catalog.1` is touched. So
//! if `catalog.1` is whole and ends with batch n, and `catalog.0` holds n and then bytes that make
//! no batch, those bytes are a batch that was never made and was acknowledged to no caller.

use crate::kernel::interface::report::{Damage, DamageEffect};
use cenote_layout::catalog::{
    Frame, RECORD_MAGIC, Record, RecordError, decode_frame, encode_frame,
};
use std::collections::BTreeMap;

/// Names of the two files, in the order in which a batch is written to them.
pub(crate) const FILES: [&str; 2] = ["catalog.0", "catalog.1"];
/// What is lost in both is of both.
const BOTH_FILES: &str = "catalog.0 and catalog.1";
/// Names under which a new file is prepared before it replaces the old.
pub(crate) const NEW_FILES: [&str; 2] = ["catalog.0.new", "catalog.1.new"];

/// What one file holds.
#[derive(Debug, Default)]
struct FileScan {
    /// Whether the file is there.
    present: bool,
    /// Whole frames and where they lie.
    frames: Vec<(Frame, usize)>,
    /// Ranges without a frame: start, length, why.
    bad: Vec<(usize, usize, RecordError)>,
    /// Highest batch that is complete in this file.
    last: u64,
    /// Bytes up to the end of that batch.
    end: usize,
}

fn scan(bytes: Option<&[u8]>) -> FileScan {
    let Some(bytes) = bytes else { return FileScan::default() };
    let mut out = FileScan { present: true, ..FileScan::default() };
    let mut at = 0;
    while at < bytes.len() {
        match decode_frame(&bytes[at..]) {
            Ok(frame) => {
                let len = frame.len;
                out.frames.push((frame, at));
                at += len;
            }
            Err(error) => {
                let start = at;
                at = next_frame(bytes, at + 1);
                out.bad.push((start, at - start, error));
            }
        }
    }
    // Complete batches: frames 0..=last, one after the other, nothing between.
    let (mut expected, mut position) = (None, 0);
    for (frame, offset) in &out.frames {
        let continues = expected == Some((frame.batch, frame.index)) && *offset == position;
        if continues || frame.index == 0 {
            position = offset + frame.len;
            if frame.last {
                if frame.batch >= out.last {
                    out.last = frame.batch;
                    out.end = position;
                }
                expected = None;
            } else {
                expected = Some((frame.batch, frame.index + 1));
            }
        } else {
            expected = None;
        }
    }
    out
}

/// Where the next whole frame begins at or after `from`; the end if there is none.
fn next_frame(bytes: &[u8], from: usize) -> usize {
    let mut at = from.next_multiple_of(8);
    while at + RECORD_MAGIC.len() <= bytes.len() {
        if bytes[at..at + 8] == RECORD_MAGIC && decode_frame(&bytes[at..]).is_ok() {
            return at;
        }
        at += 8;
    }
    bytes.len()
}

/// The catalog as both files tell it.
#[derive(Debug)]
pub(crate) struct Merged {
    /// Records in order, from the last snapshot on.
    pub(crate) records: Vec<Record>,
    /// Number of the last batch; 0 if there is none.
    pub(crate) last_batch: u64,
    /// The last whole batch, and which records of the journals it names.
    pub(crate) names: (u64, [u64; 2]),
    /// What both files should hold; `None` if something is lost in both, and the files are better
    /// left alone.
    pub(crate) canonical: Option<Vec<u8>>,
    /// What is wrong, and whether the other file made up for it.
    pub(crate) damage: Vec<Damage>,
    /// The file that ends in a batch which its writer did not complete.
    pub(crate) torn: Option<usize>,
    /// Whether any batch is whole at all.
    pub(crate) usable: bool,
    /// Both files are whole, and end with this batch although there was a later one.
    pub(crate) rolled_back: Option<u64>,
}

/// Puts the two files together. `None` for a file that is not there. Batch `at_least` was there
/// once.
pub(crate) fn merge(bytes: [Option<&[u8]>; 2], at_least: u64) -> Merged {
    let scans = [scan(bytes[0]), scan(bytes[1])];
    let mut found = FoundDamage::default();
    let frames = found.frames(&scans);
    let complete = complete_batches(&frames);
    let last_complete = complete.last().copied().unwrap_or(0);
    let first = found.first_batch(&frames, &complete);
    found.missing_batches(first, &complete);
    let torn = torn_tail(&scans, last_complete);
    if torn.is_none() {
        found.lost_tails(&scans, last_complete);
    }
    let rolled_back = found.rolled_back(last_complete, at_least);
    for (file, scan) in scans.iter().enumerate() {
        found.damage_of_file(file, scan, torn == Some(file), last_complete);
    }
    let FoundDamage { damage, lost } = found;

    let mut records = Vec::new();
    let mut canonical = Vec::new();
    for batch in complete.iter().filter(|batch| **batch >= first) {
        for frame in frames.range((*batch, 0)..=(*batch, u32::MAX)).map(|(_, frame)| frame) {
            records.push(frame.record.clone());
            let place = (*batch, frame.journals);
            encode_frame(place, (frame.index, frame.last), &frame.record, &mut canonical);
        }
    }
    let highest = frames.last_key_value().map_or(0, |(key, _)| key.0);
    let journals = frames.get(&(last_complete, 0)).map_or([0; 2], |frame| frame.journals);
    Merged {
        names: (last_complete, journals),
        records,
        last_batch: if torn.is_some() && !lost {
            last_complete
        } else {
            highest.max(last_complete).max(at_least).saturating_add(u64::from(lost))
        },
        canonical: (!lost).then_some(canonical),
        damage,
        torn,
        usable: !complete.is_empty(),
        rolled_back,
    }
}

/// Frames of both files by batch and index.
type Frames<'a> = BTreeMap<(u64, u32), &'a Frame>;

/// What is wrong with the two files.
#[derive(Default)]
struct FoundDamage {
    damage: Vec<Damage>,
    /// Whether something is lost in both.
    lost: bool,
}

impl FoundDamage {
    /// Something is lost that neither file has.
    fn lose(&mut self, file: &'static str, (offset, len): (u64, u64), detail: String) {
        self.lost = true;
        self.damage.push(Damage::Catalog { file, offset, len, detail, effect: DamageEffect::Lost });
    }

    /// The frames that the files have together. What they say differently is lost.
    fn frames<'a>(&mut self, scans: &'a [FileScan; 2]) -> Frames<'a> {
        let mut frames = Frames::new();
        for (file, scan) in scans.iter().enumerate() {
            for (frame, offset) in &scan.frames {
                let known = frames.entry((frame.batch, frame.index)).or_insert(frame);
                if *known != frame {
                    let detail = format!("batch {} differs in the other file", frame.batch);
                    self.lose(FILES[file], (*offset as u64, frame.len as u64), detail);
                }
            }
        }
        frames
    }

    /// The batch with the last snapshot; all before it is of no use.
    fn first_batch(&mut self, frames: &Frames<'_>, complete: &[u64]) -> u64 {
        let begins = |batch: &u64| {
            matches!(frames.get(&(*batch, 0)), Some(Frame { record: Record::NextPool(_), .. }))
        };
        let snapshot = complete.iter().rev().copied().find(begins);
        self.lost |= snapshot.is_none();
        snapshot.or(complete.first().copied()).unwrap_or(1)
    }

    /// Names the batches after the snapshot that are in neither file. One piece of damage for each
    /// gap, however wide: batch numbers on media may be anything.
    fn missing_batches(&mut self, first: u64, complete: &[u64]) {
        let mut next = first;
        for &batch in complete.iter().filter(|batch| **batch >= first) {
            if batch > next {
                let detail = match batch - next {
                    1 => format!("batch {next} is in neither"),
                    _ => format!("batches {next} to {} are in neither", batch - 1),
                };
                self.lose(BOTH_FILES, (0, 0), detail);
            }
            next = batch.saturating_add(1);
        }
    }

    /// Whether an end without a torn batch has lost one.
    fn lost_tails(&mut self, scans: &[FileScan; 2], last_complete: u64) {
        for scan in scans {
            let beyond = scan.frames.iter().any(|(frame, _)| frame.batch > last_complete);
            let bad_tail = scan.bad.iter().any(|(start, ..)| *start >= scan.end);
            // Bytes after the last batch of the file that knows all batches: a batch of which
            // nothing reads is gone.
            self.lost |= beyond || (bad_tail && scan.last == last_complete && scan.present);
        }
    }

    /// The last batch, if there was a later one. Only where nothing else says why: a damaged end is
    /// told as such.
    fn rolled_back(&mut self, last_complete: u64, at_least: u64) -> Option<u64> {
        if self.lost || last_complete >= at_least {
            return None;
        }
        let detail = format!(
            "both end with batch {last_complete}, although there was a batch {at_least}: they \
             were rolled back"
        );
        self.lose(BOTH_FILES, (0, 0), detail);
        Some(last_complete)
    }

    /// Names what is wrong with one file, except the batch that its writer did not complete.
    fn damage_of_file(
        &mut self,
        number: usize,
        scan: &FileScan,
        is_torn: bool,
        last_complete: u64,
    ) {
        let file = FILES[number];
        let effect = if self.lost { DamageEffect::Lost } else { DamageEffect::ReadFromOther };
        if !scan.present {
            let detail = "the file is not there".into();
            self.damage.push(Damage::Catalog { file, offset: 0, len: 0, detail, effect });
            return;
        }
        for (start, len, error) in &scan.bad {
            if is_torn && *start >= scan.end {
                continue;
            }
            let (offset, len, detail) = (*start as u64, *len as u64, error.to_string());
            self.damage.push(Damage::Catalog { file, offset, len, detail, effect });
        }
        // catalog.1 lacks one batch where its writer stopped, and a whole history where a
        // compaction has begun catalog.0 with a snapshot. A file that lacks more has lost writes.
        let behind = last_complete - scan.last.min(last_complete);
        let allowed = u64::from(number == 1);
        if behind > allowed && scan.bad.is_empty() {
            self.damage.push(Damage::Catalog {
                file,
                offset: scan.end as u64,
                len: 0,
                detail: format!("it ends with batch {}, the other with {last_complete}", scan.last),
                effect: DamageEffect::ReadFromOther,
            });
        }
    }
}

impl Merged {
    /// Records that took puddles or pools out, with their batches; none if records are lost.
    pub(crate) fn ended(&self) -> Vec<(u64, Record)> {
        let frames = scan(self.canonical.as_deref()).frames.into_iter().map(|(frame, _)| frame);
        let ends = |frame: &Frame| {
            matches!(frame.record, Record::PuddleRemoved(_) | Record::PoolRemoved(_))
        };
        frames.filter(ends).map(|frame| (frame.batch, frame.record)).collect()
    }
}

/// Numbers of the batches whose frames are all there, rising.
fn complete_batches(frames: &BTreeMap<(u64, u32), &Frame>) -> Vec<u64> {
    let mut complete = Vec::new();
    let (mut batch, mut expected) = (0, 0);
    for ((number, index), frame) in frames {
        if *number != batch {
            batch = *number;
            expected = 0;
        }
        if *index == expected {
            expected += 1;
            if frame.last {
                complete.push(batch);
            }
        }
    }
    complete
}

/// The file whose tail is a batch that was being written when its writer stopped, if there is one.
fn torn_tail(scans: &[FileScan; 2], last_complete: u64) -> Option<usize> {
    let tail = |scan: &FileScan| {
        scan.bad.iter().any(|(start, ..)| *start >= scan.end)
            || scan.frames.iter().any(|(_, at)| *at >= scan.end)
    };
    let [a, b] = scans;
    match (tail(a), tail(b)) {
        // catalog.0 was being written: catalog.1 is whole and just as far.
        (true, false)
            if b.present && b.bad.is_empty() && b.last == a.last && a.last == last_complete =>
        {
            Some(0)
        }
        // catalog.1 was being written: catalog.0 has the batch.
        (false, true) if a.present && a.last == b.last + 1 && a.last == last_complete => Some(1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_layout::id::{PoolId, Uuid};

    fn batch(number: u64) -> Vec<u8> {
        let mut out = Vec::new();
        if number == 1 {
            encode_frame((1, [0; 2]), (0, true), &Record::NextPool(PoolId(1)), &mut out);
        } else {
            let place = (number, [number * 2, number * 3]);
            let first = Record::PuddleRemoved(Uuid([number as u8; 16]));
            encode_frame(place, (0, false), &first, &mut out);
            encode_frame(place, (1, true), &Record::PoolRemoved(PoolId(number)), &mut out);
        }
        out
    }

    fn file(last: u64) -> Vec<u8> {
        (1..=last).flat_map(batch).collect()
    }

    #[test]
    fn whole_files_have_no_damage() {
        let bytes = file(5);
        let merged = merge([Some(&bytes), Some(&bytes)], 0);
        assert!(merged.damage.is_empty(), "{:?}", merged.damage);
        assert_eq!((merged.last_batch, merged.names), (5, (5, [10, 15])));
        assert_eq!(merged.canonical.as_deref(), Some(&bytes[..]));
        assert_eq!(merged.records.len(), 9);
    }

    #[test]
    fn every_cut_of_the_first_file_is_a_torn_tail_and_loses_only_the_batch_being_written() {
        let (before, whole) = (file(4), file(5));
        for cut in before.len()..whole.len() {
            let merged = merge([Some(&whole[..cut]), Some(&before)], 0);
            assert!(merged.damage.is_empty(), "cut {cut}: {:?}", merged.damage);
            assert_eq!(merged.canonical.as_deref(), Some(&before[..]), "cut {cut}");
            assert_eq!((merged.last_batch, merged.names), (4, (4, [8, 12])));
        }
    }

    #[test]
    fn every_cut_of_the_second_file_keeps_the_batch_of_the_first() {
        let (before, whole) = (file(4), file(5));
        for cut in before.len()..whole.len() {
            let merged = merge([Some(&whole), Some(&whole[..cut])], 0);
            assert!(merged.damage.is_empty(), "cut {cut}: {:?}", merged.damage);
            assert_eq!(merged.canonical.as_deref(), Some(&whole[..]), "cut {cut}");
        }
    }

    #[test]
    fn every_flipped_byte_of_one_file_is_named_and_read_from_the_other() {
        let whole = file(5);
        for damaged_file in 0..2 {
            let mut at = 0;
            while at < whole.len() {
                let mut bad = whole.clone();
                bad[at] ^= 0x40;
                let files = if damaged_file == 0 { [&bad, &whole] } else { [&whole, &bad] };
                let merged = merge([Some(files[0]), Some(files[1])], 0);
                assert_eq!(
                    merged.canonical.as_deref(),
                    Some(&whole[..]),
                    "byte {at} of file {damaged_file}"
                );
                // Padding between frames is not covered and is put right silently; and an
                // interrupted writer leaves a bad end of file 1.
                let padding = merge([Some(&bad), Some(&bad)], 0).damage.is_empty();
                let named = !merged.damage.is_empty() || merged.torn == Some(1);
                assert!(padding || named, "byte {at} of file {damaged_file} was not named");
                at += 1;
            }
        }
    }

    #[test]
    fn different_damage_in_both_files_is_made_up_for_frame_by_frame() {
        let whole = file(5);
        let (mut a, mut b) = (whole.clone(), whole.clone());
        a[batch(1).len() + 50] ^= 1;
        b[file(3).len() + 50] ^= 1;
        let merged = merge([Some(&a), Some(&b)], 0);
        assert_eq!(merged.canonical.as_deref(), Some(&whole[..]));
        assert_eq!(merged.damage.len(), 2);
    }

    #[test]
    fn the_same_damage_in_both_files_is_lost_and_said_so() {
        let whole = file(5);
        for at in [file(2).len() + 50, file(4).len() + 50, 48] {
            let mut bad = whole.clone();
            bad[at] ^= 1;
            let merged = merge([Some(&bad), Some(&bad)], 0);
            assert!(merged.canonical.is_none(), "byte {at}");
            assert!(merged.damage.iter().any(|d| d.is_lost()), "byte {at}: {:?}", merged.damage);
            assert!(merged.last_batch > 5, "a lost batch's number must not be used again");
        }
    }

    #[test]
    fn a_missing_or_rolled_back_file_is_read_from_the_other() {
        let (old, whole) = (file(2), file(5));
        for files in [
            [None, Some(&whole)],
            [Some(&whole), None],
            [Some(&whole), Some(&old)],
            [Some(&old), Some(&whole)],
        ] {
            let merged = merge(files.map(|f| f.map(|f| &f[..])), 0);
            assert_eq!(merged.canonical.as_deref(), Some(&whole[..]));
            assert_eq!(merged.damage.len(), 1, "{:?}", merged.damage);
        }
    }

    #[test]
    fn two_whole_files_that_lack_a_batch_which_was_there_are_rolled_back() {
        let old = file(3);
        for known in 0..=3 {
            let merged = merge([Some(&old), Some(&old)], known);
            assert!(
                merged.rolled_back.is_none() && merged.damage.is_empty(),
                "{known}: {:?}",
                merged.damage
            );
        }
        let merged = merge([Some(&old), Some(&old)], 5);
        assert_eq!(merged.rolled_back, Some(3));
        assert!(
            merged.canonical.is_none() && merged.damage.iter().any(Damage::is_lost),
            "{:?}",
            merged.damage
        );
        assert!(merged.last_batch > 5, "the number of a batch that is gone must not be used again");
        // A file of the right age makes up for the other one.
        let new = file(5);
        assert_eq!(merge([Some(&old), Some(&new)], 5).canonical.as_deref(), Some(&new[..]));
        // A tail that is damaged is told as damage.
        let mut bad = new.clone();
        let at = bad.len() - 20;
        bad[at] ^= 1;
        let merged = merge([Some(&bad), Some(&bad)], 5);
        assert!(merged.rolled_back.is_none() && merged.canonical.is_none());
    }

    #[test]
    fn bytes_of_anything_never_panic() {
        let mut x = 1u64;
        for len in 0..300 {
            let junk: Vec<u8> = (0..len)
                .map(|_| {
                    x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (x >> 56) as u8
                })
                .collect();
            let merged = merge([Some(&junk), Some(&junk)], 0);
            assert!(!merged.usable);
        }
    }
}
