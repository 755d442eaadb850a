//! Collections with wrong headers. An archive can be made by hand, with every checksum. For any
//! word in a header, a node or a page, the import refuses it, or every safe operation runs without
//! a fault.
//!
//! The generator changes one word of one archive at a time: all words of each header, and the words
//! of nodes that link, count or order. A child process imports what comes out and uses it, so that
//! a fault ends the child, and its last line says which change it was. `CENOTE_HEADERS=all` takes
//! all values for all words; otherwise a seeded part of them.

use crate::common::{directory, random};
use cenote::persist::{Rule, TypeId};
use cenote::{
    Access, ArchivingError, Error, ExportOptions, ImportOptions, OpenOptions, Persist, Pool,
    PoolOptions, Reader, Result, Store,
};
use cenote_collections::{
    BTreeMap, ForwardList, HashMap, List, RelaxedDurabilityMap, String, Vec, VecDeque,
};
use cenote_layout::archive::{SectionHeader, section_sum};
use cenote_medium::planted::{Bug, plant};
use cenote_testkit::child::again;
use std::collections::BTreeMap as Map;
use std::num::NonZeroU64;

#[derive(Persist, Clone, Copy)]
#[persist(name = "headers::Root")]
struct Root {
    numbers: Vec<u64>,
    wise: Vec<NonZeroU64>,
    ring: VecDeque<NonZeroU64>,
    text: String,
    list: List<NonZeroU64>,
    chain: ForwardList<u64>,
    tree: BTreeMap<u64, NonZeroU64>,
    map: HashMap<u64, NonZeroU64>,
    few: HashMap<NonZeroU64, u64>,
    small: BTreeMap<NonZeroU64, u64>,
    relaxed: RelaxedDurabilityMap<u64, u64>,
}

fn wise(number: u64) -> NonZeroU64 {
    NonZeroU64::new(number).unwrap_or(NonZeroU64::MAX)
}

fn small() -> PoolOptions {
    PoolOptions { puddle_size: 1 << 20, ..PoolOptions::default() }
}

/// A pool with every collection, of more than one node each.
fn fill(pool: &Pool) -> Result<Root> {
    let root = pool.write(|tx| -> Result<Root> {
        let root = Root {
            numbers: Vec::new(tx)?,
            wise: Vec::new(tx)?,
            ring: VecDeque::new(tx)?,
            text: String::from_str(tx, "Grüße aus der Höhle, größer als fünf Wörter")?,
            list: List::new(tx)?,
            chain: ForwardList::new(tx)?,
            tree: BTreeMap::new(tx)?,
            map: HashMap::new(tx)?,
            few: HashMap::new(tx)?,
            small: BTreeMap::new(tx)?,
            relaxed: RelaxedDurabilityMap::new(tx)?,
        };
        for number in 1..=400 {
            if number <= 20 {
                root.numbers.push(tx, number)?;
                root.wise.push(tx, wise(number))?;
                root.list.push_back(tx, wise(number))?;
                root.chain.push_back(tx, number)?;
            }
            if number <= 5 {
                root.few.insert(tx, wise(number), number)?;
                root.small.insert(tx, wise(number), number)?;
            }
            root.tree.insert(tx, number, wise(number))?;
            root.map.insert(tx, number, wise(number))?;
        }
        // Its values go on at the beginning of its array.
        root.ring.extend(tx, (1..=16).map(wise))?;
        (0..8).try_for_each(|_| root.ring.pop_front(tx).map(drop))?;
        root.ring.extend(tx, (1..=6).map(wise))?;
        let at = tx.alloc(root)?;
        tx.set_root(at)?;
        Ok(root)
    })?;
    let open = root.relaxed.open(pool)?;
    (0..400).try_for_each(|number| open.insert(&(number * 263 % 400), &number).map(drop))?;
    Ok(root)
}

