//! Histories: sequences of operations that a grammar allows, in depth-first order.
//!
//! The first operation of a transaction begins it; commit and abort end one, and come only where
//! one is running with something in it; "free" comes only where something is attached.

use crate::data::{BIGS, SLOTS};
use std::fmt;

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Allocate a node, write it, attach it to the root.
    Alloc,
    /// Detach what was attached last, and free it.
    Free,
    /// Overwrite data in place.
    Set,
    /// Allocate a large block, for which the pool needs a new puddle, and attach it.
    Grow,
    /// Write to the second pool.
    Other,
    /// Commit.
    Commit,
    /// Abort.
    Abort,
}

impl Op {
    /// All operations.
    pub const ALL: [Self; 7] =
        [Self::Alloc, Self::Free, Self::Set, Self::Grow, Self::Other, Self::Commit, Self::Abort];
    /// Those of one pool that does not grow.
    pub const CORE: [Self; 5] = [Self::Alloc, Self::Free, Self::Set, Self::Commit, Self::Abort];

    fn letter(self) -> char {
        match self {
            Self::Alloc => 'a',
            Self::Free => 'f',
            Self::Set => 's',
            Self::Grow => 'g',
            Self::Other => 'p',
            Self::Commit => 'C',
            Self::Abort => 'X',
        }
    }
}

/// A sequence of operations, written as letters: `a`lloc, `f`ree, `s`et, `g`row, second `p`ool,
/// `C`ommit, `X` abort.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct History(pub Vec<Op>);

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|op| write!(f, "{}", op.letter()))
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl History {
    /// The history that these letters stand for; letters that stand for none are left out.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self(text.chars().filter_map(|c| Op::ALL.into_iter().find(|op| op.letter() == c)).collect())
    }

    /// All histories of 1 to `depth` operations of `alphabet`, each prefix before what it is a
    /// prefix of.
    #[must_use]
    pub fn all(alphabet: &[Op], depth: usize) -> Vec<Self> {
        let mut out = Vec::new();
        let start = AttachedState { nodes: 1, bigs: 0, open: false, saved: (1, 0) };
        extend(alphabet, depth, &mut Vec::new(), start, &mut out);
        out
    }
}

/// How much is attached, now and at the last commit.
#[derive(Clone, Copy)]
struct AttachedState {
    nodes: usize,
    bigs: usize,
    open: bool,
    saved: (usize, usize),
}

impl AttachedState {
    fn after(mut self, op: Op) -> Option<Self> {
        match op {
            Op::Alloc if self.nodes < SLOTS => self.nodes += 1,
            Op::Free if self.nodes > 0 => self.nodes -= 1,
            Op::Free if self.bigs > 0 => self.bigs -= 1,
            Op::Grow if self.bigs < BIGS => self.bigs += 1,
            Op::Set | Op::Other => {}
            Op::Commit if self.open => {
                return Some(Self { open: false, saved: (self.nodes, self.bigs), ..self });
            }
            Op::Abort if self.open => {
                return Some(Self { open: false, nodes: self.saved.0, bigs: self.saved.1, ..self });
            }
            _ => return None,
        }
        Some(Self { open: true, ..self })
    }
}

fn extend(
    alphabet: &[Op],
    depth: usize,
    ops: &mut Vec<Op>,
    state: AttachedState,
    out: &mut Vec<History>,
) {
    if !ops.is_empty() {
        out.push(History(ops.clone()));
    }
    if ops.len() == depth {
        return;
    }
    for &op in alphabet {
        if let Some(next) = state.after(op) {
            ops.push(op);
            extend(alphabet, depth, ops, next, out);
            ops.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_begins_before_it_ends_and_frees_only_what_is_attached() {
        let all = History::all(&Op::ALL, 4);
        assert!(all.contains(&History::parse("aCsX")));
        assert!(all.contains(&History::parse("fCaC")));
        for impossible in ["C", "X", "aCC", "ff", "aaa", "ggg", "aCXs"] {
            assert!(!all.contains(&History::parse(impossible)), "{impossible}");
        }
        for length in 1..=6 {
            let core =
                History::all(&Op::CORE, length).iter().filter(|h| h.0.len() == length).count();
            let full =
                History::all(&Op::ALL, length).iter().filter(|h| h.0.len() == length).count();
            println!("{length} operations: {core} core histories, {full} of the full alphabet");
        }
    }
}
