// What every program of random types has.
#![allow(dead_code, unused, non_camel_case_types, non_upper_case_globals, unreachable_patterns)]

use cenote::persist::{FieldRecord, InvalidValue, Rule, TypeRecord, Values, types_of};
use cenote::{Persist, Ptr};
use core::sync::atomic::{AtomicU64, Ordering};

/// What pointers lead to.
#[derive(Persist)]
pub struct Target(u64);

static NEXT: AtomicU64 = AtomicU64::new(8);

/// A pointer to an address that no other pointer has.
pub fn next() -> Ptr<Target> {
    // SAFETY: it is never followed.
    unsafe { Ptr::from_addr(NEXT.fetch_add(8, Ordering::Relaxed)) }.expect("not null")
}

fn record<T: Persist>() -> TypeRecord {
    let record = T::record();
    record.check().expect("a proper record");
    record
}

/// Bytes that have a rule: their address, how many, the rule, the field, and what is allowed.
pub struct Probed(usize, usize, Rule, String, Vec<u64>);

pub trait Probe {
    fn probe(&self, path: &str, found: &mut Vec<Probed>);
}

macro_rules! probe {
    ($($type:ty),* => |$this:ident, $path:ident, $found:ident| $body:expr) => {$(
        impl Probe for $type {
            fn probe(&self, $path: &str, $found: &mut Vec<Probed>) {
                let $this = core::ptr::from_ref(self).addr();
                $body
            }
        }
    )*};
}

probe!(
    (), u8, u16, u32, u64, u128, i8, i16, i32, i64, f32, f64, Option<Ptr<Target>>
    => |_this, _path, _found| ()
);
probe!(bool => |this, path, found| found.push(Probed(this, 1, Rule::Bool, path.into(), vec![])));
probe!(char => |this, path, found| found.push(Probed(this, 4, Rule::Char, path.into(), vec![])));
probe!(core::num::NonZeroU16 => |this, path, found| {
    found.push(Probed(this, 2, Rule::NotZero, path.into(), vec![]))
});
probe!(Ptr<Target> => |this, path, found| {
    found.push(Probed(this, 8, Rule::NotNull, path.into(), vec![]))
});

probe!(core::time::Duration => |this, path, found| {
    found.push(Probed(this + 8, 4, Rule::Nanos, inside(path, "nanos"), vec![]))
});
probe!(Option<core::time::Duration> => |this, path, found| {
    found.push(Probed(this + 8, 4, Rule::OptionNanos, inside(path, "nanos"), vec![]))
});
probe!(Option<bool> => |this, path, found| {
    found.push(Probed(this, 1, Rule::OptionBool, path.into(), vec![]))
});
probe!(Option<char> => |this, path, found| {
    found.push(Probed(this, 4, Rule::OptionChar, path.into(), vec![]))
});
probe!(Option<core::num::NonZeroU16> => |_this, _path, _found| ());

macro_rules! probe_tagged {
    ($($type:ty),*) => {$(
        impl Probe for Option<$type> {
            fn probe(&self, path: &str, found: &mut Vec<Probed>) {
                probe_tag(self, align_of::<$type>(), &[0, 1], path, found);
            }
        }
    )*};
}

probe_tagged!(u8, i16, u32, f64, [u16; 3], (u64, u8));

macro_rules! probe_tuple {
    ($($type:ident $at:tt),+) => {
        impl<$($type: Probe),+> Probe for ($($type,)+) {
            fn probe(&self, path: &str, found: &mut Vec<Probed>) {
                $(self.$at.probe(&inside(path, stringify!($at)), found);)+
            }
        }
    };
}

probe_tuple!(A 0);
probe_tuple!(A 0, B 1);
probe_tuple!(A 0, B 1, C 2);
probe_tuple!(A 0, B 1, C 2, D 3);
probe_tuple!(A 0, B 1, C 2, D 3, E 4);
probe_tuple!(A 0, B 1, C 2, D 3, E 4, F 5);

impl<T: Probe, const N: usize> Probe for [T; N] {
    fn probe(&self, path: &str, found: &mut Vec<Probed>) {
        for (i, element) in self.iter().enumerate() {
            element.probe(&format!("{path}[{i}]"), found);
        }
    }
}

fn inside(path: &str, name: &str) -> String {
    if path.is_empty() { name.into() } else { format!("{path}.{name}") }
}

fn probe_tag<T>(value: &T, size: usize, tags: &[u64], path: &str, found: &mut Vec<Probed>) {
    let at = core::ptr::from_ref(value).addr();
    found.push(Probed(at, size, Rule::Tag, path.into(), tags.into()));
}