/// Opens the map of relaxed durability, and uses it up.
fn use_relaxed(pool: &Pool, root: &Root) -> Result<()> {
    let open = root.relaxed.open(pool)?;
    let read = || -> Result<u64> {
        let view = pool.read()?;
        let sum = open.iter(&view)?.fold(0, |sum: u64, (key, value)| sum.wrapping_add(key ^ value));
        Ok(sum ^ open.range(&view, 100..200)?.count() as u64 ^ open.broken(&view)? as u64)
    };
    std::hint::black_box(read()?);
    for number in 300..500 {
        let _ = open.insert(&(number * 7), &number);
    }
    let _ = read();
    for number in 0..350 {
        let _ = open.remove(&number);
    }
    let _ = (read(), open.flush());
    open.destroy()
}

/// Reads all of it, both ways.
fn read(root: &Root, reader: &impl Reader) -> Result<u64> {
    let mut sum = 0_u64;
    let mut add = |number: u64| sum = sum.wrapping_add(std::hint::black_box(number));
    root.numbers.iter(reader)?.for_each(|number| add(*number));
    root.wise.iter(reader)?.rev().for_each(|number| add(number.get()));
    root.ring.iter(reader)?.for_each(|number| add(number.get()));
    root.ring.iter(reader)?.rev().for_each(|number| add(number.get()));
    root.text.as_str(reader)?.chars().rev().for_each(|character| add(character.into()));
    root.list.iter(reader)?.for_each(|number| add(number.get()));
    root.list.iter(reader)?.rev().for_each(|number| add(number.get()));
    root.chain.iter(reader)?.for_each(|number| add(*number));
    root.tree.iter(reader)?.for_each(|(key, value)| add(key ^ value.get()));
    root.tree.iter(reader)?.rev().for_each(|(key, value)| add(key ^ value.get()));
    root.tree.range(reader, 100..200)?.for_each(|(key, _)| add(*key));
    root.map.iter(reader)?.for_each(|(key, value)| add(key ^ value.get()));
    root.few.iter(reader)?.for_each(|(key, value)| add(key.get() ^ value));
    root.small.iter(reader)?.rev().for_each(|(key, value)| add(key.get() ^ value));
    for number in 0..420 {
        add(root.tree.get(reader, &number)?.map_or(0, |value| value.get()));
        add(root.map.get(reader, &number)?.map_or(0, |value| value.get()));
    }
    Ok(sum)
}

/// Every safe operation on it, down to nothing. Errors are answers.
fn use_up(pool: &Pool) -> Result<()> {
    let root = {
        let view = pool.read()?;
        let root = *view.get(view.root::<Root>()?.expect("set"))?;
        read(&root, &view)?;
        root
    };
    let changes: [fn(&mut cenote::Tx<'_>, &Root) -> Result<()>; 4] = [
        |tx, root| {
            for number in 500..560 {
                root.numbers.push(tx, number)?;
                root.wise.insert(tx, 3, wise(number))?;
                root.ring.push_front(tx, wise(number))?;
                root.text.push_str(tx, "ö")?;
                root.list.push_front(tx, wise(number))?;
                root.chain.push_front(tx, number)?;
                root.tree.insert(tx, number, wise(number))?;
                root.map.insert(tx, number, wise(number))?;
                root.few.insert(tx, wise(number), number)?;
                root.small.insert(tx, wise(number), number)?;
            }
            Ok(())
        },
        |tx, root| {
            root.list.iter_mut(tx)?.for_each(|value| *value = wise(7));
            root.tree.values_mut(tx)?.for_each(|value| *value = wise(8));
            root.map.values_mut(tx)?.for_each(|value| *value = wise(9));
            root.list.retain(tx, |value| value.get() % 2 == 1)
        },
        |tx, root| {
            for number in 0..300 {
                root.tree.remove(tx, &number)?;
                root.map.remove(tx, &number)?;
                root.list.pop_back(tx)?;
                root.chain.pop_front(tx)?;
                root.numbers.pop(tx)?;
                root.ring.pop_back(tx)?;
                root.text.pop(tx)?;
            }
            Ok(())
        },
        |tx, root| {
            root.wise.truncate(tx, 1)?;
            root.numbers.clear(tx)?;
            root.ring.destroy(tx)?;
            root.list.clear(tx)?;
            root.tree.clear(tx)?;
            root.few.clear(tx)?;
            root.text.destroy(tx)?;
            root.chain.destroy(tx)?;
            root.small.destroy(tx)?;
            root.map.destroy(tx)
        },
    ];
    let _ = use_relaxed(pool, &root);
    for change in changes {
        let _ = pool.write(|tx| change(tx, &root));
        let _ = read(&root, &pool.read()?);
    }
    Ok(())
}

/// An archive whose words can be changed.
struct Archive {
    bytes: std::vec::Vec<u8>,
    /// Address of each chunk's first byte to its place and length in the archive.
    chunks: Map<u64, (usize, usize)>,
}

const SECTION: usize = 64;

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("as many")
}

