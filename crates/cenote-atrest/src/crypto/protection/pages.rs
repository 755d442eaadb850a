//! Pages of a protected object: sealed, opened, checked, and committed under the tree.
//!
//! Invariant: one change at a time. A change is prepared on the committed state; its caller makes
//! it durable, and then commits it. One that was prepared on another state is stale.

use super::{Change, Checked, Protection, seal_header, to_bytes};
use crate::crypto::error::{AtRestError, PageError, PageFault};
use crate::crypto::seal::{PAGE_LEN, Page, SealedPage};
use crate::crypto::tree::{Digest, NodeSource, TreeFault, ZERO};
use cenote_layout::at_rest::{AtRestHeader, PageSide};

impl Protection {
    /// Seals a dirty page into `sealed`; what comes back goes to [`Protection::prepare`], its side
    /// data beside the page.
    ///
    /// # Errors
    /// As [`PageSealer::seal`](super::PageSealer::seal).
    pub fn seal(
        &self,
        page: u64,
        plain: &Page,
        sealed: &mut Page,
    ) -> Result<SealedPage, PageError> {
        self.sealer.seal(page, plain, sealed)
    }

    /// Seals a dirty page in place.
    ///
    /// # Errors
    /// As [`PageSealer::seal_in_place`](super::PageSealer::seal_in_place).
    pub fn seal_in_place(&self, page: u64, bytes: &mut Page) -> Result<SealedPage, PageError> {
        self.sealer.seal_in_place(page, bytes)
    }

    /// Verifies a page by its path, and opens it into `plain`. `side` is the page's side data, in
    /// modes that have it.
    ///
    /// # Errors
    /// What is wrong with the page, or with the tree above it; `plain` is then all zero.
    pub fn open_page<S: NodeSource + ?Sized>(
        &self,
        page: u64,
        sealed: &Page,
        side: Option<&PageSide>,
        source: &S,
        plain: &mut Page,
    ) -> Result<(), PageError> {
        let fresh = self.fresh(page, sealed, side, source);
        let opened = match fresh {
            // What cannot be authentic in another way need not be decrypted.
            Err(fault) if !self.mode.has_side() => self.sealer.fail(page, fault),
            fresh => self.judge(page, fresh, self.sealer.open(page, sealed, side, plain)),
        };
        opened.inspect_err(|_| plain.fill(0))
    }

    /// As [`Protection::open_page`], in place; the bytes are all zero after an error. A page that
    /// was moved here is only said to be damaged or rolled back.
    ///
    /// # Errors
    /// As [`Protection::open_page`].
    pub fn open_page_in_place<S: NodeSource + ?Sized>(
        &self,
        page: u64,
        bytes: &mut Page,
        side: Option<&PageSide>,
        source: &S,
    ) -> Result<(), PageError> {
        let fresh = self.fresh(page, bytes, side, source);
        let opened = match fresh {
            Err(fault) if !self.mode.has_side() => self.sealer.fail(page, fault),
            fresh => self.judge(page, fresh, self.sealer.open_in_place(page, bytes, side)),
        };
        opened.inspect_err(|_| bytes.fill(0))
    }

    /// Verifies a page without giving its contents out: for scrubbing.
    ///
    /// # Errors
    /// As [`Protection::open_page`].
    pub fn check_page<S: NodeSource + ?Sized>(
        &self,
        page: u64,
        sealed: &Page,
        side: Option<&PageSide>,
        source: &S,
    ) -> Result<Checked, PageError> {
        if page >= self.pages() {
            return self.sealer.fail(page, PageFault::OutOfRange { pages: self.pages() });
        }
        if self.tree.is_none() {
            return Ok(Checked::NotCovered);
        }
        if self.mode.has_side() {
            let mut plain = [0; PAGE_LEN];
            let opened = self.open_page(page, sealed, side, source, &mut plain);
            cenote_sys::secret::wipe_bytes(&mut plain);
            opened?;
        } else {
            self.fresh(page, sealed, side, source)
                .or_else(|fault| self.sealer.fail(page, fault))?;
        }
        Ok(Checked::Verified)
    }

