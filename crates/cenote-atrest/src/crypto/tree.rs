//! The hash tree over an object's pages: which contents of each page are the current ones.
//!
//! Its nodes lie on media. A [`NodeSource`] reads them when they are needed. Verifying one page
//! reads and hashes the nodes on its path that are not verified yet, at most 5 for 4 GiB. The tree
//! remembers verified nodes, so a neighbour costs one comparison. [`Tree::prepare`] changes k
//! leaves in k paths, each node once.
//!
//! # The invariant
//!
//! Every remembered node hashes to the root, through remembered nodes. A node gets in when it is
//! verified down from one that is in, or by a commit, which replaces nodes and root together under
//! the lock.
//!
//! # What the source must promise
//!
//! A source returns the nodes of the last *committed* change. Until [`Tree::commit`] it returns
//! those of the change before. The tree remembers the nodes of a commit until [`Tree::trim`]; call
//! that only when the source returns all of them. A source that breaks this makes good pages look
//! damaged, and never damaged pages good.
//!
//! The functions over single digests, [`page_digest`], [`side_digest`] and [`node_digest`], and
//! [`verify_path`] take no locks and allocate nothing.

use cenote_layout::at_rest::{
    ARITY, DIGEST_LEN, LEVELS_MAX, NODE_LEN, NodeId, PageSide, TreeShape,
};
use cenote_layout::id::Uuid;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::io;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use zerocopy::IntoBytes;

/// A SHA-256 digest; all zero stands for all that was never written.
pub type Digest = [u8; DIGEST_LEN];
/// A node's bytes: 16 digests.
pub type Node = [u8; NODE_LEN];

/// Of a thing of zeros, and of nothing.
pub const ZERO: Digest = [0; DIGEST_LEN];

fn digest(label: &[u8; 6], kind: u8, object: Uuid, index: u64, bytes: &[u8]) -> Digest {
    if is_zero(bytes) {
        return ZERO;
    }
    let mut prefix = [0; 32];
    prefix[..6].copy_from_slice(label);
    prefix[6] = kind;
    prefix[8..24].copy_from_slice(&object.0);
    prefix[24..].copy_from_slice(&index.to_le_bytes());
    let mut hash = Sha256::new();
    hash.update(prefix);
    hash.update(bytes);
    hash.finalize().into()
}

/// Digest of a leaf whose page has no side data.
#[must_use]
pub fn page_digest(object: Uuid, page: u64, sealed: &[u8; 4096]) -> Digest {
    digest(b"CnLeaf", 0, object, page, sealed)
}

/// Digest of a leaf whose page has side data.
#[must_use]
pub fn side_digest(object: Uuid, page: u64, side: &PageSide) -> Digest {
    digest(b"CnLeaf", 1, object, page, side.as_bytes())
}

/// Digest of a node.
#[must_use]
pub fn node_digest(object: Uuid, id: NodeId, node: &Node) -> Digest {
    digest(b"CnNode", id.level, object, id.index, node)
}

fn slot(node: &Node, child: u64) -> Digest {
    let at = (child % ARITY) as usize * DIGEST_LEN;
    let mut digest = ZERO;
    digest.copy_from_slice(&node[at..at + DIGEST_LEN]);
    digest
}

fn set_slot(node: &mut Node, child: u64, digest: &Digest) {
    let at = (child % ARITY) as usize * DIGEST_LEN;
    node[at..at + DIGEST_LEN].copy_from_slice(digest);
}

/// Verifies one leaf by the nodes on its path, level 0 first, against a root. Takes no lock and
/// allocates nothing.
///
/// # Errors
/// The first of root, nodes from the top down, and leaf that does not fit.
pub fn verify_path(
    object: Uuid,
    shape: &TreeShape,
    root: &Digest,
    page: u64,
    leaf: &Digest,
    path: &[Node],
) -> Result<(), TreeFault> {
    if page >= shape.pages() || path.len() != usize::from(shape.levels()) {
        return Err(TreeFault::OutOfRange);
    }
    let mut expected = *root;
    for (level, node) in (0..shape.levels()).zip(path).rev() {
        let id = NodeId { level, index: ancestor(page, level) };
        if node_digest(object, id, node) != expected {
            return Err(TreeFault::Node(id));
        }
        expected = slot(node, if level == 0 { page } else { ancestor(page, level - 1) });
    }
    if expected == *leaf { Ok(()) } else { Err(TreeFault::Leaf) }
}