fn section(bytes: &[u8], at: usize) -> SectionHeader {
    let (word, half) = (
        |offset| u64::from_le_bytes(number(bytes, at + offset)),
        |offset| u32::from_le_bytes(number(bytes, at + offset)),
    );
    SectionHeader {
        magic: number(bytes, at),
        number: word(8),
        kind: half(16),
        flags: half(20),
        puddle: half(24),
        codec: half(28),
        offset: word(32),
        len: half(40),
        stored_len: half(44),
        chain: word(48),
        checksum: word(56),
    }
}

impl Archive {
    fn of(store: &Store, pool: &str) -> Result<Self> {
        let (bytes, _) = store.export(&[pool], std::vec::Vec::new(), ExportOptions::default())?;
        let id =
            store.pools().iter().find(|info| info.record.name == pool).expect("there").record.id;
        let mut puddles = store.puddle_records();
        puddles.retain(|puddle| puddle.pool == id);
        puddles.sort_by_key(|puddle| puddle.index);
        let (mut chunks, mut at) = (Map::new(), 256);
        while at < bytes.len() {
            let header = section(&bytes, at);
            if header.kind == 2 {
                let addr = puddles[header.puddle as usize].addr + header.offset;
                chunks.insert(addr, (at + SECTION, header.len as usize));
            }
            at += SECTION + header.stored_len as usize;
        }
        Ok(Self { bytes, chunks })
    }

    /// The place of a word.
    fn place(&self, addr: u64) -> usize {
        let (base, (place, len)) =
            self.chunks.range(..=addr).next_back().expect("it is in the archive");
        assert!(addr - base + 8 <= *len as u64, "it is in the archive");
        place + (addr - base) as usize
    }

    fn word(&self, addr: u64) -> u64 {
        u64::from_le_bytes(number(&self.bytes, self.place(addr)))
    }

    /// A copy with another word, and the checksums that belong to it.
    fn with(&self, addr: u64, word: u64) -> std::vec::Vec<u8> {
        let mut bytes = self.bytes.clone();
        let changed = self.place(addr);
        bytes[changed..changed + 8].copy_from_slice(&word.to_le_bytes());
        let (mut at, mut chain) = (256, None);
        while at < bytes.len() {
            let mut header = section(&bytes, at);
            let payload = at + SECTION..at + SECTION + header.stored_len as usize;
            let end = payload.end;
            if chain.is_some() || payload.contains(&changed) {
                header.chain = chain.unwrap_or(header.chain);
                header.checksum = section_sum(&header, &bytes[payload]);
                bytes[at + 48..at + 56].copy_from_slice(&header.chain.to_le_bytes());
                bytes[at + 56..at + 64].copy_from_slice(&header.checksum.to_le_bytes());
                chain = Some(header.checksum);
            }
            at = end;
        }
        bytes
    }
}

/// A change: a word of a block, in words, and what it becomes.
struct Change {
    what: std::string::String,
    addr: u64,
    word: u64,
}

