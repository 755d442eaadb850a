use super::*;
use crate::pointer::PointerKind;
use crate::types::{Condition, PointerField, RECORD_VERSION, VariantRecord};
use alloc::string::ToString;
use proptest::prelude::*;

fn id_of(name: &str) -> TypeId {
    match array(name) {
        Some((element, count)) => array_of(id_of(element), count),
        None => TypeId::of_name(name),
    }
}

fn field(name: &str, offset: u64, size: u64, type_name: &str) -> FieldRecord {
    FieldRecord {
        name: name.into(),
        offset,
        size,
        type_id: id_of(type_name),
        type_name: type_name.into(),
    }
}

fn record(name: &str, size: u64, fields: Vec<FieldRecord>) -> TypeRecord {
    TypeRecord {
        version: RECORD_VERSION,
        id: TypeId::of_name(name),
        name: name.into(),
        size,
        align: 1,
        repeats: false,
        fields,
        variants: Vec::new(),
        pointers: Vec::new(),
    }
}

fn variant(name: &str, size: u8, value: u64, fields: Vec<FieldRecord>) -> VariantRecord {
    VariantRecord { name: name.into(), tag: Condition { offset: 0, size, value }, fields }
}

fn values(records: &[TypeRecord]) -> Values {
    for record in records {
        record.check().unwrap();
    }
    Values::new(records.iter().cloned().map(Arc::new))
}

/// What is found in a block of the first of these types: fields and rules.
fn found(records: &[TypeRecord], block: &[u8]) -> Vec<(String, Rule)> {
    let rules = values(records).rules(records[0].id).expect("there are rules");
    let mut all = Vec::new();
    rules.check(0x1000, 0, block, &mut |invalid| {
        let at = (invalid.at - 0x1000) as usize;
        assert!(
            at < block.len() && invalid.block == 0x1000 && invalid.type_name == records[0].name
        );
        all.push((invalid.field, invalid.rule));
    });
    all
}

fn one(field: &str, rule: Rule) -> Vec<(String, Rule)> {
    vec![(field.to_string(), rule)]
}

#[test]
fn every_byte_that_is_no_bool_is_found() {
    let holder =
        record("Holder", 2, vec![field("number", 0, 1, "u8"), field("flag", 1, 1, "bool")]);
    for byte in 0..=255 {
        let expected = if byte > 1 { one("flag", Rule::Bool) } else { Vec::new() };
        assert_eq!(found(core::slice::from_ref(&holder), &[byte, byte]), expected);
    }
    assert_eq!(
        found(&[record("bool", 1, vec![])], &[7]),
        one("", Rule::Bool),
        "a block that is one"
    );
}

#[test]
fn what_is_no_character_is_found() {
    let holder = record("Holder", 4, vec![field("letter", 0, 4, "char")]);
    let near = |code: u32| code.saturating_sub(40)..=code.saturating_add(40);
    let codes = (0xd700..0xe100).chain(near(0)).chain(near(0x10_ffff)).chain(near(u32::MAX));
    for code in codes.chain((0..32).map(|bit| 1 << bit)) {
        let expected =
            if char::from_u32(code).is_none() { one("letter", Rule::Char) } else { Vec::new() };
        assert_eq!(
            found(core::slice::from_ref(&holder), &code.to_le_bytes()),
            expected,
            "{code:#x}"
        );
    }
}

#[test]
fn zero_is_found_in_numbers_of_every_width_and_null_in_pointers() {
    let widths = [("8", 1usize), ("16", 2), ("32", 4), ("64", 8), ("128", 16), ("size", 8)];
    for (width, size) in widths {
        for sign in ["U", "I"] {
            let name = format!("NonZero{sign}{width}");
            let holder = record("Holder", size as u64, vec![field("count", 0, size as u64, &name)]);
            let mut block = vec![0; size];
            assert_eq!(found(core::slice::from_ref(&holder), &block), one("count", Rule::NotZero));
            for bit in 0..8 * size {
                block.fill(0);
                block[bit / 8] = 1 << (bit % 8);
                assert_eq!(found(core::slice::from_ref(&holder), &block), []);
            }
        }
    }
    let fields = vec![field("to", 0, 8, "Ptr<Node>"), field("next", 8, 8, "Option<Ptr<Node>>")];
    let node = record("Node", 16, fields);
    assert_eq!(found(core::slice::from_ref(&node), &[0; 16]), one("to", Rule::NotNull));
    assert_eq!(found(&[node], &[1; 16]), []);
}

