//! What `#[derive(Persist)]` says about types is true: its maps find exactly the pointers of real
//! values.
#![deny(unsafe_code)]

use cenote::persist::{
    ArrayOf, TypeId, TypeRecord, TypeSetError, array_record, described, types_of,
};
use cenote::{Persist, Ptr, field};
use std::marker::PhantomData;
use std::mem::{offset_of, size_of};
use std::num::{NonZeroU32, Wrapping};

use crate::common::{pointers_in, ptr};

#[derive(Persist)]
struct Node<T> {
    key: u32,
    value: T,
    next: Option<Ptr<Node<T>>>,
    flag: bool,
}

#[derive(Persist)]
struct Tuple(u8, Ptr<Tuple>, u16, Option<Ptr<Node<u64>>>);

#[derive(Persist)]
struct Unit;

#[derive(Persist)]
#[repr(C, align(64))]
struct Aligned {
    byte: u8,
    link: Option<Ptr<Unit>>,
}

#[derive(Persist)]
struct Nested<A, B>
where
    B: Clone,
{
    left: Node<A>,
    right: (),
    many: [Node<B>; 3],
    marker: PhantomData<A>,
}

#[derive(Persist)]
#[repr(transparent)]
struct Grid([[Option<Ptr<u64>>; 4]; 3]);

#[derive(Persist)]
#[repr(u8)]
enum Tree {
    Empty,
    Leaf(u8, u64) = 7,
    Branch { left: Ptr<Tree>, weight: u16, right: Option<Ptr<Tree>> },
    Inner(Kind) = 200,
}

#[derive(Persist)]
#[repr(i16)]
enum Kind {
    Below(Ptr<u64>) = -3,
    Next { small: u8, list: [Option<Ptr<u64>>; 2] },
    Zero = 0,
}

#[derive(Persist)]
#[repr(u64)]
enum Wide<T> {
    Low = u64::MAX - 1,
    High(T),
}

#[derive(Persist)]
struct Forest {
    count: u8,
    trees: [Tree; 2],
    kind: Kind,
}

#[derive(Persist)]
struct Buffer<T, const N: usize, const SIGNED: i8> {
    items: [T; N],
}

fn record<T: Persist>() -> TypeRecord {
    let record = T::record();
    record.check().unwrap();
    record
}

#[test]
fn maps_of_structures_find_every_pointer_wherever_the_compiler_puts_it() {
    let value = Node { key: 1, value: 2u8, next: Some(ptr(0x1000)), flag: true };
    assert_eq!(pointers_in(&value), [(offset_of!(Node<u8>, next), 0x1000, Node::<u8>::TYPE_ID)]);
    let value = Tuple(1, ptr(0x2000), 2, None);
    let mut expected = [
        (offset_of!(Tuple, 1), 0x2000, Tuple::TYPE_ID),
        (offset_of!(Tuple, 3), 0, Node::<u64>::TYPE_ID),
    ];
    expected.sort();
    assert_eq!(pointers_in(&value), expected);
    assert_eq!(pointers_in(&Unit), []);
    let value = Aligned { byte: 1, link: Some(ptr(0x3000)) };
    assert_eq!(pointers_in(&value), [(8, 0x3000, Unit::TYPE_ID)]);
    assert_eq!((record::<Aligned>().align, record::<Aligned>().size), (64, 64));
}

