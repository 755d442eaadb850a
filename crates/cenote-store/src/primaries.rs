//! Opens the files that psyncs are written into, and checks what the journal says of them.

use crate::kernel::catalog::CatalogState;
use crate::kernel::catalog::journals::JournalOf;
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::options::DamagePolicy;
use crate::kernel::puddles::puddle::{DATA_AT, file_name, primary_name, text};
use crate::kernel::puddles::verify::{about_file, of_file};
use crate::kernel::store::{Control, Inner};
use crate::kernel::superblock::fence::Fence;
use crate::sealed_files::file_len;
use cenote_atrest::view;
use cenote_journal::{
    Guard, Home, JournalScan, ROOT_HEADER_LEN, ROOTS_LOST, Rooted, Roots, Stopped,
};
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::{AtRest, PuddleRecord};
use cenote_layout::id::{PoolId, Uuid};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError};
use cenote_sys::fork_guard;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The journal of psyncs of pools.
pub(crate) const JOURNAL: &str = "journal.pools";

/// What the journal lays over primaries: offset and bytes, in order.
pub(crate) type Patches = BTreeMap<Uuid, Vec<(u64, Vec<u8>)>>;

/// The puddle of which a record speaks. One that was removed since is gone; another of its identity
/// may be there, that a client of a daemon has made for an object.
pub(crate) fn of_shadowed_pool(state: &CatalogState, id: Uuid) -> Option<&PuddleRecord> {
    state
        .puddles
        .get(&id)
        .filter(|puddle| puddle.role.is_of_pool() && state.is_shadowed(puddle.pool))
}

/// Where a run lies in its file. Refuses one that does not lie there, behind the header.
pub(crate) fn check_run(
    seq: u64,
    puddle: &PuddleRecord,
    at_rest: AtRest,
    offset: u64,
    len: usize,
) -> Result<u64, StoreError> {
    let offset = if at_rest == AtRest::None { Some(offset) } else { offset.checked_add(DATA_AT) };
    let file_len = file_len(puddle, at_rest).unwrap_or(0);
    let inside = |at: &u64| at.checked_add(len as u64).is_some_and(|end| end <= file_len);
    if let Some(offset) = offset.filter(inside)
        && offset >= PAGE_SIZE
    {
        return Ok(offset);
    }
    let detail = format!("record {seq} writes outside the body of puddle {}", puddle.uuid);
    Err(StoreError::JournalDamaged { file: JOURNAL, detail })
}

/// The entry that the journal lists for a puddle: only root puddles of protected pools have one,
/// and their headers list the others.
pub(crate) fn rooted(puddle: &PuddleRecord, at_rest: AtRest) -> Option<Rooted> {
    let listed = at_rest != AtRest::None && puddle.index == 0;
    view::rooted(at_rest.mode(), puddle.size.saturating_sub(DATA_AT)).filter(|_| listed)
}

/// Notes the root of a puddle as its file has it.
pub(crate) fn note_root(
    state: &CatalogState,
    roots: &mut Roots,
    id: Uuid,
    primary: &FileHandle,
) -> Result<(), MediumError> {
    let Some(puddle) = of_shadowed_pool(state, id) else { return Ok(()) };
    let Some(Rooted { at, root }) = rooted(puddle, state.at_rest(puddle.pool)) else {
        return Ok(());
    };
    let mut header = [0; ROOT_HEADER_LEN];
    primary.read_exact_at(DATA_AT + at, &mut header)?;
    roots.set(id, root(&header));
    Ok(())
}

impl Inner {
    /// Refuses a journal whose list of protected pools is lost, unless the caller leaves out what
    /// is damaged: then protected pools are believed as they are.
    pub(crate) fn check_list(
        &self,
        state: &CatalogState,
        scan: &JournalScan,
    ) -> Result<(), StoreError> {
        let listed = |pool: &PoolId| state.at_rest(*pool).mode().has_tree();
        let accepts =
            self.options.damage == DamagePolicy::SkipDamaged || planted(Bug::LostListAccepted);
        if scan.roots.is_some() || accepts || !state.pools.keys().any(listed) {
            return Ok(());
        }
        let detail = format!(
            "{ROOTS_LOST}; open the store with DamagePolicy::SkipDamaged to use it as it is"
        );
        Err(StoreError::JournalDamaged { file: JOURNAL, detail })
    }

    /// The file that psyncs of a puddle are written into, or why it cannot be used. One that has
    /// moved and is not rewritten has no record in a journal; its header refuses it.
    pub(crate) fn open_primary(
        &self,
        state: &CatalogState,
        puddle: &PuddleRecord,
    ) -> Result<Result<FileHandle, String>, StoreError> {
        let at_rest = state.at_rest(puddle.pool);
        let (problem, name) = match at_rest {
            AtRest::None => (self.check_primary(state, puddle), primary_name(puddle.uuid)),
            at_rest => (self.verify_sealed(puddle, at_rest), file_name(puddle.uuid)),
        };
        if let Some(problem) = of_file(problem)? {
            return Ok(Err(problem));
        }
        let opened = FileHandle::open(&self.medium, text(&name));
        let marked = opened.and_then(|file| match at_rest {
            AtRest::None => self.mark_primary(puddle.uuid, &file).map(|()| file),
            _ => Ok(file),
        });
        Ok(match marked {
            Ok(file) => Ok(file),
            Err(error) => Err(about_file(error)?),
        })
    }

    /// The roots of all protected pools as their files have them: where no journal says which they
    /// were.
    pub(crate) fn roots_now(&self, state: &CatalogState) -> Result<Roots, MediumError> {
        let mut roots = Roots::default();
        for id in state.puddles.keys() {
            let primary = FileHandle::open(&self.medium, text(&file_name(*id)));
            if let Err(error) =
                primary.and_then(|primary| note_root(state, &mut roots, *id, &primary))
            {
                // One that cannot be read is refused when its pool is opened.
                about_file(error)?;
            }
        }
        Ok(roots)
    }
}

/// Answers for the journal without keeping the store open.
#[derive(Debug)]
struct Health {
    fence: Option<Arc<Fence>>,
    poisoned: Arc<crate::kernel::superblock::poison::Poisoned>,
    token: u64,
}

impl Guard for Health {
    fn check(&self) -> Result<(), Stopped> {
        if !fork_guard::is_current(self.token) {
            return Err(Stopped::Forked);
        }
        self.poisoned.get().map_or(Ok(()), |poison| Err(Stopped::Poisoned(poison.to_string())))
    }

    fn poison(&self, reason: &str) {
        self.poisoned.set(reason.to_owned().into());
    }

    fn check_owner(&self) -> Result<(), MediumError> {
        self.fence.as_ref().map_or(Ok(()), |fence| fence.check())
    }
}

impl Inner {
    pub(crate) fn home(&self, control: &Control) -> Home {
        Home {
            medium: self.medium.clone(),
            store: self.uuid,
            name: JOURNAL,
            guard: Arc::new(Health {
                fence: self.fence.clone(),
                poisoned: Arc::clone(&self.poisoned),
                token: self.token,
            }),
            session: control.superblock.generation + 1,
            tie: control.journals.tie(JournalOf::Pools).clone(),
        }
    }
}
