//! The index: an ordered map from words to lists of their positions, in persistent memory, in safe code.
//!
//! The map is a treap: a search tree by word, and a heap by the hash of the word, so that its shape depends on nothing but the words
//! in it. Nodes and list parts are linked by plain pointers ([`Ptr`]). There is no code for saving, loading or recovering: a
//! transaction changes the tree, or has not happened.
//!
//! ```text
//! root 0 -> Progress -> Entry "pool" -> Positions [3, 17, ...] -> Positions [...]
//!                        /        \
//!               Entry "and"     Entry "store"
//! ```

use super::text::WORD_LEN_MAX;
use cenote::{Persist, Pool, Ptr, Reader, Result, Tx, field};
use std::cmp::Ordering;

/// Name of the pool.
pub(crate) const POOL: &str = "tour";

/// The root: what is indexed so far. It changes in the same transactions as the index.
#[derive(Clone, Copy, Debug, Persist)]
#[persist(name = "tour::Progress")]
pub(crate) struct Progress {
    /// Fingerprint of the text.
    pub(crate) text: u64,
    /// Words that are indexed: number of the next one.
    pub(crate) next: u64,
    /// Different words.
    pub(crate) entries: u64,
    tree: Option<Ptr<Entry>>,
}

/// A word, and where it stands.
#[derive(Clone, Copy, Debug, Persist)]
#[persist(name = "tour::Entry")]
struct Entry {
    left: Option<Ptr<Entry>>,
    right: Option<Ptr<Entry>>,
    first: Option<Ptr<Positions>>,
    last: Option<Ptr<Positions>>,
    word: Word,
}

/// Some positions of a word.
#[derive(Clone, Copy, Debug, Persist)]
#[persist(name = "tour::Positions")]
struct Positions {
    next: Option<Ptr<Positions>>,
    used: u64,
    at: [u64; 6],
}

/// A word's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[persist(name = "tour::Word")]
struct Word {
    len: u8,
    bytes: [u8; WORD_LEN_MAX],
}

impl Word {
    fn new(word: &str) -> Self {
        let mut bytes = [0; WORD_LEN_MAX];
        let len = word.len().min(WORD_LEN_MAX);
        bytes[..len].copy_from_slice(&word.as_bytes()[..len]);
        Self { len: len as u8, bytes } // at most 39
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(WORD_LEN_MAX)]
    }

    fn priority(&self) -> u64 {
        cenote_layout::checksum::checksum(1, self.as_bytes())
    }
}

/// A place that holds a pointer to a node.
#[derive(Clone, Copy)]
enum Slot {
    Root(Ptr<Progress>),
    Left(Ptr<Entry>),
    Right(Ptr<Entry>),
}

impl Slot {
    fn get(self, tx: &Tx<'_>) -> Result<Option<Ptr<Entry>>> {
        Ok(match self {
            Self::Root(progress) => tx.get(progress)?.tree,
            Self::Left(entry) => tx.get(entry)?.left,
            Self::Right(entry) => tx.get(entry)?.right,
        })
    }

    fn set(self, tx: &mut Tx<'_>, to: Option<Ptr<Entry>>) -> Result<()> {
        match self {
            Self::Root(progress) => tx.set(progress, field!(Progress, tree), to),
            Self::Left(entry) => tx.set(entry, field!(Entry, left), to),
            Self::Right(entry) => tx.set(entry, field!(Entry, right), to),
        }
    }
}

/// What the pool says of the work so far; begins it if it says nothing.
pub(crate) fn begin(pool: &Pool, text: u64) -> Result<Progress> {
    pool.write(|tx| {
        if let Some(progress) = tx.root::<Progress>()? {
            return Ok(*tx.get(progress)?);
        }
        let progress = Progress { text, next: 0, entries: 0, tree: None };
        let root = tx.alloc(progress)?;
        tx.set_root(root)?;
        Ok(progress)
    })
}

/// Indexes further words, in one transaction. Returns how many are indexed then.
pub(crate) fn add(pool: &Pool, words: &[&str]) -> Result<u64> {
    pool.write(|tx| {
        let Some(root) = tx.root::<Progress>()? else {
            return Err(cenote::Error::Aborted("the index has not been begun".into()));
        };
        let Progress { next, mut entries, .. } = *tx.get(root)?;
        let mut position = next;
        for word in words {
            if insert(tx, root, &Word::new(word), position)? {
                entries += 1;
            }
            position += 1;
        }
        tx.set(root, field!(Progress, next), position)?;
        if entries != tx.get(root)?.entries {
            tx.set(root, field!(Progress, entries), entries)?;
        }
        Ok(position)
    })
}

/// Adds one position of one word. `true`: the word is new.
fn insert(tx: &mut Tx<'_>, root: Ptr<Progress>, word: &Word, position: u64) -> Result<bool> {
    let priority = word.priority();
    let mut slot = Slot::Root(root);
    // Down to the word, or to where it belongs: above every node of a lower priority.
    let rest = loop {
        let Some(at) = slot.get(tx)? else { break None };
        let entry = tx.get(at)?;
        let order = word.as_bytes().cmp(entry.word.as_bytes());
        if order == Ordering::Equal {
            append(tx, at, position)?;
            return Ok(false);
        }
        // Equal hashes of different words: any order will do that does not depend on what came first.
        if (entry.word.priority(), entry.word.as_bytes()) < (priority, word.as_bytes()) {
            break Some(at);
        }
        slot = if order == Ordering::Less { Slot::Left(at) } else { Slot::Right(at) };
    };
    let positions = tx.alloc(Positions { next: None, used: 1, at: [position, 0, 0, 0, 0, 0] })?;
    let new = tx.alloc(Entry {
        left: None,
        right: None,
        first: Some(positions),
        last: Some(positions),
        word: *word,
    })?;
    slot.set(tx, Some(new))?;
    split(tx, rest, word, new)?;
    Ok(true)
}