#[test]
fn maps_of_nested_generic_types_are_shifted_to_their_place() {
    let node = |n: u64| Node { key: 1, value: n as u8, next: Some(ptr(n)), flag: false };
    let value = Nested {
        left: Node { key: 1, value: ptr::<u64>(0x90), next: None, flag: true },
        right: (),
        many: [node(8), node(16), node(24)],
        marker: PhantomData,
    };
    type Value = Nested<Ptr<u64>, u8>;
    let many = offset_of!(Value, many) + offset_of!(Node<u8>, next);
    let left = offset_of!(Value, left);
    let mut expected = vec![
        (left + offset_of!(Node<Ptr<u64>>, value), 0x90, u64::TYPE_ID),
        (left + offset_of!(Node<Ptr<u64>>, next), 0, Node::<Ptr<u64>>::TYPE_ID),
    ];
    expected.extend(
        (0..3).map(|i| (many + i * size_of::<Node<u8>>(), 8 + 8 * i as u64, Node::<u8>::TYPE_ID)),
    );
    expected.sort();
    assert_eq!(pointers_in(&value), expected);
    assert_eq!(record::<Value>().pointers.len(), 3, "an array of nodes is one instruction");
}

#[test]
fn arrays_of_arrays_are_one_instruction() {
    let mut n = 0;
    let mut next = || {
        n += 8;
        Some(ptr(n))
    };
    let value = Grid(std::array::from_fn(|_| std::array::from_fn(|_| next())));
    let expected: Vec<_> = (0..12).map(|i| (8 * i, 8 + 8 * i as u64, u64::TYPE_ID)).collect();
    assert_eq!(pointers_in(&value), expected);
    assert_eq!(record::<Grid>().pointers.len(), 1);
    // Unevenly spaced: an instruction for each of the fewer.
    assert_eq!(record::<[Wrapping<[[Ptr<u64>; 2]; 1]>; 9]>().pointers.len(), 1);
    assert_eq!(record::<[Node<[Ptr<u64>; 2]>; 100]>().pointers.len(), 3);
    assert_eq!(record::<[Node<[Ptr<u64>; 9]>; 3]>().pointers.len(), 4);
    assert_eq!(record::<[Ptr<u64>; 0]>().pointers.len(), 0);
}

#[test]
fn pointers_in_variants_are_found_in_their_variant_only() {
    assert_eq!(pointers_in(&Tree::Empty), []);
    assert_eq!(pointers_in(&Tree::Leaf(1, 2)), []);
    let value = Tree::Branch { left: ptr(8), weight: 1, right: Some(ptr(16)) };
    assert_eq!(pointers_in(&value), [(8, 8, Tree::TYPE_ID), (24, 16, Tree::TYPE_ID)]);
    assert_eq!(pointers_in(&Kind::Below(ptr(8))), [(8, 8, u64::TYPE_ID)]);
    let value = Kind::Next { small: 1, list: [None, Some(ptr(16))] };
    assert_eq!(pointers_in(&value), [(8, 0, u64::TYPE_ID), (16, 16, u64::TYPE_ID)]);
    assert_eq!(pointers_in(&Kind::Zero), []);
    assert_eq!(pointers_in(&Wide::High(ptr::<u64>(8))), [(8, 8, u64::TYPE_ID)]);
    assert_eq!(pointers_in(&Wide::<Ptr<u64>>::Low), []);
}

#[test]
fn variants_of_variants_need_both_discriminants() {
    assert_eq!(pointers_in(&Tree::Inner(Kind::Below(ptr(8)))), [(16, 8, u64::TYPE_ID)]);
    assert_eq!(pointers_in(&Tree::Inner(Kind::Zero)), []);
    let value = Forest {
        count: 1,
        trees: [
            Tree::Inner(Kind::Next { small: 1, list: [Some(ptr(8)), None] }),
            Tree::Branch { left: ptr(16), weight: 0, right: None },
        ],
        kind: Kind::Below(ptr(24)),
    };
    let (first, kind) = (offset_of!(Forest, trees), offset_of!(Forest, kind));
    let second = first + size_of::<Tree>();
    let mut expected = [
        (first + 16, 8, u64::TYPE_ID),
        (first + 24, 0, u64::TYPE_ID),
        (second + 8, 16, Tree::TYPE_ID),
        (second + 24, 0, Tree::TYPE_ID),
        (kind + 8, 24, u64::TYPE_ID),
    ];
    expected.sort();
    assert_eq!(pointers_in(&value), expected);
}