/// Words of a block of this type that are changed, by their numbers in it.
fn words_of(name: &str, size: u64) -> std::ops::Range<u64> {
    let words = if name.contains("Header") {
        size / 8
    } else if ["BTreeLeaf", "BTreeInner", "HashPage", "RelaxedLeaf"]
        .iter()
        .any(|node| name.contains(node))
    {
        5
    } else if ["HashSegment", "HashDirectory", "ListNode"].iter().any(|node| name.contains(node)) {
        3
    } else {
        0
    };
    0..words.min(size / 8)
}

fn changes(store: &Store, pool: &Pool, archive: &Archive) -> std::vec::Vec<Change> {
    let mut blocks: Map<TypeId, std::vec::Vec<u64>> = Map::new();
    let walked =
        pool.heap().walk(&mut |block| blocks.entry(block.type_id).or_default().push(block.addr));
    walked.expect("walked");
    let names: Map<TypeId, (std::string::String, u64)> = blocks
        .keys()
        .filter_map(|id| store.type_record(*id))
        .map(|record| (record.id, (record.name.clone(), record.size)))
        .collect();
    let other = blocks.iter().find(|(id, _)| names[id].0 == "headers::Root");
    let other = other.expect("the root").1[0];
    let mut changes = std::vec::Vec::new();
    for (id, own) in &blocks {
        let (name, size) = &names[id];
        let last = own[own.len() - 1];
        // The first, one inside, and the last.
        let mut some = vec![own[0], own[own.len() / 2], last];
        some.dedup();
        for (block, word) in
            some.iter().flat_map(|block| words_of(name, *size).map(move |w| (*block, w)))
        {
            let addr = block + 8 * word;
            let old = archive.word(addr);
            let values = [
                0,
                1,
                2,
                old.wrapping_add(1),
                old.wrapping_sub(1),
                old.wrapping_add(8),
                old ^ 4,
                old ^ (1 << 5),
                old.rotate_left(4),
                1 << 34,
                1 << 63,
                u64::MAX,
                u64::MAX - 1,
                block,
                last,
                own[0],
                other,
                0x1000,
                0x7fff_ffff_f000,
            ];
            for value in values.into_iter().filter(|value| *value != old) {
                let what =
                    format!("{name} at {block:#x}, word {word}: {old:#x} becomes {value:#x}");
                changes.push(Change { what, addr, word: value });
            }
        }
    }
    changes
}

/// Which changes a child tries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// One of so many.
    Some,
    /// The one that makes a vector as long as an address space.
    Length,
    /// The same, with a planted bug that lets it through.
    LengthBelieved,
}

impl Which {
    const ALL: [Self; 3] = [Self::Some, Self::Length, Self::LengthBelieved];

    const fn name(self) -> &'static str {
        match self {
            Self::Some => "some",
            Self::Length => "length",
            Self::LengthBelieved => "length-believed",
        }
    }
}

/// Makes the pool, and imports each change of `part`: the part whose number is that, of so many.
/// Says how many were refused, and how many used.
fn take_in((part, parts): (u64, u64), which: Which) -> Result<(u64, u64)> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.create_pool("p", &small())?;
    fill(&pool)?;
    let report = pool.check()?;
    assert_eq!(report.values.expect("looked at").invalid, 0, "healthy collections");
    drop(pool);
    let archive = Archive::of(&store, "p")?;
    let changes = changes(&store, &store.pool("p")?, &archive);
    let (mut refused, mut used) = (0, 0);
    let mut seed = part + 1;
    for change in changes {
        let is_length = change.what.contains("VecHeader<u64> ") && change.what.contains("word 1:");
        let taken = match which {
            Which::Some => random(&mut seed).is_multiple_of(parts),
            Which::Length | Which::LengthBelieved => is_length && change.word == 1 << 34,
        };
        if !taken {
            continue;
        }
        println!("change: {}", change.what);
        let bytes = archive.with(change.addr, change.word);
        if matches!(which, Which::LengthBelieved) {
            plant(Bug::StructuresBelieved);
        }
        let names = vec!["q".to_owned()];
        let imported =
            store.import(&bytes[..], ImportOptions { names, ..ImportOptions::default() });
        plant(Bug::None);
        match imported {
            Err(Error::Archive(ArchivingError::Values { .. })) => refused += 1,
            Err(error) => panic!("{}: {error}", change.what),
            Ok(_) => {
                used += 1;
                let _ = use_up(&store.pool("q")?);
                store.remove_pool("q")?;
            }
        }
    }
    Ok((refused, used))
}

