//! Rewrites pending puddles: they came to another address, and their pointers are not rewritten yet
//! ([`crate::relocate`]).
//!
//! # Rewriting one puddle
//!
//! The header of a puddle's file has a generation, and the address for which its contents are
//! right. A puddle that can be rewritten twice with the same result is rewritten in its file
//! (in_place.rs has those states). Otherwise:
//!
//! 1. *Old*: the catalog says pending, the header has the old address and the generation before.
//! 2. The file is copied into a new one, under a name that no record has, and rewritten there: an
//!    orphan (replace.rs). It is synced.
//! 3. **The renaming of the new file over the old one commits.** The header in it has the new
//!    address and generation. The directory is synced before anything is mapped.
//! 4. *New*: the catalog says pending, the header says done. The opener of the pool sees that and
//!    rewrites nothing.
//! 5. The next batch of the catalog says that the puddle is not pending any more. No caller waits
//!    for it.
//!
//! A crash before 3 leaves the old file, and an orphan that the next writable open removes; a crash
//! after it leaves the new file. In shadowed mode two files have the contents: the primary is
//! renamed and its directory synced, then the shadow. After a crash in between the shadow is old,
//! so the puddle is rewritten again; the primary is new and stays. A loss of power that makes
//! shadows void copies primaries over them, old or new.
//!
//! A store that is open for reading only writes no file: the rewritten image is in private memory
//! at the puddle's address.
//!
//! # A puddle that is damaged when it moves
//!
//! It moves with its pool. Its form is decided when its file is back: the catalog says pending and
//! no generation, and the file may have any generation, at the old address. The generation is
//! recorded before anything else happens to the file (`learn_generation`). Until then the pool is
//! refused, as it would be without the move.
//!
//! # Pools that are protected
//!
//! A puddle of such a pool is opened into memory, rewritten there and sealed anew (reseal.rs); the
//! states are the same.
//!
//! # What reads a puddle without touching it
//!
//! | reader | and a puddle that is pending |
//! | --- | --- |
//! | recovery, replaying logs | has no log entry; one that names it is refused, its log kept |
//! | going back to the last psync | is copied from its primary as any, headers included |
//! | the journal of psyncs | has no record of it: it is trimmed before a pool moves |
//! | psync, comparing shadows with primaries | is skipped: they are equal, or about to be made so |
//! | a daemon, granting a pool | rewrites all of it first, by its files (hosting/copies.rs) |
//! | removing a pool | may; the puddle does not become spare |
//! | heap, tracing, check, trim, statistics | map it first, and so rewrite it |

mod failed;
mod held;
mod image_memory;
mod in_place;
pub(crate) mod lazy_rewrite;
mod pool_blocks;
mod progress;
pub(crate) mod replace;
pub(crate) mod reseal;

use crate::kernel::catalog::CatalogState;
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::pool_blocks::PoolBlocks;
use crate::kernel::interface::report::Damage;
use crate::kernel::interface::rewriter::{RewriteJob, TypeTable};
use crate::kernel::puddles::opaque_part::OpaquePart;
use crate::kernel::puddles::pending_job::Job;
use crate::kernel::puddles::puddle::{
    DIR, NAME_LEN, Puddle, file_name, make_header_of, pool_named, primary_name, text,
};
use crate::kernel::puddles::verify::verify_all;
use crate::kernel::store::{Control, Inner};
use crate::sealed_files::file_len;
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::{AtRest, PendingRewriteRecord, PuddleRecord, Record};
use cenote_layout::header::read;
use cenote_layout::id::Uuid;
use cenote_layout::moves::Moves;
use cenote_layout::puddle::PuddleHeader;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MapMode, MediumError, OwnedMedium};
use std::collections::BTreeMap;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// What a file is, of a puddle that the catalog says is pending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FoundRewrite {
    /// Still to be rewritten.
    Old,
    /// Rewritten; the catalog has not heard of it.
    New,
    Damaged(String),
}

