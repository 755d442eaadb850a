use super::*;
use crate::catalog::{PAYLOAD_LEN_MAX, Record};
use proptest::prelude::*;

fn node() -> TypeRecord {
    let id = TypeId::of_name("Node");
    let field = |name: &str, offset, type_name: &str| FieldRecord {
        name: name.into(),
        offset,
        size: 8,
        type_id: TypeId::of_name(type_name),
        type_name: type_name.into(),
    };
    TypeRecord {
        version: RECORD_VERSION,
        id,
        name: "Node".into(),
        size: 24,
        align: 8,
        repeats: false,
        fields: vec![field("key", 0, "u64"), field("next", 8, "Link")],
        variants: vec![
            VariantRecord {
                name: "A".into(),
                tag: Condition { offset: 16, size: 1, value: 0 },
                fields: vec![],
            },
            VariantRecord {
                name: "B".into(),
                tag: Condition { offset: 16, size: 1, value: 1 },
                fields: vec![field("deep", 16, "u64")],
            },
        ],
        pointers: vec![PointerField {
            offset: 8,
            stride: 8,
            count: 1,
            kind: PointerKind::NATIVE,
            tag_mask: 0,
            target: id,
            conditions: vec![Condition { offset: 16, size: 1, value: 1 }],
        }],
    }
}

/// A number that is small, near a multiple of 8, or near the end of the range.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        20 => (0..4u64).prop_map(|n| n * 8),
        4 => 0..40u64,
        1 => any::<u64>(),
        1 => Just(u64::MAX),
        1 => Just(u64::MAX - 7),
    ]
}

fn condition() -> impl Strategy<Value = Condition> {
    (
        number(),
        prop_oneof![Just(1u8), Just(2), Just(4), Just(8), any::<u8>()],
        prop_oneof![0..3u64, any::<u64>()],
    )
        .prop_map(|(offset, size, value)| Condition { offset, size, value })
}

fn pointer() -> impl Strategy<Value = PointerField> {
    (
        number(),
        number(),
        prop_oneof![4 => Just(1u64), 2 => 0..6u64, 1 => any::<u64>()],
        0..6u8,
        prop::collection::vec(condition(), 0..3),
    )
        .prop_map(|(offset, stride, count, kind, conditions)| PointerField {
            offset,
            stride,
            count,
            kind: PointerKind(kind),
            tag_mask: 0,
            target: TypeId::UNTYPED,
            conditions,
        })
}

fn field() -> impl Strategy<Value = FieldRecord> {
    ("[a-c]{1,2}", number(), 0..9u64, 0..12u64).prop_map(|(name, offset, size, id)| FieldRecord {
        name,
        offset,
        size,
        type_id: TypeId(id),
        type_name: format!("T{id}"),
    })
}

fn variant() -> impl Strategy<Value = VariantRecord> {
    ("[A-C]{1,2}", condition(), prop::collection::vec(field(), 0..2))
        .prop_map(|(name, tag, fields)| VariantRecord { name, tag, fields })
}

prop_compose! {
    fn record()(
        size in prop_oneof![8 => (3..9u64).prop_map(|n| n * 8), 1 => number()],
        align in prop_oneof![6 => Just(8u64), 1 => Just(4u64), 1 => any::<u64>()],
        repeats in any::<bool>(),
        id in 0..20u64,
        fields in prop::collection::vec(field(), 0..2),
        variants in prop::collection::vec(variant(), 0..2),
        pointers in prop::collection::vec(pointer(), 0..3),
    ) -> TypeRecord {
        TypeRecord {
            version: RECORD_VERSION,
            id: TypeId(id),
            name: "T".into(),
            size,
            align,
            repeats,
            fields,
            pointers,
            variants,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn accepted_maps_stay_inside_the_block_and_aligned(
        record in record(),
        block in prop::collection::vec(0..3u8, 0..200),
    ) {
        if record.check().is_ok() {
            let mut visited = 0usize;
            record.for_each_pointer(&block, &mut |offset, field| {
                let end = offset + field.kind.size() as usize;
                let inside = end <= block.len() && offset.is_multiple_of(8);
                assert!(inside, "{offset} of {}", block.len());
                visited += 1;
            });
            assert!(visited <= record.pointers.len() * 25);
        }
    }

    #[test]
    fn accepted_records_fit_into_the_catalog(record in record()) {
        if record.check().is_ok() {
            let len = postcard::to_allocvec(&Record::Type(record.clone())).unwrap().len();
            assert!(len <= record.encoded_len_max() && len <= PAYLOAD_LEN_MAX as usize);
        }
    }

    #[test]
    fn no_differences_exactly_if_equal(a in record(), b in record()) {
        assert!(a.differences(&a).is_empty());
        assert_eq!(a.differences(&b).is_empty(), a == b);
    }
}

#[test]
fn the_generator_of_the_property_tests_makes_records_that_pass() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut passed, mut with_pointers) = (0, 0);
    for _ in 0..5000 {
        let record = record().new_tree(&mut runner).unwrap().current();
        if record.check().is_ok() {
            passed += 1;
            with_pointers += usize::from(!record.pointers.is_empty());
        }
    }
    assert!(passed > 100 && with_pointers > 50, "{passed} {with_pointers}");
}