#[test]
fn records_list_fields_and_variants_with_their_places() {
    let tree = record::<Tree>();
    assert!(tree.fields.is_empty());
    let tags: Vec<_> =
        tree.variants.iter().map(|v| (v.name.as_str(), v.tag.value, v.tag.size)).collect();
    assert_eq!(tags, [("Empty", 0, 1), ("Leaf", 7, 1), ("Branch", 8, 1), ("Inner", 200, 1)]);
    let places: Vec<_> =
        tree.variants[2].fields.iter().map(|f| (f.name.as_str(), f.offset)).collect();
    assert_eq!(places, [("left", 8), ("weight", 16), ("right", 24)]);
    let places: Vec<_> =
        tree.variants[1].fields.iter().map(|f| (f.name.as_str(), f.offset)).collect();
    assert_eq!(places, [("0", 1), ("1", 8)]);
    let tags: Vec<_> =
        record::<Kind>().variants.iter().map(|v| (v.name.clone(), v.tag.value)).collect();
    assert_eq!(tags, [("Zero".into(), 0), ("Below".into(), 0xfffd), ("Next".into(), 0xfffe)]);

    let node = record::<Node<u8>>();
    let mut expected = [
        (offset_of!(Node<u8>, key) as u64, "key", 4, "u32"),
        (offset_of!(Node<u8>, value) as u64, "value", 1, "u8"),
        (offset_of!(Node<u8>, next) as u64, "next", 8, "Option<Ptr<cenote::Node<u8>>>"),
        (offset_of!(Node<u8>, flag) as u64, "flag", 1, "bool"),
    ];
    expected.sort();
    let fields: Vec<_> = node
        .fields
        .iter()
        .map(|f| (f.offset, f.name.as_str(), f.size, f.type_name.as_str()))
        .collect();
    assert_eq!(fields, expected);
}

/// What an earlier derive macro called a constant of its own.
const PERSIST_TAG_0: u8 = 200;

#[derive(Persist, Clone, Copy)]
#[repr(u8)]
enum ByConstant {
    First = 1,
    Second = PERSIST_TAG_0 + 1,
    Third,
}

#[test]
fn tags_are_those_of_the_compiler_whatever_constants_are_called() {
    let real = [ByConstant::First, ByConstant::Second, ByConstant::Third].map(|value| value as u64);
    let tags: Vec<_> =
        record::<ByConstant>().variants.iter().map(|variant| variant.tag.value).collect();
    assert_eq!(tags, real);
}

#[test]
fn type_ids_never_change() {
    // Part of the format: data on media is found by these numbers.
    let ids = [
        (u8::TYPE_ID, u8::type_name()),
        (u64::TYPE_ID, u64::type_name()),
        (<()>::TYPE_ID, <()>::type_name()),
        (NonZeroU32::TYPE_ID, NonZeroU32::type_name()),
        (Option::<NonZeroU32>::TYPE_ID, Option::<NonZeroU32>::type_name()),
        (Ptr::<u64>::TYPE_ID, Ptr::<u64>::type_name()),
        (Option::<Ptr<u64>>::TYPE_ID, Option::<Ptr<u64>>::type_name()),
        (<[u64; 4]>::TYPE_ID, <[u64; 4]>::type_name()),
        (ArrayOf::<u64>::TYPE_ID, ArrayOf::<u64>::type_name()),
        (PhantomData::<u64>::TYPE_ID, PhantomData::<u64>::type_name()),
        (Wrapping::<u64>::TYPE_ID, Wrapping::<u64>::type_name()),
        (Unit::TYPE_ID, Unit::type_name()),
        (Node::<u64>::TYPE_ID, Node::<u64>::type_name()),
        (Node::<Node<u8>>::TYPE_ID, Node::<Node<u8>>::type_name()),
        (Nested::<u8, u16>::TYPE_ID, Nested::<u8, u16>::type_name()),
        (Buffer::<u8, 3, -1>::TYPE_ID, Buffer::<u8, 3, -1>::type_name()),
        (Renamed::TYPE_ID, Renamed::type_name()),
    ];
    let text: Vec<_> = ids.iter().map(|(id, name)| format!("{id} {name}")).collect();
    assert_eq!(text, PINNED);
}

