//! The index: an ordered map from words to lists of their positions, in persistent memory, in safe
//! code.
//!
//! Map and lists are those of `cenote-collections`: nodes linked by plain pointers. There is no
//! code for saving, loading or recovering: a transaction changes the index and how far it has come
//! together, or has not happened.
//!
//! ```text
//! root 0 -> Progress: text, next
//!                     words -> BTreeMap:  "and"  -> List: 5 <-> 22 <-> ...
//!                                         "pool" -> List: 3 <-> 17 <-> ...
//! ```

use super::text::WORD_LEN_MAX;
use cenote::{Persist, Pool, Reader, Result, field};
use cenote_collections::btree::Entry;
use cenote_collections::{BTreeMap, InlineStr, List};

/// Name of the pool.
pub(crate) const POOL: &str = "tour";

/// A word, in the map itself.
type Word = InlineStr<WORD_LEN_MAX>;

/// The root: what is indexed so far. It changes in the same transactions as the index.
#[derive(Clone, Copy, Debug, Persist)]
#[persist(name = "tour::Progress")]
pub(crate) struct TourProgress {
    /// Fingerprint of the text.
    pub(crate) text: u64,
    /// Words that are indexed: number of the next one.
    pub(crate) next: u64,
    /// Each word with its positions, rising.
    words: BTreeMap<Word, List<u64>>,
}

/// What the pool says of the work so far; begins it if it says nothing.
pub(crate) fn begin(pool: &Pool, text: u64) -> Result<TourProgress> {
    pool.write(|tx| {
        if let Some(progress) = tx.root::<TourProgress>()? {
            return Ok(*tx.get(progress)?);
        }
        let progress = TourProgress { text, next: 0, words: BTreeMap::new(tx)? };
        let root = tx.alloc(progress)?;
        tx.set_root(root)?;
        Ok(progress)
    })
}

/// Indexes further words, in one transaction. Returns how many are indexed then.
pub(crate) fn add(pool: &Pool, words: &[&str]) -> Result<u64> {
    pool.write(|tx| {
        let Some(root) = tx.root::<TourProgress>()? else {
            return Err(cenote::Error::Aborted("the index does not exist yet".into()));
        };
        let TourProgress { next: mut position, words: index, .. } = *tx.get(root)?;
        for word in words {
            // The text is cut into words that fit.
            let positions = match index.entry(tx, Word::truncated(word))? {
                Entry::Occupied(entry) => *entry.get(),
                Entry::Vacant(entry) => *entry.try_insert_with(List::new)?,
            };
            positions.push_back(tx, position)?;
            position += 1;
        }
        tx.set(root, field!(TourProgress, next), position)?;
        Ok(position)
    })
}

/// The work so far, read-only.
pub(crate) fn progress(pool: &Pool) -> Result<Option<TourProgress>> {
    let view = pool.read()?;
    view.root::<TourProgress>()?.map(|progress| view.get(progress).copied()).transpose()
}

/// Calls `visit` for every word in order, with its positions.
pub(crate) fn for_each(pool: &Pool, visit: &mut dyn FnMut(&str, &[u64])) -> Result<()> {
    let view = pool.read()?;
    let Some(root) = view.root::<TourProgress>()? else { return Ok(()) };
    let mut copy = Vec::new();
    for (word, positions) in view.get(root)?.words.iter(&view)? {
        copy.clear();
        copy.extend(positions.iter(&view)?);
        visit(word, &copy);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote::Store;

    /// Words from a few letters, with many repetitions, in no order.
    fn sample(count: usize) -> Vec<String> {
        let mut state = 7_u64;
        (0..count)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                format!("w{}", (state >> 33) % 300)
            })
            .collect()
    }

    #[test]
    fn the_index_is_that_of_the_standard_library_for_batches_of_all_sizes() {
        let dir = tempfile::tempdir().expect("a directory");
        let pool = Store::open(dir.path()).expect("a store").pool(POOL).expect("a pool");
        let words = sample(3000);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        begin(&pool, 1).expect("begun");
        for batch in [&words[..1], &words[1..100], &words[100..1000], &words[1000..]] {
            add(&pool, batch).expect("added");
        }
        let mut expected: std::collections::BTreeMap<String, Vec<u64>> = Default::default();
        for (i, word) in words.iter().enumerate() {
            expected.entry((*word).to_owned()).or_default().push(i as u64);
        }
        let mut found = Vec::new();
        for_each(&pool, &mut |word, positions| found.push((word.to_owned(), positions.to_vec())))
            .expect("read");
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
        let progress = progress(&pool).expect("read").expect("a root");
        assert_eq!(progress.next, 3000);
        assert_eq!(progress.words.len(&pool.read().expect("a view")).expect("alive"), found.len());
        assert!(pool.check().expect("checked").is_sound());
    }

    #[test]
    fn a_batch_that_is_aborted_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let pool = Store::open(dir.path()).expect("a store").pool(POOL).expect("a pool");
        begin(&pool, 1).expect("begun");
        add(&pool, &["a", "b"]).expect("added");
        let failed: Result<()> = pool.write(|tx| {
            let root = tx.root::<TourProgress>()?.expect("a root");
            let index = tx.get(root)?.words;
            for (word, position) in [("c", 2), ("a", 3), ("0", 4)] {
                let positions =
                    *index.entry(tx, Word::truncated(word))?.or_try_insert_with(List::new)?;
                positions.push_back(tx, position)?;
            }
            tx.set(root, field!(TourProgress, next), 5)?;
            Err(cenote::Error::Aborted("enough".into()))
        });
        assert!(failed.is_err());
        let mut found = Vec::new();
        for_each(&pool, &mut |word, positions| found.push((word.to_owned(), positions.to_vec())))
            .expect("read");
        assert_eq!(found, [("a".to_owned(), vec![0]), ("b".to_owned(), vec![1])]);
        assert_eq!(progress(&pool).expect("read").expect("a root").next, 2);
        assert!(pool.check().expect("checked").is_sound());
    }
}
