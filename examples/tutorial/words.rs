use cenote::{Persist, Pool, Ptr, Reader, Store, Tx};
use cenote_collections::{BTreeMap, InlineStr, List};

type Word = InlineStr<31>;

#[derive(Persist)]
struct Index {
    positions: BTreeMap<Word, List<u64>>,
    words: u64,
}

/// The index of the pool. The first call makes it.
fn index(tx: &mut Tx<'_>) -> cenote::Result<Ptr<Index>> {
    if let Some(index) = tx.root::<Index>()? {
        return Ok(index);
    }
    let positions = BTreeMap::new(tx)?;
    let index = tx.alloc(Index { positions, words: 0 })?;
    tx.set_root(index)?;
    Ok(index)
}

/// Adds all words of a text, or none.
fn add(pool: &Pool, text: &str) -> cenote::Result<()> {
    pool.write(|tx| {
        let index = index(tx)?;
        let positions = tx.get(index)?.positions;
        for word in text.split_whitespace() {
            let at = tx.get(index)?.words;
            tx.get_mut(index)?.words = at + 1;
            let word = Word::truncated(word);
            let list = *positions.entry(tx, word)?.or_try_insert_with(List::new)?;
            list.push_back(tx, at)?;
        }
        Ok(())
    })
}

/// Forgets a word: takes its list out of the map, and frees the list.
fn forget(pool: &Pool, word: &str) -> cenote::Result<bool> {
    pool.write(|tx| {
        let index = index(tx)?;
        let positions = tx.get(index)?.positions;
        let Some(list) = positions.remove(tx, word)? else { return Ok(false) };
        list.destroy(tx)?;
        Ok(true)
    })
}

fn print(pool: &Pool) -> cenote::Result<()> {
    let view = pool.read()?;
    let Some(index) = view.root::<Index>()? else { return Ok(()) };
    for (word, list) in view.get(index)?.positions.iter(&view)? {
        let at: Vec<u64> = list.iter(&view)?.copied().collect();
        println!("{word}: {at:?}");
    }
    Ok(())
}

fn main() -> Result<(), String> {
    let run = || {
        let pool = Store::open("tutorial")?.pool("words")?;
        add(&pool, "to be or not to be")?;
        forget(&pool, "or")?;
        print(&pool)
    };
    run().map_err(|error: cenote::Error| error.to_string())
}
