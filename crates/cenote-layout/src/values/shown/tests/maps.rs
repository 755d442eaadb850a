//! Maps as they are shown: whole ones, and ones whose parts do not fit.

use super::super::walk::{DAMAGE_LISTED, DamageList};
use super::*;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Keys and values of a map, how many entries more it has, and its damage.
fn entries(value: &ShownValue) -> (Vec<(u128, u128)>, u64, String) {
    let ShownValue::Map { entries, more, damage } = value else { panic!("no map: {value:?}") };
    let number = |value: &ShownValue| match value {
        ShownValue::Unsigned(number) => *number,
        other => panic!("no number: {other:?}"),
    };
    let pairs = entries.iter().map(|(key, value)| (number(key), number(value)));
    (pairs.collect(), *more, damage.join("; "))
}

fn entry() -> TypeRecord {
    record("Entry", 16, vec![field("key", 0, 8, "u64"), field("value", 8, 8, "u64")])
}

#[test]
fn of_a_relaxed_map_the_last_durable_entry_of_a_key_is_shown() {
    let header = vec![
        field("closed", 0, 8, "u64"),
        field("first", 8, 8, "Option<Ptr<Leaf>>"),
        field("index", 16, 8, "Option<Ptr<Leaf>>"),
    ];
    let leaf = vec![
        field("marks", 0, 8, "u64"),
        field("tags", 8, 256, "[u64; 32]"),
        field("slots", 264, 512, "[Entry; 32]"),
    ];
    let records = [record("cenote/RelaxedHeader", 24, header), record("Leaf", 776, leaf), entry()];
    let mut words = [0_u64; 97];
    // Removed: the third. Not durable: the fourth.
    words[0] = 1 << 2;
    for (slot, [key, value]) in [[5, 50], [5, 51], [6, 60], [7, 70], [8, 80]].iter().enumerate() {
        let tag = xxh3_64_with_seed(&u64::to_le_bytes(*value), xxh3_64(&u64::to_le_bytes(*key)));
        words[1 + slot] = if slot == 3 { tag ^ 2 } else { tag } | 1;
        (words[33 + 2 * slot], words[34 + 2 * slot]) = (*key, *value);
    }
    let blocks = Blocks::default()
        .with(0x1000, "cenote/RelaxedHeader", &[0, 0x2000, 0])
        .with(0x2000, "Leaf", &words);
    let (value, damaged) = shown(&records, &blocks, ShownLimits::default());
    assert_eq!((entries(&value), damaged), ((vec![(5, 51), (8, 80)], 0, String::new()), 0));
    let (value, _) = shown(&records, &blocks, limits(4, 1));
    assert_eq!(entries(&value), (vec![(5, 51)], 1, String::new()));
}

/// A hash map of one segment: three buckets have a page, the second of them at `second`.
fn hashed(second: u64, tags: u64, count: u64) -> (ShownValue, u64) {
    let header = vec![
        field("len", 0, 8, "u64"),
        field("buckets", 8, 8, "u64"),
        field("height", 16, 8, "u64"),
        field("segment", 24, 8, "Option<Ptr<Segment>>"),
        field("directory", 32, 8, "Option<Ptr<Directory>>"),
    ];
    let page = vec![
        field("tags", 0, 8, "u64"),
        field("next", 8, 8, "Option<Ptr<Page>>"),
        field("slots", 16, 112, "[Entry; 7]"),
    ];
    let links = |name: &str, to: &str| field(name, 0, 1024, &format!("[Option<Ptr<{to}>>; 128]"));
    let mut segment = record("Segment", 1024, vec![links("pages", "Page")]);
    segment.pointers[0] = PointerField { count: 128, target: id_of("Page"), ..page_link() };
    let mut directory = record("Directory", 1032, Vec::new());
    let tag = Condition { offset: 1024, size: 8, value: 0 };
    let fields = vec![links("children", "Segment")];
    directory.variants = vec![VariantRecord { name: "Low".into(), tag, fields }];
    let header = record("cenote/HashHeader", 40, header);
    let records = [header, segment, directory, record("Page", 128, page), entry()];
    let mut pages = [0; 128];
    pages[..3].copy_from_slice(&[0x3000, second, 0x5000]);
    let blocks = Blocks::default()
        .with(0x1000, "cenote/HashHeader", &[4, 128, 0, 0x2000, 0])
        .with(0x2000, "Segment", &pages)
        .with(0x3000, "Page", &filled_page(0x80, [1, 10, 0, 0]))
        .with(0x4000, "Page", &filled_page(tags, [2, 20, 3, 30]))
        .with(0x5000, "Page", &filled_page(0x80, [4, 40, 0, 0]));
    shown(&records, &blocks, limits(4, count))
}