fn ancestor(page: u64, level: u8) -> u64 {
    page >> (4 * (u32::from(level) + 1))
}

/// Where a tree's nodes are read from; see the module for what it promises.
pub trait NodeSource {
    /// Reads the node at `offset` bytes in the tree's region.
    ///
    /// # Errors
    /// Errors of reading; a node is never made up.
    fn read_node(&self, node: NodeId, offset: u64, bytes: &mut Node) -> io::Result<()>;
}

/// The whole tree's region as bytes.
impl NodeSource for &[u8] {
    fn read_node(&self, _: NodeId, offset: u64, bytes: &mut Node) -> io::Result<()> {
        let at = usize::try_from(offset).ok();
        let found =
            at.and_then(|at| self.get(at..)).and_then(|rest| rest.first_chunk::<NODE_LEN>());
        *bytes = *found.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(())
    }
}

/// Why a leaf cannot be confirmed.
#[derive(Debug)]
pub enum TreeFault {
    /// The leaf is not the current one.
    Leaf,
    /// A node is not the current one.
    Node(NodeId),
    /// A node cannot be read.
    Read(NodeId, io::Error),
    /// There is no such page.
    OutOfRange,
}

/// One node to write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeWrite {
    /// Which node.
    pub node: NodeId,
    /// Where: bytes from the start of the tree's region.
    pub offset: u64,
    /// What.
    pub bytes: Box<Node>,
}

/// A change of leaves that is not committed yet.
#[derive(Clone, Debug)]
pub struct TreeChange {
    /// Version that it was made on.
    base: u64,
    /// The new root.
    pub root: Digest,
    /// All nodes that change, each once.
    pub nodes: Vec<NodeWrite>,
}

struct TreeState {
    root: Digest,
    /// One higher with each commit.
    version: u64,
    nodes: HashMap<NodeId, Box<Node>>,
}

/// The tree of one object. Usable from many threads at once.
pub struct Tree {
    object: Uuid,
    shape: TreeShape,
    state: RwLock<TreeState>,
}

impl core::fmt::Debug for Tree {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Tree({}, {} pages)", self.object, self.shape.pages())
    }
}

impl Tree {
    /// The tree with this root; nothing is read before it is needed.
    #[must_use]
    pub fn new(object: Uuid, shape: TreeShape, root: Digest) -> Self {
        let state = TreeState { root, version: 0, nodes: HashMap::new() };
        Self { object, shape, state: RwLock::new(state) }
    }

    /// The current root.
    #[must_use]
    pub fn root(&self) -> Digest {
        self.read().root
    }

