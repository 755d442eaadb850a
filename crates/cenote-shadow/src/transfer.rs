//! A psync of a daemon's client: from *held* to the daemon's answer.
//!
//! The client has no journal, and no file that it may write. Pages of parts without protection go
//! into the transfer as they are, and the daemon compares them. Pages of protected parts are sealed
//! here, because the key is here; the transfer has the lines.

use crate::commit::Psync;
use crate::part::ShadowPart;
use cenote_journal::{Changes, Delivered, Primary, Transfer};
use cenote_layout::id::Uuid;
use std::fs::File;

/// What a psync sends to the daemon.
#[derive(Debug)]
pub struct Packed {
    transfer: Transfer,
    ids: Vec<Uuid>,
    /// Pages of which the transfer has lines: the daemon does not see which lines are pages.
    pages: u64,
}

impl<P: ShadowPart> Psync<P> {
    /// Packs what was taken. The kernel copies plain pages from their mappings.
    ///
    /// # Errors
    /// No memory; as [`ShadowPart::draft`].
    pub fn pack(&mut self, host: &P::Host) -> Result<Packed, P::Error> {
        let mut lines = Changes::default();
        let (mut ids, mut ranges) = (Vec::new(), 0);
        for (number, taken) in (0..).zip(&mut self.taken) {
            taken.number = Some(number);
            ids.push(taken.part.id());
            if taken.part.view().is_none() {
                ranges += taken.part.pages().len();
                continue;
            }
            let target = taken.part.target(host)?;
            // The daemon has brought what is committed into the file.
            let primary = Primary::settled(target.id, &target.file, target.data_offset);
            taken.change = taken.part.draft(number, &primary, &mut lines)?;
            taken.seal_header(&mut lines)?;
        }
        let transfer = self.fill(ranges, &lines)?;
        Ok(Packed { transfer, ids, pages: lines.pages })
    }

    fn fill(&self, ranges: usize, lines: &Changes) -> Result<Transfer, P::Error> {
        let fill = || {
            let mut transfer = Transfer::new(ranges + lines.runs.len())?;
            for (number, taken) in (0..).zip(&self.taken) {
                if taken.part.view().is_none() {
                    transfer.add_pages(number, taken.part.address(), taken.part.pages())?;
                }
            }
            transfer.add_changes(lines)?;
            Ok(transfer)
        };
        fill().map_err(|error| self.unpacked(error))
    }

    fn unpacked(&self, error: std::io::Error) -> P::Error {
        match self.taken.first() {
            Some(first) => first.part.unpacked(error),
            None => cenote_medium::MediumError::from_io(
                cenote_medium::Operation::Write,
                "transfer",
                error,
            )
            .into(),
        }
    }

    /// Steps *drafted* to *applied*, by the daemon, which `ask` asks: with the parts, the
    /// transfer's file and the runs of its list. Until it has answered, nothing has happened here.
    ///
    /// # Errors
    /// What `ask` says; the protection of a part went out of step.
    pub fn send(
        &mut self,
        host: &P::Host,
        packed: Packed,
        ask: impl FnOnce(&[Uuid], u32, &File) -> Result<Delivered, P::Error>,
    ) -> Result<Delivered, P::Error> {
        let Packed { transfer, ids, pages } = packed;
        let mut done = Delivered::default();
        if !transfer.is_empty() {
            let (file, runs) = transfer.finish().map_err(|error| self.unpacked(error))?;
            done = ask(&ids, runs, &file)?;
            if done.seq != 0 {
                done.pages += pages;
            } else {
                done.pages = 0;
            }
        }
        self.done = Some(done);
        self.commit_changes(host)?;
        self.finish(host, None)?;
        Ok(done)
    }
}