impl FoundRewrite {
    /// What is wrong with it.
    pub(crate) fn damage(self) -> Option<String> {
        match self {
            Self::Old | Self::New => None,
            Self::Damaged(detail) => Some(detail),
        }
    }
}

/// Looks at one file of a puddle that is pending, in a store that is open for writing or not.
fn look_at(
    medium: &OwnedMedium,
    name: &str,
    (store, writing): (Uuid, bool),
    record: &PuddleRecord,
    pending: &PendingRewriteRecord,
) -> Result<FoundRewrite, MediumError> {
    look_at_len(medium, name, (store, writing), (record, record.size), pending)
}

/// The same for a file that is longer than its puddle.
pub(crate) fn look_at_len(
    medium: &OwnedMedium,
    name: &str,
    (store, writing): (Uuid, bool),
    (record, len): (&PuddleRecord, u64),
    pending: &PendingRewriteRecord,
) -> Result<FoundRewrite, MediumError> {
    let old = PuddleRecord { addr: pending.from, ..*record };
    if pending.is_unknown() {
        // It was damaged when it moved, and is rewritten only when its generation is known.
        let problem = verify_all(medium, name, (&old, len), store, writing, (None, None))?;
        return Ok(problem.map_or(FoundRewrite::Old, FoundRewrite::Damaged));
    }
    let check = |record: &PuddleRecord, generation| {
        verify_all(medium, name, (record, len), store, writing, (Some(generation), None))
    };
    if check(record, pending.generation)?.is_none() {
        return Ok(FoundRewrite::New);
    }
    let generation = pending.generation.saturating_sub(1);
    let Some(problem) = check(&old, generation)? else { return Ok(FoundRewrite::Old) };
    let mut page = [0; PAGE_SIZE as usize];
    let got = match medium.read_at(name, 0, &mut page) {
        Err(error) if error.is_passing() => return Err(error),
        got => got.unwrap_or(0),
    };
    let begun = got == page.len()
        && medium.len(name)? == record.size
        && in_place::is_begun(
            &page,
            &make_header_of(&old, store, generation),
            &make_header_of(record, store, pending.generation),
        );
    Ok(if begun { FoundRewrite::Old } else { FoundRewrite::Damaged(problem) })
}

/// What the puddles of one pool that are pending need, each read once.
#[derive(Default)]
pub(crate) struct Needs {
    moves: BTreeMap<Uuid, Arc<Moves>>,
    types: Option<Arc<TypeTable>>,
    /// Of a pool whose puddles do not describe their own blocks.
    blocks: Option<Arc<PoolBlocks>>,
}

impl Needs {
    /// Of a puddle without blocks, for every kind of heap.
    pub(crate) fn expect_no_blocks(&mut self) {
        self.blocks = Some(Arc::default());
    }

    /// Takes [`Needs::expect_no_blocks`] back.
    pub(crate) fn forget_blocks(&mut self) {
        self.blocks = None;
    }
}

impl Inner {
    /// Makes durable that a puddle's file is the new one, before a batch says so: the process that
    /// renamed it, or wrote its header, may have ended before its sync. A header that was written
    /// in the file itself (`generation`) is written once more: after a sync that failed its page
    /// may count as clean.
    pub(crate) fn keep_new(
        &self,
        record: &PuddleRecord,
        generation: Option<u64>,
    ) -> Result<(), MediumError> {
        if !self.writable || planted(Bug::FoundNewNotKept) {
            return Ok(());
        }
        let file = FileHandle::open(&self.medium, text(&file_name(record.uuid)))?;
        if let Some(generation) = generation {
            file.write_at(0, make_header_of(record, self.uuid, generation).as_bytes())?;
        }
        file.sync()?;
        self.medium.sync_dir(DIR)
    }