/// Runs [`take_in`] in a child: what it says, or how it ended.
fn in_child(
    which: Which,
    parts: u64,
) -> std::result::Result<std::string::String, std::string::String> {
    let mut child = again("headers::a_child");
    child.envs([
        ("CENOTE_HEADERS_CHILD", which.name()),
        ("CENOTE_HEADERS_PARTS", &parts.to_string()),
    ]);
    let out = child.output().expect("run");
    let text = std::string::String::from_utf8_lossy(&out.stdout).into_owned();
    if out.status.success() {
        return Ok(text);
    }
    let last = text.lines().rev().find(|line| line.starts_with("change: ")).unwrap_or_default();
    Err(format!("{}: {last}\n{}", out.status, std::string::String::from_utf8_lossy(&out.stderr)))
}

/// A child of the tests below; alone it has nothing to do.
#[test]
fn a_child() -> Result<()> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let wanted = variable("CENOTE_HEADERS_CHILD");
    let Some(which) = Which::ALL.into_iter().find(|which| which.name() == wanted) else {
        return Ok(());
    };
    let parts = variable("CENOTE_HEADERS_PARTS").parse().unwrap_or(1);
    let seed = variable("CENOTE_SEED").parse().unwrap_or(0);
    // SAFETY: a loop without an end ends the child, by another signal than a fault.
    unsafe { libc::alarm(300) };
    let (refused, used) = take_in((seed, parts), which)?;
    println!("refused {refused}, used {used}");
    // Keys and values of nodes are among the words, and any number is one.
    assert!(
        refused > used || which != Which::Some,
        "hardly anything is refused: {refused}, used {used}"
    );
    Ok(())
}

/// One of so many changes is tried.
fn parts() -> u64 {
    if std::env::var("CENOTE_HEADERS").is_ok_and(|wanted| wanted == "all") { 1 } else { 24 }
}

#[test]
fn an_archive_with_any_word_of_a_collection_changed_is_refused_or_used_without_a_fault() {
    match in_child(Which::Some, parts()) {
        Ok(text) => assert!(text.contains("refused "), "{text}"),
        Err(why) => panic!("{why}"),
    }
}

#[test]
fn planted_headers_that_are_believed_are_found() {
    let text = in_child(Which::Length, 1).expect("no fault");
    assert!(text.contains("refused 1, used 0"), "{text}");
    // Believed, the length leads out of the block: an error of the vector, or a fault.
    match in_child(Which::LengthBelieved, 1) {
        Ok(text) => assert!(text.contains("refused 0, used 1"), "{text}"),
        Err(why) => assert!(why.contains("signal: 11") || why.contains("signal: 7"), "{why}"),
    }
}