/// Numbers of `size` bytes that break a rule.
fn broken(rule: Rule, size: usize, tags: &[u64]) -> Vec<u64> {
    match rule {
        Rule::Bool => (2..=255).collect(),
        Rule::Char => (0xd800..0xe000).chain([0x11_0000, u64::from(u32::MAX)]).collect(),
        Rule::OptionBool => (3..=255).collect(),
        Rule::OptionChar => (0xd800..0xe000).chain([0x11_0001, u64::from(u32::MAX)]).collect(),
        Rule::Nanos => vec![1_000_000_000, 1_000_000_001, u64::from(u32::MAX)],
        Rule::OptionNanos => vec![1_000_000_001, 1 << 31, u64::from(u32::MAX)],
        Rule::NotZero | Rule::NotNull => vec![0],
        _ => {
            let most = u64::MAX >> (64 - 8 * size);
            let near = |tag: &u64| [tag.wrapping_sub(1) & most, tag.wrapping_add(1) & most];
            let bits = (0..8 * size).map(|bit| 1 << bit);
            let near = tags.iter().flat_map(near);
            let mut all: Vec<u64> = near.chain(bits).chain([0, most]).collect();
            if size == 1 {
                all = (0..256).collect();
            }
            all.retain(|tag| !tags.contains(tag));
            all
        }
    }
}

/// Every rule of the type, broken in a value of it, is found there, and nothing else is.
fn flips<T: Persist + Probe>(make: impl FnOnce() -> T) {
    let types = types_of::<T>().expect("proper types");
    let mut values = Values::new(types.into_iter().map(|described| described.record.into()));
    let value = make();
    let mut probed = Vec::new();
    value.probe("", &mut probed);
    let Some(rules) = values.rules(T::TYPE_ID) else {
        assert!(probed.is_empty(), "no rules for {}", T::type_name());
        return;
    };
    let find = |bytes: &[u8]| {
        let mut found: Vec<InvalidValue> = Vec::new();
        rules.check(1 << 20, 0, bytes, &mut |invalid| found.push(invalid));
        found
    };
    let mut block = bytes(&value);
    assert_eq!(find(&block), [], "{}", T::type_name());
    for Probed(at, size, rule, field, tags) in probed {
        let at = at - core::ptr::from_ref(&value).addr();
        let whole = block.clone();
        for number in broken(rule, size, &tags) {
            block[at..at + size].copy_from_slice(&number.to_le_bytes()[..size]);
            let found = find(&block);
            assert_eq!(found.len(), 1, "{field} of {}: {number}: {found:?}", T::type_name());
            let one = &found[0];
            let place = (one.field.clone(), one.rule, one.at as usize, one.found as u64);
            assert_eq!(place, (field.clone(), rule, (1 << 20) + at, number));
        }
        block = whole;
    }
}

fn bytes<T>(value: &T) -> Vec<u8> {
    let bytes = core::ptr::from_ref(value).cast::<core::mem::MaybeUninit<u8>>();
    // SAFETY: inside the value; padding has some value on this machine.
    let byte = |i| unsafe { core::hint::black_box(*bytes.add(i)).assume_init() };
    (0..size_of::<T>()).map(byte).collect()
}

/// Size, alignment and the pointers in a value.
fn check<T: Persist>(make: impl FnOnce() -> T) {
    let record = record::<T>();
    assert_eq!((record.size, record.align), (size_of::<T>() as u64, align_of::<T>() as u64));
    let first = NEXT.load(Ordering::Relaxed);
    let value = make();
    let wanted: Vec<u64> = (first..NEXT.load(Ordering::Relaxed)).step_by(8).collect();
    let block = bytes(&value);
    let mut found = Vec::new();
    record.for_each_pointer(&block, &mut |offset, _| {
        found.push(u64::from_le_bytes(block[offset..offset + 8].try_into().expect("8 bytes")));
    });
    found.sort_unstable();
    assert_eq!(found, wanted, "{record}");
}

/// The fields of a structure or of a variant.
fn fields<T: Persist>(variant: Option<&str>) -> Vec<FieldRecord> {
    let record = record::<T>();
    match variant {
        None => record.fields,
        Some(name) => {
            record.variants.into_iter().find(|v| v.name == name).expect("the variant").fields
        }
    }
}

fn count<T: Persist>(variant: Option<&str>, count: usize) {
    assert_eq!(fields::<T>(variant).len(), count);
}

fn field<T: Persist, F: Persist>(
    variant: Option<&str>,
    name: &str,
    offset: usize,
    _: impl Fn(&T) -> &F,
) {
    let fields = fields::<T>(variant);
    let found = fields.iter().find(|field| field.name == name).expect("the field");
    let wanted = (offset as u64, size_of::<F>() as u64, F::TYPE_ID, F::type_name());
    let found = (found.offset, found.size, found.type_id, found.type_name.clone());
    assert_eq!(found, wanted, "{name}");
}

fn distance<T, F>(value: &T, find: impl Fn(&T) -> &F) -> usize {
    core::ptr::from_ref(find(value)).addr() - core::ptr::from_ref(value).addr()
}

fn variants<T: Persist>(count: usize) {
    assert_eq!(record::<T>().variants.len(), count);
}

/// The discriminant of a variant, in the record and in a value.
fn tagged<T: Persist>(name: &str, wanted: u64, size: usize, value: &T) {
    let record = record::<T>();
    let tag = record.variants.iter().find(|v| v.name == name).expect("the variant").tag;
    assert_eq!((tag.value, tag.size, tag.offset), (wanted, size as u8, 0), "{record}");
    let real = bytes(value);
    let real = real[..size].iter().rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
    assert_eq!(real, wanted);
    assert!(record.variants.iter().filter(|variant| variant.tag.holds(&bytes(value))).count() == 1);
}