    /// Looks at a puddle that the catalog says is pending, before it can be found, and marks it
    /// unless it has been rewritten. `Some`: why it cannot be used.
    pub(crate) fn mark_pending(
        &self,
        control: &mut Control,
        record: &PuddleRecord,
        pending: PendingRewriteRecord,
        needs: &mut Needs,
    ) -> Result<Option<String>, StoreError> {
        // SAFETY: puddles live until the store is dropped.
        let known = control.puddles.get(&record.uuid).map(|known| unsafe { known.as_ref() });
        if known.is_some_and(|known| known.job().is_some()) {
            return Ok(None);
        }
        if let Some(waits) = self.waits(control, record) {
            return Ok(Some(waits));
        }
        let by_primary = known.is_some_and(Puddle::shows_primary);
        let pending = match pending.is_unknown() {
            false => pending,
            true => match self.learn_generation(control, record, pending, by_primary)? {
                Ok(pending) => pending,
                Err(detail) => return Ok(Some(detail)),
            },
        };
        let found = match by_primary {
            _ if self.frontier().holds(record.uuid) => FoundRewrite::Old,
            true => self.look_at(primary_name(record.uuid), record, &pending)?,
            false => self.look_at(file_name(record.uuid), record, &pending)?,
        };
        match found {
            FoundRewrite::Damaged(detail) => return Ok(Some(detail)),
            FoundRewrite::New => {
                let own =
                    (!by_primary && self.options.hosting.is_none()).then_some(pending.generation);
                self.keep_new(record, own)?;
                self.frontier().note_done(record.uuid);
                return Ok(None);
            }
            FoundRewrite::Old => {}
        }
        let state = &control.catalog.state;
        let shadowed = self.writable && state.is_shadowed(record.pool);
        if shadowed
            && let FoundRewrite::Damaged(detail) =
                self.look_at(primary_name(record.uuid), record, &pending)?
        {
            return Ok(Some(detail));
        }
        let learned =
            self.learn_blocks(control, record.pool, needs, &mut |puddle, at, bytes| {
                self.read_puddle(control, puddle, at, bytes)
            })?;
        let work = match learned.and_then(|()| self.work_of(control, record, &pending, needs)) {
            Ok(work) => work,
            Err(detail) => return Ok(Some(detail)),
        };
        let puddle = self.own(control, *record, MapMode::ReadOnly);
        let hosting = self.options.hosting.is_some();
        let pool = pool_named(&control.catalog.state, record.pool);
        // SAFETY: as above.
        unsafe { puddle.as_ref() }.set_pending(
            Job { work, pending, shadowed, part: OpaquePart::default(), hosting },
            &pool,
        );
        // A process that hosts maps no pools, so no thread of its own touches one.
        if self.options.hosting.is_none() {
            self.frontier().expect(puddle);
        }
        Ok(None)
    }

    /// Why a puddle that is pending must not be rewritten now: something that waits says what its
    /// file holds at the addresses of before, and is settled first.
    fn waits(&self, control: &Control, record: &PuddleRecord) -> Option<String> {
        if !self.writable {
            return None;
        }
        let waits = control.catalog.state.waits_for(record.pool).map(|client| {
            format!(
                "it has moved, and a log of client {client} that may change it was not applied \
                 yet: restore the damaged files, decide about the log (`cenote logs`), or open the \
                 store for reading"
            )
        });
        waits.or_else(|| control.kept_problem(record.uuid, true))
    }

    /// The generation of a puddle that moved while its file was damaged, and whose file is back, or
    /// what is wrong with it still. A writer makes that known before the puddle is rewritten: **the
    /// batch commits**. Before it the file is old and the generation unknown, after it the file is
    /// old and the generation known.
    fn learn_generation(
        &self,
        control: &mut Control,
        record: &PuddleRecord,
        pending: PendingRewriteRecord,
        by_primary: bool,
    ) -> Result<Result<PendingRewriteRecord, String>, StoreError> {
        let name = if by_primary { primary_name(record.uuid) } else { file_name(record.uuid) };
        if let Some(detail) = self.look_at(name, record, &pending)?.damage() {
            return Ok(Err(detail));
        }
        self.learn_from(control, record, pending, text(&name)).map(Ok)
    }