/// Hangs the tree at `rest` below `new`: lesser words to the left, greater ones to the right.
fn split(tx: &mut Tx<'_>, mut rest: Option<Ptr<Entry>>, word: &Word, new: Ptr<Entry>) -> Result<()> {
    let (mut lesser, mut greater) = (Slot::Left(new), Slot::Right(new));
    while let Some(at) = rest {
        if tx.get(at)?.word.as_bytes() < word.as_bytes() {
            lesser.set(tx, Some(at))?;
            lesser = Slot::Right(at);
            rest = lesser.get(tx)?;
        } else {
            greater.set(tx, Some(at))?;
            greater = Slot::Left(at);
            rest = greater.get(tx)?;
        }
    }
    lesser.set(tx, None)?;
    greater.set(tx, None)
}

/// Adds a position to an entry's list.
fn append(tx: &mut Tx<'_>, entry: Ptr<Entry>, position: u64) -> Result<()> {
    let last = tx.get(entry)?.last;
    if let Some(last) = last {
        let used = tx.get(last)?.used;
        if let Some(place) = usize::try_from(used).ok().and_then(|used| field!(Positions, at).element(used)) {
            tx.set(last, place, position)?;
            return tx.set(last, field!(Positions, used), used + 1);
        }
    }
    let new = tx.alloc(Positions { next: None, used: 1, at: [position, 0, 0, 0, 0, 0] })?;
    match last {
        Some(last) => tx.set(last, field!(Positions, next), Some(new))?,
        None => tx.set(entry, field!(Entry, first), Some(new))?,
    }
    tx.set(entry, field!(Entry, last), Some(new))
}

/// The work so far, read-only.
pub(crate) fn progress(pool: &Pool) -> Result<Option<Progress>> {
    let view = pool.read()?;
    view.root::<Progress>()?.map(|progress| view.get(progress).copied()).transpose()
}

/// Calls `visit` for every word in order, with its positions.
pub(crate) fn for_each(pool: &Pool, visit: &mut dyn FnMut(&str, &[u64])) -> Result<()> {
    let view = pool.read()?;
    let Some(root) = view.root::<Progress>()? else { return Ok(()) };
    let mut above: Vec<Ptr<Entry>> = Vec::new();
    let mut at = view.get(root)?.tree;
    let mut positions = Vec::new();
    loop {
        while let Some(entry) = at {
            above.push(entry);
            at = view.get(entry)?.left;
        }
        let Some(entry) = above.pop() else { return Ok(()) };
        let entry = view.get(entry)?;
        positions.clear();
        let mut list = entry.first;
        while let Some(part) = list {
            let part = view.get(part)?;
            positions.extend(part.at.iter().take(usize::try_from(part.used).unwrap_or(usize::MAX)));
            list = part.next;
        }
        visit(&String::from_utf8_lossy(entry.word.as_bytes()), &positions);
        at = entry.right;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote::Store;
    use std::collections::BTreeMap;

    /// Words from a few letters, with many repetitions, in no order.
    fn sample(count: usize) -> Vec<String> {
        let mut state = 7_u64;
        (0..count)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                format!("w{}", (state >> 33) % 300)
            })
            .collect()
    }

    #[test]
    fn the_index_is_that_of_the_standard_library_whatever_the_batches() {
        let dir = tempfile::tempdir().expect("a directory");
        let pool = Store::open(dir.path()).expect("a store").pool(POOL).expect("a pool");
        let words = sample(3000);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        begin(&pool, 1).expect("begun");
        for batch in [&words[..1], &words[1..100], &words[100..1000], &words[1000..]] {
            add(&pool, batch).expect("added");
        }
        let mut expected: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (i, word) in words.iter().enumerate() {
            expected.entry((*word).to_owned()).or_default().push(i as u64);
        }
        let mut found = Vec::new();
        for_each(&pool, &mut |word, positions| found.push((word.to_owned(), positions.to_vec())))
            .expect("read");
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
        let progress = progress(&pool).expect("read").expect("a root");
        assert_eq!((progress.next, progress.entries), (3000, found.len() as u64));
        assert!(pool.check().expect("checked").is_sound());
    }

    #[test]
    fn a_batch_that_is_aborted_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let pool = Store::open(dir.path()).expect("a store").pool(POOL).expect("a pool");
        begin(&pool, 1).expect("begun");
        add(&pool, &["a", "b"]).expect("added");
        let failed: Result<()> = pool.write(|tx| {
            let root = tx.root::<Progress>()?.expect("a root");
            for (i, word) in ["c", "a", "0"].iter().enumerate() {
                insert(tx, root, &Word::new(word), 2 + i as u64)?;
            }
            Err(cenote::Error::Aborted("enough".into()))
        });
        assert!(failed.is_err());
        let mut found = Vec::new();
        for_each(&pool, &mut |word, positions| found.push((word.to_owned(), positions.to_vec())))
            .expect("read");
        assert_eq!(found, [("a".to_owned(), vec![0]), ("b".to_owned(), vec![1])]);
        assert!(pool.check().expect("checked").is_sound());
    }
}
