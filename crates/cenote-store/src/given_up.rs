//! Replaces a journal of pools that the caller gives up ([`JournalPolicy::GiveUp`]): it was put
//! back, is damaged, or is gone.
//!
//! Its psyncs are lost. A primary may hold a part of one, and where power failed a shadow becomes a
//! copy of its primary. If the store was closed, or its process died, shadows are whole, but which
//! of the store's files are of another moment is not known. So every pool in shadowed mode may be
//! torn, and shows values again when a caller declares it whole.
//!
//! # States
//!
//! 1. *Refused.* The journal cannot be used, and every open finds that.
//! 2. *Torn.* One batch says of every pool in shadowed mode that it may be torn: **that batch
//!    commits**. No other file has changed. A crash here leaves pools that are refused for two
//!    reasons.
//! 3. *Made anew.* A new journal takes the old one's name. It has no record, its epoch is later
//!    than that of the old one and than the superblock says, and it goes on behind every number
//!    that is known of it. A crash here leaves a journal that the next open takes as one whose
//!    session died before it was named, or refuses as in state 1.
//! 4. *Named.* The superblock names it ([`crate::kernel::catalog::journals`]), and no session
//!    refuses it any more. The journal that was given up is older than that: it is refused if it is
//!    put back again.
//!
//! Psyncs that the catalog says are kept ([`crate::kept`]) are in files of their own, and are
//! brought back between 2 and 3, as in any open of the journal.

use crate::kernel::catalog::journals::JournalOf;
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::options::JournalPolicy;
use crate::kernel::store::{Control, Inner};
use cenote_journal::{Journal, Settings};
use cenote_layout::catalog::Record;
use cenote_medium::planted::{Bug, planted};

impl Inner {
    /// Whether a journal of pools that cannot be used is made anew in this session.
    pub(crate) fn gives_up(&self) -> bool {
        self.writable
            && self.options.hosting.is_none()
            && self.options.journal == JournalPolicy::GiveUp
    }

    /// States 2 and 3.
    pub(crate) fn give_up_journal(
        &self,
        control: &mut Control,
        settings: Settings,
    ) -> Result<Journal, StoreError> {
        self.learn_names(control)?;
        let state = &control.catalog.state;
        let shadowed = state.pools.keys().filter(|pool| state.is_shadowed(**pool));
        let whole = shadowed.filter(|pool| !state.torn.contains(*pool));
        let torn: Vec<Record> = whole.copied().map(Record::PoolTorn).collect();
        if !planted(Bug::GivenUpLate) {
            self.commit(control, &torn)?;
        }
        self.bring_back(control)?;
        let roots = self.roots_now(&control.catalog.state)?;
        let epoch = self.next_epoch(control, JournalOf::Pools)?;
        self.journal_opens(control, JournalOf::Pools);
        let journal = Journal::create(
            self.home(control),
            self.options.journal_half_len,
            (epoch, roots),
            settings,
        )?;
        if planted(Bug::GivenUpLate) {
            self.commit(control, &torn)?;
        }
        Ok(journal)
    }
}
