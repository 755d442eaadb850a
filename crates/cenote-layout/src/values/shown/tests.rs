//! Values are shown as their records say, also where bytes or records are wrong.

use super::*;
use crate::pointer::{PointerKind, encode_relative};
use crate::types::{
    Condition, FieldRecord, PointerField, RECORD_VERSION, TypeRecord, VariantRecord,
};
use proptest::prelude::*;

mod maps;

/// The id of a type of the tests by its name: declared types have no arguments.
fn id_of(name: &str) -> TypeId {
    if let Some((element, count)) = super::super::array(name) {
        return super::super::array_of(id_of(element), count);
    }
    for of in ["Ptr", "Option", "RelPtr"] {
        if let Some(inner) = name.strip_prefix(of).and_then(|name| name.strip_prefix('<')) {
            return TypeId::of_name(of).apply(id_of(inner.strip_suffix('>').unwrap()).0);
        }
    }
    match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(element) => TypeId::of_name("[]").apply(id_of(element).0),
        None => TypeId::of_name(name),
    }
}

fn field(name: &str, offset: u64, size: u64, type_name: &str) -> FieldRecord {
    let type_id = id_of(type_name);
    FieldRecord { name: name.into(), offset, size, type_id, type_name: type_name.into() }
}

fn record(name: &str, size: u64, fields: Vec<FieldRecord>) -> TypeRecord {
    let links = fields.iter().filter(|field| field.type_name.contains("Ptr<"));
    let pointers = links.map(|field| PointerField {
        offset: field.offset,
        stride: 8,
        count: 1,
        kind: PointerKind::NATIVE,
        tag_mask: 0,
        target: id_of(field.type_name.rsplit("Ptr<").next().unwrap().trim_end_matches('>')),
        conditions: Vec::new(),
    });
    TypeRecord {
        version: RECORD_VERSION,
        id: id_of(name),
        name: name.into(),
        size,
        align: 8,
        repeats: name.starts_with('['),
        pointers: pointers.collect(),
        fields,
        variants: Vec::new(),
    }
}

/// Blocks by address.
#[derive(Clone, Default)]
struct Blocks {
    all: BTreeMap<u64, (TypeId, Vec<u8>)>,
    lost: Option<u64>,
}

impl Blocks {
    fn with(mut self, addr: u64, type_name: &str, words: &[u64]) -> Self {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.all.insert(addr, (id_of(type_name), bytes));
        self
    }
}

impl ShownBlocks for Blocks {
    fn block(&mut self, addr: u64) -> Result<(TypeId, u64), String> {
        let block = self.all.get(&addr).ok_or("no block begins there")?;
        Ok((block.0, block.1.len() as u64))
    }

    fn read(&mut self, addr: u64, bytes: &mut [u8]) -> bool {
        let (at, (_, block)) = self.all.range(..=addr).next_back().expect("in a block");
        let from = (addr - at) as usize;
        let range = from..from + bytes.len();
        bytes.copy_from_slice(block.get(range).expect("what is read lies in a block"));
        self.lost.is_none_or(|lost| !(addr..addr + bytes.len() as u64).contains(&lost))
    }

    fn address(&mut self, _: &RegionAddress) -> Option<u64> {
        None
    }
}

fn values(records: &[TypeRecord]) -> Values {
    for record in records {
        record.check().unwrap();
    }
    Values::new(records.iter().cloned().map(Arc::new))
}

fn limits(depth: u32, count: u64) -> ShownLimits {
    ShownLimits { depth, count, ..ShownLimits::default() }
}

/// The block at 0x1000 as it is shown, and how many places were damaged.
fn shown(records: &[TypeRecord], blocks: &Blocks, limits: ShownLimits) -> (ShownValue, u64) {
    let (values, mut blocks) = (values(records), blocks.clone());
    let mut walker = ValueWalker::new(&values, &mut blocks, limits);
    let place = walker.root(0x1000, records[0].id).expect("a root");
    let value = walker.show(&place, "root");
    (value, walker.damaged())
}

fn fields(value: ShownValue) -> Vec<(String, ShownValue)> {
    match value {
        ShownValue::Struct { fields, .. } => fields,
        ShownValue::Pointer(target) => fields(*target),
        other => panic!("no structure: {other:?}"),
    }
}