/// Discriminants 1, 2 and 200; `B` has a flag and a kind, `C` a number.
fn shape() -> Vec<TypeRecord> {
    let mut outer = record("Shape", 4, vec![]);
    outer.variants = vec![
        variant("A", 1, 1, vec![]),
        variant("B", 1, 2, vec![field("flag", 1, 1, "bool"), field("kind", 2, 2, "Kind")]),
        variant("C", 1, 200, vec![field("0", 1, 1, "NonZeroU8"), field("1", 2, 2, "u16")]),
    ];
    let mut kind = record("Kind", 2, vec![]);
    kind.variants =
        vec![variant("X", 1, 0, vec![]), variant("Y", 1, 9, vec![field("on", 1, 1, "bool")])];
    vec![outer, kind]
}

#[test]
fn every_discriminant_of_no_variant_is_found_and_fields_count_in_their_variant_only() {
    let types = shape();
    for tag in 0..=255u8 {
        let expected = match tag {
            1 => Vec::new(),
            2 => vec![("B.flag".to_string(), Rule::Bool), ("B.kind".to_string(), Rule::Tag)],
            200 => Vec::new(),
            _ => one("", Rule::Tag),
        };
        assert_eq!(found(&types, &[tag, 7, 7, 7]), expected, "{tag}");
    }
    assert_eq!(found(&types, &[200, 0, 7, 7]), one("C.0", Rule::NotZero));
    assert_eq!(found(&types, &[2, 1, 9, 3]), one("B.kind.Y.on", Rule::Bool));
    assert_eq!(found(&types, &[2, 1, 0, 3]), []);
}

#[test]
fn elements_of_arrays_are_found_by_their_index() {
    let mut types = vec![record(
        "Grid",
        25,
        vec![field("first", 0, 1, "u8"), field("rows", 1, 24, "[[Shape; 2]; 3]")],
    )];
    types.extend(shape());
    let mut block = vec![1; 25];
    assert_eq!(found(&types, &block), []);
    block[1 + 4 * 3] = 2;
    let expected = vec![("rows[1][1].B.kind".to_string(), Rule::Tag)];
    assert_eq!(found(&types, &block), expected);
    let pointers = record("Table", 32, vec![field("to", 0, 32, "[[Ptr<Node>; 2]; 2]")]);
    block = vec![1; 32];
    block[16..24].fill(0);
    assert_eq!(found(&[pointers], &block), one("to[1][0]", Rule::NotNull));
}

#[test]
fn zeros_are_no_value_where_places_may_be_unused_only() {
    let mut array = record("[Pair]", 2, vec![field("[]", 0, 2, "Pair")]);
    array.repeats = true;
    let pair =
        record("Pair", 2, vec![field("flag", 0, 1, "bool"), field("count", 1, 1, "NonZeroU8")]);
    let types = [array, pair.clone()];
    assert_eq!(
        found(&types, &[1, 1, 0, 0, 1, 0, 3, 1, 0]),
        [("[2].count".to_string(), Rule::NotZero), ("[3].flag".to_string(), Rule::Bool)]
    );
    let own = record("cenote/Slots<Pair>", 6, vec![field("slots", 0, 6, "[Pair; 3]")]);
    assert_eq!(
        found(&[own, pair.clone()], &[0, 0, 1, 0, 0, 1]),
        one("slots[1].count", Rule::NotZero)
    );
    let others = record("Slots<Pair>", 4, vec![field("slots", 0, 4, "[Pair; 2]")]);
    assert_eq!(found(&[others, pair], &[0, 0, 1, 1]), one("slots[0].count", Rule::NotZero));
}

#[test]
fn a_block_that_repeats_can_be_looked_at_in_parts() {
    let mut array = record("[bool]", 1, vec![field("[]", 0, 1, "bool")]);
    array.repeats = true;
    let rules = values(&[array.clone()]).rules(array.id).unwrap();
    let mut all = Vec::new();
    rules.check(0x1000, 4, &[1, 5], &mut |invalid| all.push(invalid));
    assert_eq!((all.len(), all[0].at, all[0].field.as_str()), (1, 0x1005, "[5]"));
    assert_eq!(
        all[0].to_string(),
        "block at 0x1000 ([bool]): field `[5]`, at 0x1005: 5 is no bool"
    );
}