    /// Nodes that are remembered: 512 bytes each.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.read().nodes.len()
    }

    /// Forgets the nodes of level 0, most of all. Only when every committed node can be read from
    /// the source, and no change is prepared.
    pub fn trim(&self) {
        let mut state = self.write();
        state.nodes.retain(|id, _| id.level > 0);
        state.nodes.shrink_to_fit();
    }

    fn read(&self) -> RwLockReadGuard<'_, TreeState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, TreeState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `leaf` is the page's current digest.
    ///
    /// # Errors
    /// [`TreeFault::Leaf`] if it is another; the rest if the tree cannot say.
    pub fn verify<S: NodeSource + ?Sized>(
        &self,
        page: u64,
        leaf: &Digest,
        source: &S,
    ) -> Result<(), TreeFault> {
        if page >= self.shape.pages() {
            return Err(TreeFault::OutOfRange);
        }
        let id = NodeId::of_page(page);
        let remembered = self.read().nodes.get(&id).map(|node| slot(node, page));
        let current = match remembered {
            Some(current) => current,
            None => slot(&self.load(id, source)?.0, page),
        };
        if current == *leaf { Ok(()) } else { Err(TreeFault::Leaf) }
    }

    /// A verified node, and the version of the tree that it is of.
    fn load<S: NodeSource + ?Sized>(
        &self,
        id: NodeId,
        source: &S,
    ) -> Result<(Box<Node>, u64), TreeFault> {
        loop {
            // The nodes to read: from the wanted one up to the first whose parent is in memory.
            let mut missing: Vec<NodeId> = Vec::with_capacity(usize::from(LEVELS_MAX));
            let (mut expected, version) = {
                let state = self.read();
                let mut at = id;
                let expected = loop {
                    if let Some(node) = state.nodes.get(&at) {
                        match missing.last() {
                            None => return Ok((node.clone(), state.version)),
                            Some(child) => break slot(node, child.index),
                        }
                    }
                    missing.push(at);
                    if Some(at) == self.shape.top() {
                        break state.root;
                    }
                    at = at.parent();
                };
                (expected, state.version)
            };
            // Without the lock: reading may be slow. From the top down, each by the one above it.
            let mut verified = Vec::with_capacity(missing.len());
            let mut fault = None;
            while let Some(id) = missing.pop() {
                let mut node = Box::new([0; NODE_LEN]);
                if expected != ZERO {
                    if let Err(error) = source.read_node(id, self.shape.offset(id), &mut node) {
                        fault = Some(TreeFault::Read(id, error));
                        break;
                    }
                    if node_digest(self.object, id, &node) != expected {
                        fault = Some(TreeFault::Node(id));
                        break;
                    }
                }
                if let Some(child) = missing.last() {
                    expected = slot(&node, child.index);
                }
                verified.push((id, node));
            }
            let mut state = self.write();
            if state.version != version {
                continue; // committed meanwhile: what was read may be of either side
            }
            let last = verified.last().map(|(_, node)| node.clone());
            state.nodes.extend(verified);
            return match (fault, last) {
                (None, Some(node)) => Ok((node, version)),
                (Some(fault), _) => Err(fault),
                (None, None) => Err(TreeFault::OutOfRange),
            };
        }
    }

    /// Works out a change of leaves: for each page its new digest, the last where a page comes
    /// twice. Changes nothing yet.
    ///
    /// # Errors
    /// With the page, what hinders. The nodes above each page are verified first: a change never
    /// hides damage.
    pub fn prepare<S: NodeSource + ?Sized>(
        &self,
        leaves: &[(u64, Digest)],
        source: &S,
    ) -> Result<TreeChange, (u64, TreeFault)> {
        loop {
            let base = self.read().version;
            let mut changes: Vec<(u64, u64, Digest)> =
                leaves.iter().map(|(page, digest)| (*page, *page, *digest)).collect();
            if let Some((page, ..)) = changes.iter().find(|(page, ..)| *page >= self.shape.pages())
            {
                return Err((*page, TreeFault::OutOfRange));
            }
            changes.sort_by_key(|(page, ..)| *page); // stable: the last of equals stays last
            let mut nodes = Vec::new();
            let mut root = self.read().root;
            let mut torn = false;
            for level in 0..self.shape.levels() {
                // (child, a page below it, its new digest), sorted by child; the nodes above them
                // follow.
                let mut above = Vec::new();
                for group in changes.chunk_by(|a, b| a.0 / ARITY == b.0 / ARITY) {
                    let Some(&(child, page, _)) = group.first() else { continue };
                    let id = NodeId { level, index: child / ARITY };
                    let (mut bytes, version) =
                        self.load(id, source).map_err(|fault| (page, fault))?;
                    torn |= version != base;
                    for (child, _, digest) in group {
                        set_slot(&mut bytes, *child, digest);
                    }
                    let digest = node_digest(self.object, id, &bytes);
                    above.push((id.index, page, digest));
                    nodes.push(NodeWrite { node: id, offset: self.shape.offset(id), bytes });
                }
                changes = above;
            }
            if let (Some((.., digest)), true) = (changes.first(), self.shape.levels() > 0) {
                root = *digest;
            }
            if !torn && self.read().version == base {
                return Ok(TreeChange { base, root, nodes });
            }
        }
    }

    /// Makes a prepared change the current state: to be called once it is durable. False, and
    /// nothing happens, if another was committed since it was prepared.
    #[must_use]
    pub fn commit(&self, change: TreeChange) -> bool {
        let mut state = self.write();
        if state.version != change.base {
            return false;
        }
        state.version += 1;
        state.root = change.root;
        state.nodes.extend(change.nodes.into_iter().map(|write| (write.node, write.bytes)));
        true
    }

    /// Whether a change could be committed now.
    #[must_use]
    pub fn fits(&self, change: &TreeChange) -> bool {
        self.read().version == change.base
    }
}

/// Whether all bytes are zero; a page that is not is found out after its first bytes.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|chunk| chunk.iter().fold(0, |a, b| a | b) == 0)
        && rest.iter().all(|&b| b == 0)
}

#[cfg(test)]
mod tests;
