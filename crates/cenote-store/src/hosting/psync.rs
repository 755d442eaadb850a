//! Psyncs pools in shadowed mode for the clients that write them.

use crate::kernel::interface::error::StoreError;
use crate::kernel::puddles::puddle::{primary_name, text};
use crate::kernel::store::Store;
use cenote_journal::{ApplyTarget, Delivered, JournalError, Limits, TransferError, distinct};
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::{PoolMode, PuddleRecord};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::Uuid;
use cenote_medium::FileHandle;
use std::fs::File;
use std::sync::Arc;

/// Most bytes that one psync of a client may come to: they are in the daemon's memory.
const TRANSFER_LEN_MAX: u64 = 1 << 30;

/// Most puddles of one such psync: more than a message can name.
const PSYNC_PUDDLES_MAX: usize = 4096;

impl Store {
    /// The primary of a puddle in shadowed mode, to be given away for reading. All that its last
    /// psync left is in it.
    ///
    /// # Errors
    /// The client does not write its pool, or that is in direct mode; what is committed cannot be
    /// brought there.
    pub fn client_primary(&self, client: Uuid, puddle: &PuddleRecord) -> Result<File, StoreError> {
        let journal = {
            let mut control = self.inner().control();
            let record = control.writes(client, puddle.pool, "look at its last psync")?;
            if record.mode != PoolMode::Shadowed {
                return Err(StoreError::NotShadowed { name: record.name });
            }
            Arc::clone(self.inner().pool_journal(&mut control)?)
        };
        journal.settle(puddle.uuid)?;
        self.grant_named(text(&primary_name(puddle.uuid)), false)
    }

    /// Psyncs puddles of pools in shadowed mode that a client writes: one record for all of their
    /// pools. Other clients go on meanwhile.
    ///
    /// # Errors
    /// The client does not write a pool, or that is in direct mode; the transfer makes no sense; as
    /// of any psync.
    pub fn client_psync(
        &self,
        client: Uuid,
        puddles: &[Uuid],
        (transfer, runs): (&File, u32),
    ) -> Result<crate::Psync, StoreError> {
        let inner = self.inner();
        distinct(puddles, PSYNC_PUDDLES_MAX).map_err(of_transfer)?;
        let (journal, records) = {
            let mut control = inner.begin_write("psync for a client")?;
            let mut records = Vec::with_capacity(puddles.len());
            for uuid in puddles {
                let known = control.catalog.state.puddles.get(uuid);
                let Some(puddle) = known.filter(|puddle| puddle.role.is_of_pool()) else {
                    return Err(StoreError::Refused {
                        kind: ErrorKind::NotFound,
                        detail: format!("there is no puddle {uuid}"),
                    });
                };
                let record = control.writes(client, puddle.pool, "psync it")?;
                if record.mode != PoolMode::Shadowed {
                    return Err(StoreError::NotShadowed { name: record.name });
                }
                records.push(*puddle);
            }
            (Arc::clone(inner.pool_journal(&mut control)?), records)
        };
        // The files are opened after all puddles are known to be this client's. No operation
        // removes them: the client has the pools until it ends, which comes after this.
        let mut targets = Vec::with_capacity(records.len());
        for puddle in records {
            let file = Arc::new(FileHandle::open(&inner.medium, text(&primary_name(puddle.uuid)))?);
            inner.mark_primary(puddle.uuid, &file)?;
            // The header is the store's.
            let limits = Limits { from: PAGE_SIZE, len: puddle.size, lines: false };
            targets.push((
                ApplyTarget { id: puddle.uuid, file, data_offset: 0, rooted: None },
                limits,
            ));
        }
        let done = journal
            .psync_transfer(targets, transfer, runs, TRANSFER_LEN_MAX)
            .map_err(of_transfer)?;
        let Delivered { seq, pages, data_bytes, journal_bytes } = done;
        Ok(crate::Psync { seq, pages, data_bytes, journal_bytes, ..crate::Psync::default() })
    }
}

fn of_transfer(error: TransferError) -> StoreError {
    match error {
        TransferError::TooLarge { limit } => StoreError::PsyncTooLarge { needed: limit + 1, limit },
        TransferError::Medium(error) => error.into(),
        TransferError::Journal(JournalError::NotCopied { name, source }) => {
            StoreError::NotCopied { name, source }
        }
        TransferError::Journal(error) => error.into(),
        other => StoreError::Refused { kind: ErrorKind::Misuse, detail: other.to_string() },
    }
}