#[test]
fn records_that_cannot_be_true_cost_nothing() {
    // A type inside itself; one that is half a thousand deep; one with 2^40 rules in 8 bytes.
    let own = record("Own", 8, vec![field("own", 0, 8, "Own"), field("flag", 0, 1, "bool")]);
    let mut all = vec![own];
    for k in 0..500 {
        all.push(record(&format!("D{k}"), 8, vec![field("in", 0, 8, &format!("D{}", k + 1))]));
    }
    all.push(record("D500", 8, vec![field("flag", 0, 1, "bool")]));
    for k in 0..40 {
        let inner = format!("B{}", k + 1);
        all.push(record(
            &format!("B{k}"),
            8,
            vec![field("x", 0, 8, &inner), field("y", 0, 8, &inner)],
        ));
    }
    all.push(record("B40", 8, vec![field("flag", 0, 1, "bool")]));
    let long = "[".repeat(200) + "bool" + &"; 1]".repeat(200);
    all.push(record(
        "Long",
        8,
        vec![field("long", 0, 1, &long), field("far", 0, 8, "[bool; 99999999999]")],
    ));
    let mut values = values(&all);
    let ids: Vec<TypeId> = all.iter().map(|record| record.id).collect();
    let mut steps = 0;
    for id in ids {
        if let Some(rules) = values.rules(id) {
            rules.check(0, 0, &[9; 8], &mut |_| steps += 1);
        }
    }
    assert!((40..5_000).contains(&steps), "{steps}");
}

/// A type name that may be one of the types.
fn type_name() -> impl Strategy<Value = String> {
    let base = prop_oneof![
        "T[0-5]",
        Just("bool".to_string()),
        Just("char".to_string()),
        Just("Ptr<T1>".to_string()),
        Just("NonZeroU16".to_string()),
        Just("Option<Ptr<T1>>".to_string())
    ];
    (base, 0..3usize, 0..4u64).prop_map(|(base, nested, count)| {
        (0..nested).fold(base, |name, _| format!("[{name}; {count}]"))
    })
}

fn fields() -> impl Strategy<Value = Vec<FieldRecord>> {
    let one = ("[a-c]", 0..12u64, 0..12u64, type_name());
    prop::collection::vec(one.prop_map(|(name, at, size, ty)| field(&name, at, size, &ty)), 0..4)
}

prop_compose! {
    fn any_record()(
        name in "T[0-5]", size in 0..20u64, repeats in any::<bool>(), fields in fields(),
        variants in prop::collection::vec((0..18u64, 0..9u8, 0..4u64, fields()), 0..3),
    ) -> TypeRecord {
        let variants = variants.into_iter().map(|(offset, size, value, fields)| VariantRecord {
            name: "V".into(), tag: Condition { offset, size, value }, fields,
        });
        TypeRecord { repeats, variants: variants.collect(), ..record(&name, size, fields) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn any_records_over_any_bytes_stay_inside_and_cost_a_step_a_byte(
        records in prop::collection::vec(any_record(), 1..8),
        block in prop::collection::vec(0..3u8, 0..60),
    ) {
        let mut values = Values::new(records.iter().cloned().map(Arc::new));
        for record in &records {
            let Some(rules) = values.rules(record.id) else { continue };
            let mut steps = 0;
            rules.check(0x1000, 0, &block, &mut |invalid| {
                assert!((0x1000..0x1000 + block.len() as u64).contains(&invalid.at));
                assert!(!invalid.to_string().is_empty());
                steps += 1;
            });
            assert!(steps <= block.len());
        }
    }
}

#[test]
fn pointers_of_maps_have_no_rules_of_their_own() {
    let mut node = record("Node", 8, vec![]);
    node.align = 8;
    node.pointers = vec![PointerField {
        offset: 0,
        stride: 8,
        count: 1,
        kind: PointerKind::NATIVE,
        tag_mask: 0,
        target: node.id,
        conditions: vec![],
    }];
    assert!(values(&[node.clone()]).rules(node.id).is_none());
}