    /// Verifies many pages; nodes of the tree are verified once for all of them. Returns what is
    /// wrong, page by page.
    pub fn check_pages<'p, S: NodeSource + ?Sized>(
        &self,
        pages: impl IntoIterator<Item = (u64, &'p Page, Option<&'p PageSide>)>,
        source: &S,
    ) -> Vec<PageError> {
        let check = |(page, sealed, side)| self.check_page(page, sealed, side, source).err();
        pages.into_iter().filter_map(check).collect()
    }

    /// Whether the page or its side data fits the tree; modes without a tree say yes.
    fn fresh<S: NodeSource + ?Sized>(
        &self,
        page: u64,
        sealed: &Page,
        side: Option<&PageSide>,
        source: &S,
    ) -> Result<(), PageFault> {
        let Some(tree) = &self.tree else { return Ok(()) };
        let leaf = self.sealer.digest(page, sealed, side).ok_or(PageFault::NoSide)?;
        tree.verify(page, &leaf, source).map_err(|fault| self.page_fault(fault))
    }

    /// Puts together what tree and tag say about a page in authenticated mode.
    fn judge(
        &self,
        page: u64,
        fresh: Result<(), PageFault>,
        opened: Result<(), PageError>,
    ) -> Result<(), PageError> {
        match (fresh, opened) {
            (Ok(()), opened) => opened,
            (Err(PageFault::Damaged), Ok(())) => self.sealer.fail(page, PageFault::RolledBack),
            (Err(PageFault::Damaged), Err(PageError { fault: PageFault::Damaged, .. })) => {
                self.sealer.fail(page, PageFault::SideDamaged)
            }
            (Err(PageFault::Damaged), opened) => opened,
            (Err(fault), _) => self.sealer.fail(page, fault),
        }
    }

    fn page_fault(&self, fault: TreeFault) -> PageFault {
        let pages = self.pages();
        match fault {
            TreeFault::Leaf => PageFault::Damaged,
            TreeFault::Node(node) => {
                let (first, end) = node.pages();
                PageFault::Node { node, first, last: end.min(pages).saturating_sub(1) }
            }
            TreeFault::Read(node, source) => PageFault::NodeRead { node, source },
            TreeFault::OutOfRange => PageFault::OutOfRange { pages },
        }
    }

    /// Works out what a commit of sealed pages has to write. Changes nothing; see the crate's crash
    /// argument. From here to [`Protection::commit`] the caller holds a lock, so that what it
    /// makes durable is not stale by then: one change at a time, and no [`Protection::rekey`]
    /// in between.
    ///
    /// # Errors
    /// [`AtRestError::Page`] if the tree above a page is damaged or cannot be read.
    pub fn prepare<S: NodeSource + ?Sized>(
        &self,
        pages: &[SealedPage],
        source: &S,
    ) -> Result<Change, AtRestError> {
        self.prepare_by(pages, source, |header| header.replaced = ZERO)
    }

    /// The same of one that is sealed anew: it holds what its predecessor held, and stands for that
    /// in its pool's list.
    ///
    /// # Errors
    /// As [`Protection::prepare`].
    pub fn prepare_anew<S: NodeSource + ?Sized>(
        &self,
        pages: &[SealedPage],
        source: &S,
    ) -> Result<Change, AtRestError> {
        self.prepare_by(pages, source, |_| {})
    }

    fn prepare_by<S: NodeSource + ?Sized>(
        &self,
        pages: &[SealedPage],
        source: &S,
        also: impl FnOnce(&mut AtRestHeader),
    ) -> Result<Change, AtRestError> {
        let Some(tree) = &self.tree else {
            return Ok(Change { header: None, nodes: Vec::new(), tree: None });
        };
        let leaves: Vec<(u64, Digest)> =
            pages.iter().map(|page| (page.page, page.digest.unwrap_or(ZERO))).collect();
        let mut header = *self.locked();
        let mut change = tree.prepare(&leaves, source).map_err(|(page, fault)| {
            AtRestError::Page(PageError {
                object: self.object,
                page,
                fault: self.page_fault(fault),
            })
        })?;
        header.root = change.root;
        header.generation += 1;
        also(&mut header);
        seal_header(&mut header, self.sealer.keys());
        let nodes = core::mem::take(&mut change.nodes);
        // The tree needs the nodes again at the commit; they are small beside the pages.
        change.nodes.clone_from(&nodes);
        Ok(Change { header: Some(to_bytes(&header)), nodes, tree: Some((change, header)) })
    }

    /// Makes a change the current state: call it when everything that the change names is durable,
    /// and before the source shows its nodes.
    ///
    /// # Errors
    /// [`AtRestError::Stale`] if another change was committed, or the key changed, since this one
    /// was prepared; nothing has happened then.
    pub fn commit(&self, change: Change) -> Result<(), AtRestError> {
        let (Some(tree), Some((change, new))) = (&self.tree, change.tree) else { return Ok(()) };
        let mut header = self.locked();
        let stale = AtRestError::Stale {
            object: self.object,
            prepared: new.generation - 1,
            current: header.generation,
        };
        if new.generation != header.generation + 1
            || new.key_epoch != header.key_epoch
            || !tree.commit(change)
        {
            return Err(stale);
        }
        *header = new;
        Ok(())
    }
}