const PINNED: [&str; 17] = [
    "060de4b5246f29a7 u8",
    "ec3950c4734a4b06 u64",
    "37362d01203e41d7 ()",
    "fcb464d212158f51 NonZeroU32",
    "6676b56f0ed0d44b Option<NonZeroU32>",
    "dd5614f056564712 Ptr<u64>",
    "594e9bbcd5c89c6b Option<Ptr<u64>>",
    "9b11720b26dffa41 [u64; 4]",
    "c14ae459612b6d4b [u64]",
    "217e880228d2c8e6 PhantomData<u64>",
    "3e2b5ced563c7477 Wrapping<u64>",
    "3152983d289bd770 cenote::Unit",
    "1b66e75706f740e7 cenote::Node<u64>",
    "00ae41054c6faecc cenote::Node<cenote::Node<u8>>",
    "bd52c13b081cd2e6 cenote::Nested<u8, u16>",
    "415a8dbfbdf5271a cenote::Buffer<u8, 3, -1>",
    "1f234f8f489007d4 old::Name",
];

#[derive(Persist)]
#[persist(name = "old::Name")]
struct Renamed {
    #[persist(name = "was")]
    is: u8,
}

#[test]
fn a_declared_name_keeps_the_identity_of_what_is_renamed() {
    let record = record::<Renamed>();
    assert_eq!((record.name.as_str(), record.id), ("old::Name", TypeId::of_name("old::Name")));
    assert_eq!(record.fields[0].name, "was");
    let value = Renamed { is: 3 };
    assert_eq!(value.is, 3);
}

#[test]
fn every_declared_type_that_can_be_reached_is_listed_once() {
    let names = |types: Vec<cenote::persist::DescribedType>| -> Vec<String> {
        types.into_iter().map(|t| t.record.name).collect()
    };
    assert_eq!(
        names(types_of::<Forest>().unwrap()),
        ["cenote::Forest", "cenote::Tree", "cenote::Kind", "u64"]
    );
    assert_eq!(names(types_of::<Tuple>().unwrap()), ["cenote::Tuple", "cenote::Node<u64>"]);
    assert_eq!(
        names(types_of::<Buffer<Ptr<ArrayOf<Unit>>, 2, 1>>().unwrap()),
        ["cenote::Buffer<Ptr<[cenote::Unit]>, 2, 1>", "[cenote::Unit]", "cenote::Unit"]
    );
}

mod elsewhere {
    #[derive(cenote::Persist)]
    pub(crate) struct Unit {
        link: Option<cenote::Ptr<super::Unit>>,
    }
}

#[test]
fn two_types_of_one_name_are_refused() {
    match types_of::<elsewhere::Unit>() {
        Err(TypeSetError::SameName { name, first, second }) => {
            assert_eq!(name, "cenote::Unit");
            assert!(first.contains("elsewhere") && !second.contains("elsewhere"));
        }
        other => panic!("{other:?}"),
    }
}

#[derive(Persist)]
struct TooManyPointers {
    trees: [Tree; 3000],
}

#[test]
fn a_map_that_is_too_long_is_refused_not_cut() {
    let error = types_of::<TooManyPointers>().unwrap_err().to_string();
    assert!(error.contains("pointer map is too long"), "{error}");
    // Built without taking memory for each of the elements.
    assert!(described::<[[Tree; 1 << 20]; 1 << 20]>().record.pointers.len() < 10_000);
}