fn page_link() -> PointerField {
    record("Page", 8, vec![field("next", 0, 8, "Option<Ptr<Page>>")]).pointers.remove(0)
}

fn filled_page(tags: u64, slots: [u64; 4]) -> [u64; 16] {
    let mut words = [0; 16];
    words[0] = tags;
    words[2..6].copy_from_slice(&slots);
    words
}

#[test]
fn a_broken_bucket_of_a_hash_map_costs_its_entries() {
    let whole = vec![(1, 10), (2, 20), (3, 30), (4, 40)];
    let (value, damaged) = hashed(0x4000, 0x8080, 16);
    assert_eq!((entries(&value), damaged), ((whole, 0, String::new()), 0));
    for (second, tags, why) in [
        (0x6000, 0x8080, "0x6000: no block begins there"),
        (0x4000, 0x80 << 56 | 0x8080, "0x4000: 0x8000000000008080 are tags that no page has"),
        (0x4000, 0x8001, "0x4000: 0x8001 are tags that no page has"),
        (0x3000, 0x8080, "0x3000: two links lead to one block"),
    ] {
        let (value, damaged) = hashed(second, tags, 16);
        assert_eq!((entries(&value), damaged), ((vec![(1, 10), (4, 40)], 0, why.into()), 1));
        let (value, _) = hashed(second, tags, 1);
        assert_eq!(entries(&value), (vec![(1, 10)], 3, why.into()), "as its header says");
    }
}

#[test]
fn a_map_whose_index_leads_to_itself_is_damaged() {
    let header = record(
        "cenote/RelaxedHeader",
        24,
        vec![
            field("closed", 0, 8, "u64"),
            field("first", 8, 8, "Option<Ptr<Leaf>>"),
            field("index", 16, 8, "Ptr<cenote/RelaxedHeader>"),
        ],
    );
    let leaf = record("Leaf", 8, vec![field("tag", 0, 8, "u64")]);
    let blocks = Blocks::default().with(0x1000, "cenote/RelaxedHeader", &[0, 0, 0x1000]);
    let (value, damaged) = shown(&[header, leaf], &blocks, ShownLimits::default());
    let ShownValue::Map { damage, .. } = value else { panic!("no map: {value:?}") };
    assert_eq!((damage.join("; ").as_str(), damaged), ("the index of a map is no ordered map", 1));
}

#[test]
fn much_damage_of_a_collection_is_counted_beside_the_first() {
    let mut list = DamageList::default();
    for number in 0..DAMAGE_LISTED + 6 {
        list.push(number.to_string());
    }
    let lines = list.lines();
    assert_eq!((lines.len(), lines[63].as_str()), (DAMAGE_LISTED + 1, "63"));
    assert_eq!(lines[64], "and in 6 more places");
}

#[test]
fn a_step_leads_to_the_element_with_its_number_and_to_no_other() {
    let values = values(&collections());
    let number = |path: &str| {
        let mut blocks = filled();
        let mut walker = ValueWalker::new(&values, &mut blocks, ShownLimits::default());
        let mut place = walker.root(0x1000, id_of("Holder")).expect("a root");
        for (step, _) in ShownPath::parse(path).expect("a path").steps {
            place = walker.step(&place, &step)?;
        }
        match walker.show(&place, path) {
            ShownValue::Unsigned(number) => Ok(number),
            other => panic!("no number: {other:?}"),
        }
    };
    for (path, is) in [(".vec[0]", 7), (".vec[0x2]", 9), (".list[0]", 1), (".list[1]", 2)] {
        assert_eq!(number(path), Ok(is), "{path}");
    }
    for (path, of, index, len) in [(".vec[3]", "Vec", 3, 3), (".list[0x10]", "List", 16, 2)] {
        assert_eq!(number(path), Err(StepProblem::NoElement { index, of: of.into(), len }));
    }
}

#[test]
fn looking_for_a_key_costs_nothing_of_what_is_shown() {
    let values = values(&[entry()]);
    let mut blocks = Blocks::default().with(0x1000, "Entry", &[5, 6]);
    let mut walker = ValueWalker::new(&values, &mut blocks, ShownLimits::default());
    let place = walker.root(0x1000, id_of("Entry")).expect("a root");
    walker.key(&place);
    assert_eq!((walker.left, walker.seen.len()), (ShownLimits::default().values, 0));
}