fn damage(value: &ShownValue) -> &str {
    match value {
        ShownValue::Damaged { what, .. } => what,
        other => panic!("no damage: {other:?}"),
    }
}

/// `Link`s in a circle, `next` by another type of pointer each time.
fn link() -> TypeRecord {
    record("Link", 16, vec![field("number", 0, 8, "u64"), field("next", 8, 8, "Option<Ptr<Link>>")])
}

#[test]
fn scalars_of_each_kind_are_read_and_what_is_none_is_said() {
    let scalar = |name: &str, size: u64, word: u64| {
        let holder = record("Holder", 16, vec![field("it", 0, size, name)]);
        let blocks = Blocks::default().with(0x1000, "Holder", &[word, u64::MAX]);
        let (value, damaged) = shown(&[holder], &blocks, ShownLimits::default());
        let value = fields(value).remove(0).1;
        assert_eq!(damaged, u64::from(matches!(value, ShownValue::Damaged { .. })), "{name}");
        value
    };
    for (name, size) in [("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8), ("usize", 8)] {
        assert_eq!(scalar(name, size, 200), ShownValue::Unsigned(200));
    }
    for (name, size) in [("i8", 1), ("i16", 2), ("i32", 4), ("i64", 8), ("isize", 8)] {
        assert_eq!(scalar(name, size, -2_i64 as u64), ShownValue::Signed(-2));
    }
    assert_eq!(scalar("u128", 16, 1), ShownValue::Unsigned(u128::MAX << 64 | 1));
    assert_eq!(scalar("i128", 16, u64::MAX), ShownValue::Signed(-1));
    assert_eq!(scalar("bool", 1, 1), ShownValue::Bool(true));
    assert_eq!(damage(&scalar("bool", 1, 2)), "2 is no bool");
    assert_eq!(scalar("char", 4, 0xe4), ShownValue::Char('ä'));
    assert_eq!(damage(&scalar("char", 4, 0xd800)), "0xd800 is no character");
    assert_eq!(scalar("f32", 4, 1.5_f32.to_bits().into()), ShownValue::Float32(1.5));
    assert_eq!(scalar("f64", 8, 0.1_f64.to_bits()), ShownValue::Float64(0.1));
    assert_eq!(scalar("NonZeroU16", 2, 7), ShownValue::Unsigned(7));
    assert!(damage(&scalar("NonZeroI32", 4, 0)).contains("never 0"));
    assert_eq!(scalar("Option<NonZeroU64>", 8, 0), ShownValue::Null);
    assert_eq!(scalar("Option<NonZeroI8>", 1, 0xff), ShownValue::Signed(-1));
    assert_eq!(scalar("Option<bool>", 1, 2), ShownValue::Null);
    assert_eq!(scalar("Option<bool>", 1, 0), ShownValue::Bool(false));
    assert_eq!(damage(&scalar("Option<bool>", 1, 3)), "3 is no bool");
    assert_eq!(scalar("Option<char>", 4, 0x11_0000), ShownValue::Null);
    assert_eq!(damage(&scalar("Option<char>", 4, 0x11_0001)), "0x110001 is no character");
    assert!(damage(&scalar("Duration", 16, 1)).contains("4294967295 nanoseconds"));
    assert!(damage(&scalar("Option<SystemTime>", 16, 1)).contains("4294967295 nanoseconds"));
    assert!(damage(&scalar("Option<bool>", 2, 1)).contains("an option of 2 bytes"));
    assert_eq!(scalar("()", 0, 0), ShownValue::Unit);
    assert!(damage(&scalar("u64", 4, 0)).contains("4 bytes, and u64 has 8"));
    let bytes = ShownValue::Bytes { bytes: vec![1, 2, 0], more: 0 };
    assert_eq!(scalar("[u8; 3]", 3, 0x201), bytes);
    assert_eq!(scalar("Opaque", 3, 0x201), bytes, "a type that nothing is known of");
    let numbers = [5, 6].map(ShownValue::Unsigned).into();
    let list = ShownValue::List { items: numbers, more: 0, damage: Vec::new() };
    assert_eq!(scalar("[u16; 2]", 4, 0x6_0005), list);
}

#[test]
fn variants_have_their_names_and_a_bad_discriminant_is_damage_beside_whole_fields() {
    let tag = |value| Condition { offset: 0, size: 1, value };
    let variant =
        |name: &str, value, fields| VariantRecord { name: name.into(), tag: tag(value), fields };
    let round = variant("Round", 0, vec![field("radius", 8, 8, "u64")]);
    let variants = vec![round, variant("Empty", 3, Vec::new())];
    let shape = TypeRecord { variants, ..record("Shape", 16, Vec::new()) };
    let holder = record(
        "Holder",
        40,
        vec![
            field("shape", 0, 16, "Shape"),
            field("other", 16, 16, "Shape"),
            field("last", 32, 8, "u64"),
        ],
    );
    let blocks = Blocks::default().with(0x1000, "Holder", &[0, 12, 9, 0, 5]);
    let (value, damaged) = shown(&[holder.clone(), shape.clone()], &blocks, limits(4, 16));
    let all = fields(value);
    let ShownValue::Struct { variant, fields: inner, .. } = &all[0].1 else { panic!("{all:?}") };
    assert_eq!(variant.as_deref(), Some("Round"));
    assert_eq!(inner[..], [("radius".into(), ShownValue::Unsigned(12))]);
    assert_eq!(damage(&all[1].1), "no variant has the discriminant 9");
    assert_eq!((&all[2].1, damaged), (&ShownValue::Unsigned(5), 1));

    let records = [holder, shape];
    let (values, mut memory) = (values(&records), blocks);
    let mut walker = ValueWalker::new(&values, &mut memory, limits(4, 16));
    let root = walker.root(0x1000, records[0].id).unwrap();
    let mut go = |path: &str| {
        let path = ShownPath::parse(path).unwrap();
        path.steps.iter().try_fold(root.clone(), |place, (step, _)| walker.step(&place, step))
    };
    assert_eq!(go("r.shape.Round.radius").unwrap().addr, 0x1008);
    assert_eq!(go("r.shape.radius").unwrap().addr, 0x1008);
    let is = StepProblem::OtherVariant { asked: "Empty".into(), is: "Round".into() };
    assert_eq!(go("r.shape.Empty").unwrap_err(), is);
    assert!(matches!(go("r.other.radius").unwrap_err(), StepProblem::Damaged(_)));
    let StepProblem::NoField { there, .. } = go("r.shape.size").unwrap_err() else { panic!() };
    assert_eq!(there, ["radius", "Round", "Empty"]);
    assert!(matches!(go("r.last.x").unwrap_err(), StepProblem::NoParts { .. }));
    assert!(matches!(go("r[0]").unwrap_err(), StepProblem::NoParts { .. }));
}

#[test]
fn a_circle_ends_at_the_block_that_was_shown() {
    let blocks =
        Blocks::default().with(0x1000, "Link", &[1, 0x2000]).with(0x2000, "Link", &[2, 0x1000]);
    let (value, damaged) = shown(&[link()], &blocks, limits(40, 16));
    let second = fields(fields(value).remove(1).1);
    assert_eq!(second[0].1, ShownValue::Unsigned(2));
    assert_eq!(second[1].1, ShownValue::Again { addr: 0x1000, path: "root".into() });
    assert_eq!(damaged, 0);
}

#[test]
fn depth_count_bytes_and_values_are_limits() {
    let mut blocks = Blocks::default();
    for number in 0..300 {
        let next = if number < 299 { 0x1010 + number * 16 } else { 0 };
        blocks = blocks.with(0x1000 + number * 16, "Link", &[number, next]);
    }
    let depth_of = |depth| {
        let (mut value, _) = shown(&[link()], &blocks, limits(depth, 16));
        let mut found = 0;
        loop {
            match fields(value).remove(1).1 {
                ShownValue::Pointer(next) if *next == ShownValue::Cut => return (found, *next),
                ShownValue::Pointer(next) => (value, found) = (*next, found + 1),
                last => return (found, last),
            }
        }
    };
    let deep = |addr| ShownValue::Deep { addr, type_name: "Link".into() };
    assert_eq!(depth_of(0), (0, deep(0x1010)));
    assert_eq!(depth_of(3), (3, deep(0x1040)));
    let (found, last) = depth_of(u32::MAX);
    assert!(found < NESTED_MAX && last == ShownValue::Cut, "{found} {last:?}");

    let array = record("Array", 48, vec![field("all", 0, 48, "[u64; 6]")]);
    let blocks = Blocks::default().with(0x1000, "Array", &[1, 2, 3, 4, 5, 6]);
    let list =
        |limits| match fields(shown(std::slice::from_ref(&array), &blocks, limits).0).remove(0).1 {
            ShownValue::List { items, more, .. } => (items.len(), more),
            other => panic!("{other:?}"),
        };
    assert_eq!(list(limits(4, 6)), (6, 0));
    assert_eq!(list(limits(4, 4)), (4, 2));
    assert_eq!(list(limits(4, 0)), (0, 6));
    assert_eq!(list(ShownLimits { values: 5, ..limits(4, 6) }), (3, 3), "values in all");

    let blocks = Blocks::default().with(0x1000, "Link", &[1, 0]);
    let (value, _) = shown(&[link()], &blocks, ShownLimits { values: 2, ..limits(4, 16) });
    assert_eq!(fields(value)[1].1, ShownValue::Cut);

    let bytes = record("Raw", 48, vec![field("all", 0, 48, "[u8; 48]")]);
    let blocks = Blocks::default().with(0x1000, "Raw", &[0; 6]);
    let (value, _) = shown(&[bytes], &blocks, ShownLimits { bytes: 40, ..limits(4, 6) });
    let ShownValue::Bytes { bytes, more: 8 } = &fields(value)[0].1 else { panic!() };
    assert_eq!(bytes.len(), 40);
}

#[test]
fn pointers_that_lead_nowhere_are_damage_where_they_stand() {
    let plain = record(
        "Plain",
        24,
        vec![
            field("never", 0, 8, "Ptr<Link>"),
            field("near", 8, 8, "RelPtr<Link>"),
            field("last", 16, 8, "u64"),
        ],
    );
    let records = [plain, link(), record("Small", 8, vec![field("it", 0, 8, "u64")])];
    let read = |never: u64, near: u64| {
        let mut blocks = Blocks::default()
            .with(0x1000, "Plain", &[never, near, 7])
            .with(0x2000, "Link", &[1, 0])
            .with(0x3000, "Small", &[1])
            .with(0x4000, "Link", &[1]);
        blocks.all.insert(0x5000, (TypeId(77), vec![1, 2, 3]));
        let (value, damaged) = shown(&records, &blocks, limits(4, 16));
        let all = fields(value);
        assert_eq!(all[2].1, ShownValue::Unsigned(7), "what is beside it is shown");
        (all[0].1.clone(), all[1].1.clone(), damaged)
    };
    let near = encode_relative(0x1008, 0x2000).unwrap();
    assert!(matches!(read(0x2000, 0), (ShownValue::Pointer(_), ShownValue::Null, 0)));
    assert!(matches!(read(0x3000, near), (ShownValue::Damaged { .. }, ShownValue::Pointer(_), 1)));
    let what = |never| damage(&read(never, 0).0).to_owned();
    assert!(what(0).contains("never null"));
    assert!(what(0x2008).contains("no block begins there"));
    assert!(what(0x3000).contains("type Small, and the pointer is a Ptr<Link>"));
    assert!(what(0x4000).contains("a block of 8 bytes for a value of 16"));
    assert!(what(0x5000).contains("(unknown type"));
    assert!(damage(&read(0x2000, 12).1).contains("is no off-holder"));
}

#[test]
fn a_lost_page_costs_the_values_on_it() {
    let mut blocks = Blocks::default().with(0x1000, "Link", &[1, 0]);
    blocks.lost = Some(0x1008);
    let (value, damaged) = shown(&[link()], &blocks, limits(4, 16));
    let all = fields(value);
    assert_eq!(all[0].1, ShownValue::Unsigned(1));
    assert!(damage(&all[1].1).contains("cannot be read"));
    assert_eq!(damaged, 1);
    blocks.lost = Some(0x1000);
    let all = fields(shown(&[link()], &blocks, limits(4, 16)).0);
    assert!(damage(&all[0].1).contains("cannot be read"));
    assert_eq!(all[1].1, ShownValue::Null);
}

#[test]
fn a_root_of_another_type_is_no_root() {
    let (values, mut blocks) = (values(&[link()]), Blocks::default().with(0x1000, "Link", &[1, 0]));
    let mut walker = ValueWalker::new(&values, &mut blocks, ShownLimits::default());
    assert!(walker.root(0x1000, TypeId(5)).unwrap_err().contains("and says (unknown type"));
    assert!(walker.root(0x1008, link().id).unwrap_err().contains("no block begins there"));
}

/// Records of a vector of words, a text, and a list of words.
fn collections() -> Vec<TypeRecord> {
    let header = |name: &str, link: &str, last: &str| {
        record(
            name,
            24,
            vec![
                field(link, 0, 8, &format!("Option<Ptr<{last}>>")),
                field("len", 8, 8, "u64"),
                field(if link == "array" { "capacity" } else { "last" }, 16, 8, "u64"),
            ],
        )
    };
    let node =
        vec![field("next", 0, 8, "Option<Ptr<cenote/ListNode>>"), field("value", 8, 8, "u64")];
    let one =
        |name: &str, size| record(&format!("[{name}]"), size, vec![field("[]", 0, size, name)]);
    let text = TypeRecord { align: 1, ..one("cenote/Utf8", 1) };
    vec![
        record(
            "Holder",
            24,
            vec![
                field("vec", 0, 8, "Ptr<cenote/VecHeader>"),
                field("text", 8, 8, "Ptr<cenote/VecHeader<cenote/Utf8>>"),
                field("list", 16, 8, "Ptr<cenote/ListHeader>"),
            ],
        ),
        header("cenote/VecHeader", "array", "[u64]"),
        header("cenote/VecHeader<cenote/Utf8>", "array", "[cenote/Utf8]"),
        header("cenote/ListHeader", "first", "cenote/ListNode"),
        record("cenote/ListNode", 16, node),
        one("u64", 8),
        text,
    ]
}

fn filled() -> Blocks {
    Blocks::default()
        .with(0x1000, "Holder", &[0x2000, 0x2100, 0x2200])
        .with(0x2000, "cenote/VecHeader", &[0x3000, 3, 4])
        .with(0x2100, "cenote/VecHeader<cenote/Utf8>", &[0x3100, 5, 8])
        .with(0x2200, "cenote/ListHeader", &[0x4000, 2, 0x4100])
        .with(0x3000, "[u64]", &[7, 8, 9, 0])
        .with(0x3100, "[cenote/Utf8]", &[u64::from_le_bytes(*b"h\xc3\xa4y!\0\0\0")])
        .with(0x4000, "cenote/ListNode", &[0x4100, 1])
        .with(0x4100, "cenote/ListNode", &[0, 2])
}

/// The collections after a word was changed, and how many places are damaged.
fn collected(addr: u64, word: u64, count: u64) -> (Vec<ShownValue>, u64) {
    let mut blocks = filled();
    let at = *blocks.all.range(..=addr).next_back().unwrap().0;
    let from = (addr - at) as usize;
    blocks.all.get_mut(&at).unwrap().1[from..from + 8].copy_from_slice(&word.to_le_bytes());
    let (value, damaged) = shown(&collections(), &blocks, limits(4, count));
    (fields(value).into_iter().map(|(_, value)| value).collect(), damaged)
}

fn numbers(value: &ShownValue) -> (Vec<u128>, u64, String) {
    let ShownValue::List { items, more, damage } = value else { panic!("no list: {value:?}") };
    let number = |item: &ShownValue| match item {
        ShownValue::Unsigned(number) => *number,
        other => panic!("no number: {other:?}"),
    };
    (items.iter().map(number).collect(), *more, damage.join("; "))
}

#[test]
fn collections_are_their_elements() {
    let (all, damaged) = collected(0x3018, 0, 16);
    assert_eq!(numbers(&all[0]), (vec![7, 8, 9], 0, String::new()));
    assert_eq!(all[1], ShownValue::Text { text: "häy!".into(), more: 0 });
    assert_eq!(numbers(&all[2]), (vec![1, 2], 0, String::new()));
    assert_eq!(damaged, 0);
    assert_eq!(Values::short_name("cenote/VecHeader<a::B>"), "Vec");
    assert_eq!(Values::short_name("cenote/BTreeHeader<u64, u64>"), "BTreeMap");
    assert_eq!(Values::short_name("app::data::Header<u64>"), "Header");
    let (all, _) = collected(0x3018, 0, 1);
    assert_eq!(numbers(&all[0]), (vec![7], 2, String::new()));
    assert_eq!(numbers(&all[2]), (vec![1], 1, String::new()));
    let (all, _) = collected(0x2208, 5, 1);
    assert_eq!(numbers(&all[2]), (vec![1], 4, String::new()), "as its header says");
}

#[test]
fn a_list_that_was_destroyed_has_no_element() {
    let mut blocks = filled().with(0x2200, "cenote/ListHeader", &[0, u64::MAX, 0]);
    let values = values(&collections());
    let mut walker = ValueWalker::new(&values, &mut blocks, ShownLimits::default());
    let mut place = walker.root(0x1000, id_of("Holder")).expect("a root");
    let path = ShownPath::parse("0.list[0]").expect("a path");
    assert_eq!(path.root_end, 1);
    place = walker.step(&place, &path.steps[0].0).expect("the list");
    let end = walker.step(&place, &path.steps[1].0);
    assert!(matches!(end, Err(StepProblem::NoElement { len: 0, .. })), "{end:?}");
}

#[test]
fn broken_collections_show_what_is_whole_and_say_what_is_not() {
    let of = |addr, word, which: usize| {
        let (all, damaged) = collected(addr, word, 16);
        assert_eq!(damaged, 1, "{all:?}");
        numbers(&all[which])
    };
    let (items, _, why) = of(0x2008, 9, 0);
    assert_eq!(
        (items, why.as_str()),
        (vec![7, 8, 9, 0], "its header says 9 elements, and room for 4")
    );
    let (items, _, why) = of(0x2010, u64::MAX, 0);
    assert!(items.len() == 3 && why.contains("its array has room for 4"), "{why}");
    let (items, _, why) = of(0x2010, 5, 0);
    assert!(items.len() == 3 && why.contains("says room for 5, and its array"), "{why}");
    let (items, _, why) = of(0x2000, 0x4000, 0);
    assert!(items.is_empty() && why.contains("type cenote/ListNode, and not [u64]"), "{why}");
    let (items, _, why) = of(0x2208, 5, 2);
    assert_eq!((items, why.as_str()), (vec![1, 2], "its header says 5 elements, and there are 2"));
    let (items, _, why) = of(0x4100, 0x4000, 2);
    assert!(items == [1, 2] && why.contains("two links lead to one block"), "{why}");
    let (items, _, why) = of(0x4000, 0x4008, 2);
    assert!(items == [1] && why.contains("no block begins there"), "{why}");
    let (all, damaged) = collected(0x2008, u64::MAX, 16);
    assert_eq!((&all[0], damaged), (&ShownValue::Destroyed, 0));
    let (all, damaged) = collected(0x3100, 0xff << 8, 16);
    assert!(damage(&all[1]).contains("no UTF-8 at byte 1"));
    assert_eq!(damaged, 1);
    let (all, _) = collected(0x2108, 2, 16);
    assert!(damage(&all[1]).contains("no UTF-8 at byte 1"), "half a character at its end");
}

#[test]
fn paths_are_read_and_refused_at_their_place() {
    let path = ShownPath::parse(r#"my root.a[ 3 ]["x\"]\u{e4}"][#2][a b].0"#).unwrap();
    assert_eq!(path.root, PathRoot::Name("my root".into()));
    let steps: Vec<String> = path.steps.iter().map(|(step, _)| step.to_string()).collect();
    assert_eq!(steps, [".a", "[3]", r#"["x\"]ä"]"#, "[#2]", "[a b]", ".0"]);
    assert_eq!(path.steps[0].1, "my root.a".len());
    assert_eq!(ShownPath::parse("17").unwrap().root, PathRoot::Number(17));
    assert_eq!(ShownPath::parse(r#""17".x"#).unwrap().root, PathRoot::Name("17".into()));
    assert_eq!(ShownPath::parse(".x").unwrap().root, PathRoot::Only);
    for (text, at) in [
        ("", 0),
        ("1024", 0),
        ("a.", 2),
        ("a..b", 2),
        ("a[", 2),
        ("a[]", 2),
        ("a[3", 3),
        ("a[#x]", 3),
        ("a[\"x]", 5),
        (r#"a["\q"]"#, 3),
        (r#"a["x"y]"#, 5),
        ("a[3]b", 4),
        ("a]", 2),
    ] {
        match ShownPath::parse(text) {
            Err(syntax) => assert_eq!(syntax.at, at, "{text}: {syntax}"),
            Ok(path) => assert_eq!((text, path.steps.len()), ("a]", 0)),
        }
    }
    for name in ["plain", "my root", "a.b", "17", "q\"", "[x", ""] {
        let root = PathRoot::Name(name.into());
        if !name.is_empty() {
            assert_eq!(ShownPath::parse(&root.to_string()).unwrap().root, root);
        }
    }
}

/// Names of types that a hostile record may use, with the bytes that it says.
const HOSTILE: [(&str, u64); 15] = [
    ("u64", 8),
    ("Link", 16),
    ("Ptr<Link>", 8),
    ("Option<Ptr<Wild>>", 8),
    ("[Wild; 3]", 24),
    ("[[[u8; 2]; 2]; 2]", 8),
    ("Wild", 24),
    ("Option<Wild>", 8),
    ("cenote/InlineStr<6>", 7),
    ("HeapPtr<Link>", 16),
    ("Ptr<cenote/ListHeader>", 8),
    ("[(); 9223372036854775807]", 0),
    ("Option<Duration>", 16),
    ("SystemTime", 16),
    ("(cenote/ListHeader, u64)", 8),
];

proptest! {
    #[test]
    fn any_bytes_and_records_end(
        kinds in proptest::collection::vec((0..HOSTILE.len(), 0..25_u64, 0..3_u64), 0..5),
        words in proptest::collection::vec((0..24_u64, 0..9_u64), 40),
        own in any::<bool>(), count in 0..40_u64,
    ) {
        let all = kinds.iter().enumerate().map(|(number, (kind, offset, more))| {
            let (name, size) = HOSTILE[*kind];
            field(&format!("f{number}"), *offset, size + more / 2, name)
        });
        let fits = |field: &FieldRecord| field.offset + field.size <= 24;
        let all: Vec<FieldRecord> = all.filter(fits).collect();
        let mut records = collections();
        let wild = TypeRecord { pointers: Vec::new(), ..record("Wild", 24, all) };
        records.push(TypeRecord { repeats: own, ..wild });
        records.push(link());
        records.push(TypeRecord { align: 1, ..record("cenote/InlineStr<6>", 7, Vec::new()) });
        // Words that lead to blocks, or nearly, or are small.
        let word = |(block, more): &(u64, u64)| match more {
            0..6 => 0x1000 + block / 2 * 0x100 + more / 5 * 8,
            6 => *block,
            _ => u64::MAX - block,
        };
        let words: Vec<u64> = words.iter().map(word).collect();
        let mut blocks = Blocks::default();
        for (number, words) in words.chunks(4).enumerate() {
            let name = &records[number % records.len()].name;
            blocks = blocks.with(0x1000 + number as u64 * 0x100, name, words);
        }
        let values = Values::new(records.iter().cloned().map(Arc::new));
        let limits = ShownLimits { values: 3000, ..limits(60, count) };
        let mut walker = ValueWalker::new(&values, &mut blocks, limits);
        for number in 0..10 {
            let record = &records[number % records.len()];
            let root = walker.root(0x1000 + number as u64 * 0x100, record.id);
            let Ok(place) = root else { continue };
            walker.show(&place, "root");
            for step in [".f0", ".vec", "[1]", "[#0]", "[x]"] {
                let step = ShownPath::parse(step).unwrap().steps.remove(0).0;
                if let Ok(next) = walker.step(&place, &step) {
                    walker.show(&next, "next");
                }
            }
        }
    }
}