#[test]
fn arrays_of_values_repeat_the_map_of_one() {
    let array = array_record::<Tree>();
    array.check().unwrap();
    assert!(array.repeats);
    assert_eq!((array.size, array.id), (size_of::<Tree>() as u64, ArrayOf::<Tree>::TYPE_ID));
    assert_eq!(array, ArrayOf::<Tree>::record());
    assert_eq!(array.pointers, Tree::record().pointers);
    array_record::<()>().check().unwrap();
}

#[test]
fn a_moved_field_is_named_in_both_layouts() {
    mod second {
        use cenote::{Persist, Ptr};
        #[derive(Persist)]
        #[repr(C)]
        #[persist(name = "cenote::Aligned")]
        pub(super) struct Changed {
            link: Option<Ptr<super::Unit>>,
            byte: u16,
        }
    }
    let differences = record::<Aligned>().differences(&record::<second::Changed>()).join("\n");
    assert!(differences.contains("size in bytes: 64 against 16"), "{differences}");
    assert!(differences.contains("field `byte`: u8 at 0, 1 bytes"), "{differences}");
    assert!(differences.contains("against u16 at 8, 2 bytes"), "{differences}");
    assert!(differences.contains("pointer at 8 to"), "{differences}");
}

#[test]
fn field_offsets_lead_to_the_field() {
    const NEXT: cenote::ptr::FieldOffset<Node<u8>, Option<Ptr<Node<u8>>>> = field!(Node<u8>, next);
    let mut value = Node { key: 1, value: 2u8, next: Some(ptr(0x1000)), flag: true };
    assert_eq!(NEXT.offset(), offset_of!(Node<u8>, next));
    assert_eq!(*NEXT.get(&value), Some(ptr(0x1000)));
    *NEXT.get_mut(&mut value) = None;
    assert!(value.next.is_none());

    let trees = field!(Forest, trees);
    assert_eq!(trees.element(1).unwrap().offset(), trees.offset() + size_of::<Tree>());
    assert!(trees.element(2).is_none());
    type Value = Nested<u8, u16>;
    assert_eq!(
        field!(Value, left.next).offset(),
        field!(Value, left).then(field!(Node<u8>, next)).offset()
    );
    assert_eq!(*field!(Tuple, 2).get(&Tuple(1, ptr(8), 77, None)), 77);
    let node: Ptr<Node<u8>> = ptr(0x1000);
    assert_eq!(node.field(NEXT) as u64, 0x1000 + NEXT.offset() as u64);

    fn generic<T: Persist>() -> usize {
        field!(Node<T>, value).offset()
    }
    assert_eq!(generic::<u8>(), offset_of!(Node<u8>, value));
}

#[test]
fn pointers_are_plain_addresses_and_none_is_null() {
    assert_eq!((size_of::<Ptr<Tree>>(), size_of::<Option<Ptr<Tree>>>()), (8, 8));
    let pointer: Ptr<Tree> = ptr(0x1234_5678);
    assert_eq!(pointer.addr(), 0x1234_5678);
    assert_eq!(format!("{pointer:?} {pointer:p}"), "Ptr(0x12345678) 0x12345678");
    assert!(ptr::<u8>(1) < ptr::<u8>(2) && ptr::<u8>(1) == ptr::<u8>(1));
    assert_eq!(pointers_in(&None::<Ptr<u64>>), [(0, 0, u64::TYPE_ID)]);
    assert_eq!(pointers_in(&Some(ptr::<u64>(9 << 3))), [(0, 72, u64::TYPE_ID)]);
}

#[test]
fn bounds_can_be_given_by_hand() {
    trait Key: Persist + Ord {}
    impl Key for u64 {}
    #[derive(Persist)]
    #[persist(bound = "K: Key", crate = "cenote")]
    struct KeyEntry<K> {
        r#type: K,
    }
    let value = KeyEntry { r#type: 1u64 };
    assert_eq!(value.r#type, 1);
    assert_eq!(record::<KeyEntry<u64>>().fields[0].name, "type");
}
