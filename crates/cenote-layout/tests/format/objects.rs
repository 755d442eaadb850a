//! Objects and the journal of psyncs.

use crate::drawn::{assert_drawn, document, section};
use cenote_layout::header::Header;
use cenote_layout::object::{
    COMMIT_MAGIC, CommitRecord, JOURNAL_HALVES_OFFSET, JournalHeader, LineRun, ObjectHeader,
    PSYNC_MAGIC, RecordHeader, RootEntry,
};
use std::mem::offset_of;

#[test]
fn objects_and_the_journal_are_drawn_as_they_are() {
    let text = document();
    let section = section(&text, "## Objects and the journal");
    assert_drawn(
        section,
        &[
            (offset_of!(ObjectHeader, prefix), "magic"),
            (offset_of!(ObjectHeader, object), "object"),
            (offset_of!(ObjectHeader, state), "state"),
            (offset_of!(ObjectHeader, reserved0), "zero"),
            (offset_of!(ObjectHeader, boot_id), "boot_id"),
            (offset_of!(ObjectHeader, pid), "pid"),
            (offset_of!(ObjectHeader, start_ticks), "start_ticks"),
            (offset_of!(ObjectHeader, attached_at_s), "attached_at_s"),
            (offset_of!(ObjectHeader, reserved), "zero"),
            (size_of::<ObjectHeader>(), ""),
        ],
    );
    assert_drawn(
        section,
        &[
            (offset_of!(JournalHeader, prefix), "magic"),
            (offset_of!(JournalHeader, store), "store"),
            (offset_of!(JournalHeader, generation), "generation"),
            (offset_of!(JournalHeader, epoch), "epoch"),
            (offset_of!(JournalHeader, half_len), "half_len"),
            (offset_of!(JournalHeader, trimmed), "trimmed"),
            (offset_of!(JournalHeader, chain), "chain"),
            (offset_of!(JournalHeader, roots_at), "roots_at"),
            (offset_of!(JournalHeader, roots_len), "roots_len"),
            (offset_of!(JournalHeader, roots_sum), "roots_sum"),
            (offset_of!(JournalHeader, session), "session"),
            (offset_of!(JournalHeader, begun), "begun"),
            (offset_of!(JournalHeader, other), "other"),
            (offset_of!(JournalHeader, catalog), "catalog"),
            (offset_of!(JournalHeader, reserved), "zero"),
            (size_of::<JournalHeader>(), ""),
        ],
    );
    assert_drawn(
        section,
        &[
            (offset_of!(RootEntry, id), "id"),
            (offset_of!(RootEntry, root), "root"),
            (size_of::<RootEntry>(), ""),
        ],
    );
    for magic in [ObjectHeader::MAGIC, JournalHeader::MAGIC] {
        assert!(
            section.contains(&format!("magic \"{}\"", magic.escape_ascii())),
            "{}",
            magic.escape_ascii()
        );
    }
}

#[test]
fn records_of_the_journal_are_drawn_as_they_are() {
    let text = document();
    let section = section(&text, "## Objects and the journal");
    assert_drawn(
        section,
        &[
            (offset_of!(RecordHeader, magic), "magic"),
            (offset_of!(RecordHeader, seq), "seq"),
            (offset_of!(RecordHeader, epoch), "epoch"),
            (offset_of!(RecordHeader, chain), "chain"),
            (offset_of!(RecordHeader, durable), "durable"),
            (offset_of!(RecordHeader, trimmed), "trimmed"),
            (offset_of!(RecordHeader, other), "other"),
            (offset_of!(RecordHeader, catalog), "catalog"),
            (offset_of!(RecordHeader, store), "store"),
            (offset_of!(RecordHeader, objects), "objects"),
            (offset_of!(RecordHeader, runs), "runs"),
            (offset_of!(RecordHeader, data_len), "data_len"),
            (offset_of!(RecordHeader, total_len), "total_len"),
            (offset_of!(RecordHeader, data_sum), "data_sum"),
            (offset_of!(RecordHeader, checksum), "checksum"),
            (size_of::<RecordHeader>(), ""),
        ],
    );
    assert_eq!(
        (size_of::<LineRun>(), size_of::<CommitRecord>(), JOURNAL_HALVES_OFFSET),
        (16, 32, 8192)
    );
    for magic in [PSYNC_MAGIC, COMMIT_MAGIC] {
        assert!(
            section.contains(&format!("magic \"{}\"", magic.escape_ascii())),
            "{}",
            magic.escape_ascii()
        );
    }
}