    /// The same of a file that was looked at.
    fn learn_from(
        &self,
        control: &mut Control,
        record: &PuddleRecord,
        pending: PendingRewriteRecord,
        name: &str,
    ) -> Result<PendingRewriteRecord, StoreError> {
        let generation = self.generation_in(name, record)? + 1;
        let pending = PendingRewriteRecord { generation, ..pending };
        if self.writable {
            self.commit(control, &[Record::PendingRewrite(pending)])?;
        }
        Ok(pending)
    }

    /// Checks the file of a puddle that has moved, before its kept psyncs are written into it: it
    /// has to be as it was before.
    pub(crate) fn problem_of_old(
        &self,
        state: &CatalogState,
        record: &PuddleRecord,
        pending: &PendingRewriteRecord,
    ) -> Result<Option<String>, MediumError> {
        let found = match (state.at_rest(record.pool), file_len(record, state.at_rest(record.pool)))
        {
            (AtRest::None, _) => self.look_at(primary_name(record.uuid), record, pending)?,
            (_, None) => return Ok(Some("the catalog gives it a size that no puddle has".into())),
            (_, Some(len)) => {
                let (name, store) = (file_name(record.uuid), (self.uuid, self.writable));
                look_at_len(&self.medium, text(&name), store, (record, len), pending)?
            }
        };
        Ok(match found {
            FoundRewrite::Old => None,
            FoundRewrite::New => {
                Some("it was rewritten, but its kept psyncs are not applied yet".into())
            }
            FoundRewrite::Damaged(problem) => Some(problem),
        })
    }

    /// What is to be done to a puddle that is pending, or why that is not known.
    fn work_of(
        &self,
        control: &Control,
        record: &PuddleRecord,
        pending: &PendingRewriteRecord,
        needs: &mut Needs,
    ) -> Result<RewriteJob, String> {
        let state = &control.catalog.state;
        let moves = match (
            needs.moves.get(&pending.relocation),
            state.relocations.get(&pending.relocation),
        ) {
            (Some(known), _) => Arc::clone(known),
            (None, None) => {
                return Err("it has moved, and the catalog has lost its old address".into());
            }
            (None, Some(relocation)) => {
                let moves = Moves::new(relocation).map_err(|reason| {
                    format!("it has moved, and the record of the move is invalid: {reason}")
                })?;
                let moves = Arc::new(moves);
                needs.moves.insert(pending.relocation, Arc::clone(&moves));
                moves
            }
        };
        let types = Arc::clone(needs.types.get_or_insert_with(|| Arc::new(state.types.clone())));
        let all_blocks = state.marks_are_open(record.pool);
        let heap = Self::heap_of(control, record.pool);
        let (from, blocks) = (pending.from, needs.blocks.clone());
        Ok(RewriteJob { puddle: *record, heap, from, moves, types, all_blocks, blocks })
    }

    /// What a file of a puddle that is pending is: its own, or its primary.
    pub(crate) fn look_at(
        &self,
        name: [u8; NAME_LEN],
        record: &PuddleRecord,
        pending: &PendingRewriteRecord,
    ) -> Result<FoundRewrite, MediumError> {
        look_at(&self.medium, text(&name), (self.uuid, self.writable), record, pending)
    }

    /// The generation that the header of one of a puddle's files says.
    pub(crate) fn generation_in(
        &self,
        name: &str,
        puddle: &PuddleRecord,
    ) -> Result<u64, StoreError> {
        let mut page = [0; PAGE_SIZE as usize];
        let len = self.medium.read_at(name, 0, &mut page)?;
        let damaged = |detail| {
            let (uuid, pool, index) = (puddle.uuid, puddle.pool, puddle.index);
            StoreError::PuddleDamaged(Damage::Puddle { uuid, pool, index, detail })
        };
        let header =
            read::<PuddleHeader>(&page[..len], true).map_err(|error| damaged(error.to_string()))?;
        if header.uuid != puddle.uuid {
            return Err(damaged(format!(
                "the header of its file is of another puddle: {}",
                header.uuid
            )));
        }
        Ok(header.generation)
    }
}