/// The same words in the file of a store: a pool that is verified when it is opened shows no
/// values.
#[test]
fn a_pool_with_a_broken_header_shows_no_values_when_it_is_verified() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    fill(&store.create_pool("p", &small())?)?;
    let archive = Archive::of(&store, "p")?;
    let changes = changes(&store, &store.pool("p")?, &archive);
    let puddle = store.puddle_records().into_iter().find(|puddle| puddle.pool.0 != 0).expect("one");
    store.close()?;
    let file =
        dir.path().join("puddles").join(std::str::from_utf8(&puddle.uuid.to_hex()).expect("text"));
    let verified = OpenOptions { verify_values: true, ..OpenOptions::default() };
    let (mut seed, mut tried) = (3, 0);
    let names = ["VecHeader", "DequeHeader", "ListHeader", "BTreeHeader", "HashHeader"];
    // A length that is one more, of each.
    for change in
        changes.iter().filter(|change| names.iter().any(|name| change.what.contains(name)))
    {
        let old = archive.word(change.addr);
        if change.word != old.wrapping_add(1) || !random(&mut seed).is_multiple_of(2) {
            continue;
        }
        tried += 1;
        let write = |word: u64| {
            let file = std::fs::File::options().write(true).open(&file).expect("open");
            let at = change.addr - puddle.addr;
            std::os::unix::fs::FileExt::write_all_at(&file, &word.to_le_bytes(), at)
                .expect("write");
        };
        write(change.word);
        let store = Store::open_with(dir.path(), &verified)?;
        let pool = store.pool("p")?;
        let refused = pool.read().map(drop);
        let of_links = |rule: &Rule| matches!(rule, Rule::Structure(_) | Rule::Reference);
        let is_it = matches!(&refused, Err(Error::InvalidValues { first, .. })
            if first.iter().any(|value| of_links(&value.rule)));
        // Behind a text its block has zeros, which are characters: one more of them is a text.
        let longer_text =
            change.what.contains("VecHeader<cenote/Utf8>") && change.what.contains(", word 1:");
        let harmless = (change.what.contains("HashHeader") || longer_text) && refused.is_ok();
        assert!(is_it || harmless, "{}: {refused:?}", change.what);
        let found = pool.check()?.values.expect("looked at");
        assert_eq!(found.invalid > 0, refused.is_err(), "{}", change.what);
        drop(pool);
        store.close()?;
        write(old);
    }
    assert!(tried > 8, "{tried}");
    Ok(())
}

/// An archive may say of a map with leaves that it was never opened. Opened for reading, it took
/// entries, into memory that nothing may be stored to.
#[test]
fn a_relaxed_map_of_no_epoch_takes_nothing_where_it_is_read_alone() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    fill(&store.create_pool("p", &small())?)?;
    let archive = Archive::of(&store, "p")?;
    let changes = changes(&store, &store.pool("p")?, &archive);
    let is_epoch = |change: &&Change| {
        change.what.contains("RelaxedHeader") && change.what.contains(", word 1: 0x1 becomes 0x0")
    };
    let change = changes.iter().find(is_epoch).expect("an epoch");
    store.remove_pool("p")?;
    store.import(&archive.with(change.addr, change.word)[..], ImportOptions::default())?;
    store.close()?;
    let store = Store::open(dir.path())?;
    let pool = store.pool_with("p", Access::ReadOnly)?;
    let view = pool.read()?;
    let root = view.root::<Root>()?.expect("a root");
    let open = view.get(root)?.relaxed.open(&pool)?;
    drop(view);
    assert_eq!(open.count(&pool.read()?)?, 400);
    assert!(open.insert(&1000, &1).is_err() && open.insert(&7, &1).is_err());
    assert!(open.remove(&7).is_err() && open.flush().is_err());
    assert_eq!(open.count(&pool.read()?)?, 400);
    Ok(())
}

/// A type that one program describes, and another hides: its blocks are no bytes to be believed.
#[test]
fn a_block_of_a_type_that_nothing_describes_is_refused() -> Result<()> {
    let (dir, elsewhere) = (directory(), directory());
    let store = Store::open(dir.path())?;
    let pool = store.create_pool("p", &small())?;
    // SAFETY: nothing leads to the block.
    unsafe { pool.raw_heap() }.alloc(64, 8, TypeId::of_name("headers::Hidden")).expect("a block");
    drop(pool);
    let (bytes, _) = store.export(&["p"], std::vec::Vec::new(), ExportOptions::default())?;
    let other = Store::open(elsewhere.path())?;
    let refused = other.import(&bytes[..], ImportOptions::default()).map(drop);
    let is_it = matches!(&refused,
            Err(Error::Archive(ArchivingError::Values { count: 1, first, .. }))
        if matches!(first[0].rule, Rule::Structure(_)));
    assert!(is_it, "{refused:?}");
    Ok(())
}