#[test]
fn check_refuses_every_kind_of_nonsense() {
    node().check().unwrap();
    let refused = |change: &dyn Fn(&mut TypeRecord)| {
        let mut record = node();
        change(&mut record);
        record.check().unwrap_err().reason
    };
    assert!(refused(&|r| r.version = 0).contains("release"));
    assert!(refused(&|r| r.version = RECORD_VERSION + 1).contains("later release"));
    assert!(refused(&|r| r.pointers[0].kind = PointerKind(6)).contains("does not know"));
    let tagged =
        |kind| move |r: &mut TypeRecord| (r.pointers[0].kind, r.pointers[0].tag_mask) = (kind, 1);
    assert!(refused(&tagged(PointerKind::RELATIVE)).contains("tag bits"));
    assert!(refused(&tagged(PointerKind::REGION)).contains("tag bits"));
    assert!(refused(&tagged(PointerKind::HEAP)).contains("tag bits"));
    assert!(refused(&tagged(PointerKind::OWNED)).contains("tag bits"));
    let two_words = |r: &mut TypeRecord| {
        (r.pointers[0].kind, r.pointers[0].offset) = (PointerKind::HEAP, 16);
    };
    assert!(refused(&two_words).contains("pointer lies outside"));
    assert!(refused(&|r| r.name.clear()).contains("name"));
    assert!(refused(&|r| r.name = "a\nb".into()).contains("control"));
    assert!(refused(&|r| r.name = "x".repeat(TYPE_NAME_LEN_MAX + 1)).contains("name"));
    assert!(refused(&|r| r.id = TypeId::UNTYPED).contains("id"));
    assert!(refused(&|r| r.align = 0).contains("alignment"));
    assert!(refused(&|r| r.align = 16).contains("alignment"));
    assert!(refused(&|r| r.align = 4).contains("aligned to 8"));
    assert!(refused(&|r| (r.size, r.repeats) = (0, true)).contains("no size"));
    assert!(refused(&|r| r.fields[0].name.clear()).contains("field"));
    assert!(refused(&|r| r.fields[0].type_id = TypeId::UNTYPED).contains("field"));
    assert!(refused(&|r| r.fields[1].offset = 17).contains("field lies outside"));
    assert!(refused(&|r| r.fields[1].offset = u64::MAX).contains("field lies outside"));
    assert!(refused(&|r| r.variants[1].fields[0].size = 9).contains("field lies outside"));
    assert!(refused(&|r| r.variants[1].name.clear()).contains("variant"));
    assert!(refused(&|r| r.variants[0].tag.offset = 24).contains("discriminant"));
    assert!(refused(&|r| r.variants[1].tag.value = 256).contains("discriminant"));
    assert!(refused(&|r| r.variants[1].tag.value = 0).contains("same discriminant"));
    assert!(refused(&|r| r.pointers[0].count = 0).contains("pointer"));
    assert!(refused(&|r| r.pointers[0].count = 3).contains("pointer lies outside"));
    assert!(refused(&|r| r.pointers[0].offset = 4).contains("aligned"));
    assert!(refused(&|r| (r.pointers[0].count, r.pointers[0].stride) = (2, 4)).contains("aligned"));
    assert!(refused(&|r| r.pointers[0].offset = u64::MAX - 7).contains("pointer lies outside"));
    assert!(refused(&|r| r.pointers[0].conditions[0].size = 3).contains("discriminant"));
    assert!(refused(&|r| r.pointers[0].conditions[0].offset = 24).contains("discriminant"));
    assert!(
        refused(&|r| r.pointers = vec![r.pointers[0].clone(); POINTER_FIELDS_MAX + 1])
            .contains("too long")
    );
    assert!(
        refused(&|r| r.fields = vec![r.fields[0].clone(); FIELDS_MAX + 1]).contains("too many")
    );
    assert!(
        refused(&|r| r.pointers[0].conditions = vec![r.pointers[0].conditions[0]; 60_000])
            .contains("catalog")
    );
    assert!(
        refused(&|r| {
            r.fields[0].type_name = "x".repeat(1000);
            r.fields = vec![r.fields[0].clone(); 2000];
        })
        .contains("catalog")
    );
}

#[test]
fn conditions_choose_which_pointers_are_there() {
    let record = node();
    let mut block = [0u8; 24];
    let count = |block: &[u8]| {
        let mut offsets = vec![];
        record.for_each_pointer(block, &mut |offset, _| offsets.push(offset));
        offsets
    };
    assert!(count(&block).is_empty());
    block[16] = 1;
    assert_eq!(count(&block), [8]);
    assert!(count(&block[..23]).is_empty(), "a block that is too short has no value");
}

#[test]
fn layouts_and_differences_read_well() {
    let first = node();
    let id = first.id;
    assert_eq!(
        first.to_string(),
        format!(
            "Node: 24 bytes, aligned to 8, id {id}\n       0  key: u64 (8 bytes)\n       \
             8  next: Link (8 bytes)\n  variant A if u8 at 16 is 0\n  \
             variant B if u8 at 16 is 1\n      16  deep: u64 (8 bytes)\n  \
             pointer at 8 to {id} if u8 at 16 is 1"
        )
    );
    let mut second = node();
    second.size = 32;
    second.fields[1].offset = 16;
    second.fields[0].name = "k".into();
    second.variants[1].tag.value = 2;
    second.variants.remove(0);
    let lines = first.differences(&second);
    let u64_id = TypeId::of_name("u64");
    let link_id = TypeId::of_name("Link");
    assert_eq!(
        lines,
        [
            "size in bytes: 24 against 32".to_string(),
            format!("field `key`: only in the first (u64 at 0, 8 bytes, type id {u64_id})"),
            format!(
                "field `next`: Link at 8, 8 bytes, type id {link_id} against \
                 Link at 16, 8 bytes, type id {link_id}"
            ),
            format!("field `k`: only in the second (u64 at 0, 8 bytes, type id {u64_id})"),
            "variant `A`: only in the first".to_string(),
            "variant `B`: if u8 at 16 is 1 against if u8 at 16 is 2".to_string(),
        ]
    );
}
