//! Values of the standard library: options, tuples and times. Their layouts are Cenote's: tests
//! write their bytes down.

use crate::common::{pointers_in, ptr};
use crate::support::directory;
use cenote::persist::{InvalidValue, Rule, Values, types_of};
use cenote::{Persist, Ptr, Reader, Result, Store};
use std::mem::{MaybeUninit, offset_of, size_of};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[derive(Persist, Clone, Copy, Debug, PartialEq)]
#[persist(name = "std_values::Event")]
struct Event {
    age: Option<u8>,
    year: Option<i16>,
    count: Option<u32>,
    ratio: Option<f64>,
    is_open: Option<bool>,
    letter: Option<char>,
    rgb: Option<[u8; 3]>,
    place: (i32, u8),
    range: Option<(u64, u64)>,
    many: [(u16, Option<u16>); 2],
    six: (u8, u16, u32, u64, bool, char),
    alone: (u8,),
    took: Duration,
    at: SystemTime,
    paused: Option<Duration>,
    ended: Option<SystemTime>,
}

fn some() -> Event {
    Event {
        age: Some(255),
        year: Some(-44),
        count: Some(u32::MAX),
        ratio: Some(0.5),
        is_open: Some(true),
        letter: Some('\u{10ffff}'),
        rgb: Some([1, 2, 3]),
        place: (-1, 2),
        range: Some((3, 4)),
        many: [(5, Some(6)), (7, None)],
        six: (1, 2, 3, 4, true, 'x'),
        alone: (9,),
        took: Duration::MAX,
        at: UNIX_EPOCH - Duration::new(3, 1),
        paused: Some(Duration::ZERO),
        ended: Some(UNIX_EPOCH + Duration::new(1 << 40, 999_999_999)),
    }
}

const NONE: Event = Event {
    age: None,
    year: None,
    count: None,
    ratio: None,
    is_open: None,
    letter: None,
    rgb: None,
    place: (0, 0),
    range: None,
    many: [(0, None); 2],
    six: (0, 0, 0, 0, false, '\0'),
    alone: (0,),
    took: Duration::ZERO,
    at: UNIX_EPOCH,
    paused: None,
    ended: None,
};

#[test]
fn values_of_the_standard_library_are_there_after_the_store_is_opened_again() -> Result<()> {
    let dir = directory();
    Store::open(dir.path())?.pool("p")?.write(|tx| {
        let (first, second) = (tx.alloc(some())?, tx.alloc(NONE)?);
        tx.set_root(first)?;
        tx.set_root_at(1, Some(second))
    })?;
    let pool = Store::open(dir.path())?.pool("p")?;
    let view = pool.read()?;
    let read = |index| view.get(view.root_at::<Event>(index)?.expect("set")).copied();
    assert_eq!((read(0)?, read(1)?), (some(), NONE));
    assert!(pool.check()?.is_sound());
    Ok(())
}

/// The bytes of a value; padding is 0xAA.
fn bytes<T: Persist + Copy>(value: T) -> Vec<u8> {
    let mut slot = MaybeUninit::<T>::uninit();
    let bytes = slot.as_mut_ptr().cast::<u8>();
    // SAFETY: inside the slot, which has a value of each byte before and after; a compiler that
    // copies no padding leaves it as it was.
    unsafe {
        bytes.write_bytes(0xaa, size_of::<T>());
        slot.as_mut_ptr().write(value);
        std::hint::black_box(bytes);
        (0..size_of::<T>()).map(|at| bytes.add(at).read()).collect()
    }
}

#[test]
fn options_times_and_their_absence_have_the_bytes_that_the_format_says() {
    assert_eq!((bytes(Some(7_u8)), bytes(Some(0x102_u16))), (vec![1, 7], vec![1, 0, 2, 1]));
    assert_eq!(bytes(Some(7_u32)), [1, 0, 0, 0, 7, 0, 0, 0]);
    assert_eq!(bytes(Some(1_i64))[..9], [1, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(bytes(Some([9_u8; 3])), [1, 9, 9, 9]);
    assert_eq!((bytes(None::<u8>)[0], &bytes(None::<u32>)[..4]), (0, &[0; 4][..]));
    assert_eq!((bytes(None::<bool>), bytes(Some(true))), (vec![2], vec![1]));
    assert_eq!((bytes(None::<char>), bytes(Some('a'))), (vec![0, 0, 17, 0], vec![97, 0, 0, 0]));
    assert_eq!(bytes(Duration::new(2, 3))[..12], [2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
    let none = 1_000_000_000_u32.to_le_bytes();
    assert_eq!(
        (&bytes(None::<Duration>)[8..12], &bytes(None::<SystemTime>)[8..12]),
        (&none[..], &none[..])
    );
    assert_eq!(bytes(UNIX_EPOCH - Duration::from_secs(1))[..8], [255; 8]);
}

#[test]
fn records_say_where_tags_fields_and_pointers_are() {
    let record = Option::<u32>::record();
    assert_eq!((record.name.as_str(), record.size, record.align), ("Option<u32>", 8, 4));
    let tags: Vec<_> = record.variants.iter().map(|v| (v.name.as_str(), v.tag.value)).collect();
    assert_eq!(tags, [("None", 0), ("Some", 1)]);
    assert_eq!((record.variants[1].tag.size, record.variants[1].fields[0].offset), (4, 4));
    let record = <(u8, u64, u16)>::record();
    assert_eq!(record.name, "(u8, u64, u16)");
    let offsets: Vec<_> = record.fields.iter().map(|f| (f.name.as_str(), f.offset)).collect();
    let at = |at: usize| at as u64;
    let wanted = [
        ("0", at(offset_of!((u8, u64, u16), 0))),
        ("1", at(offset_of!((u8, u64, u16), 1))),
        ("2", at(offset_of!((u8, u64, u16), 2))),
    ];
    assert!(wanted.iter().all(|field| offsets.contains(field)), "{offsets:?}");
    assert_eq!(<(u8,)>::type_name(), "(u8,)");
    assert_ne!(<(u8, u16)>::TYPE_ID, <(u16, u8)>::TYPE_ID);
    assert_ne!(<((u8, u16),)>::TYPE_ID, <(u8, u16)>::TYPE_ID);
    let pair = (7_u8, Some(ptr::<u64>(0x1000)), ptr::<u32>(0x2000));
    let mut found: Vec<_> = pointers_in(&pair).iter().map(|(_, word, _)| *word).collect();
    found.sort_unstable();
    assert_eq!(found, [0x1000, 0x2000]);
    // A pointer is one where the tag says so: all of these bytes may be a number without it.
    let of = |value: Option<(Option<Ptr<u64>>, u64)>| pointers_in(&value);
    assert_eq!(of(Some((Some(ptr(0x3000)), 1))).len(), 1);
    assert!(of(None).is_empty());
}

/// What is found in an event of which some bytes are changed.
fn found(at: usize, changed: &[u8]) -> Vec<InvalidValue> {
    let types = types_of::<Event>().expect("proper types");
    let mut values = Values::new(types.into_iter().map(|described| described.record.into()));
    let rules = values.rules(Event::TYPE_ID).expect("there are rules");
    let mut block = bytes(some());
    block[at..at + changed.len()].copy_from_slice(changed);
    let mut found = Vec::new();
    rules.check(0x1000, 0, &block, &mut |invalid| found.push(invalid));
    found
}

#[test]
fn bytes_that_are_no_option_and_no_time_are_found() {
    assert_eq!(found(0, &[]), []);
    let second = 1_000_000_000_u32.to_le_bytes();
    let more = 1_000_000_001_u32.to_le_bytes();
    let many = offset_of!(Event, many) + offset_of!((u16, Option<u16>), 1);
    let six = offset_of!(Event, six) + offset_of!((u8, u16, u32, u64, bool, char), 4);
    for (at, changed, rule, field) in [
        (offset_of!(Event, age), &[7][..], Rule::Tag, "age"),
        (offset_of!(Event, year), &[1, 1], Rule::Tag, "year"),
        (offset_of!(Event, count) + 3, &[1], Rule::Tag, "count"),
        (offset_of!(Event, ratio) + 7, &[1], Rule::Tag, "ratio"),
        (offset_of!(Event, range), &[2], Rule::Tag, "range"),
        (many, &[2], Rule::Tag, "many[0].1"),
        (offset_of!(Event, is_open), &[3], Rule::OptionBool, "is_open"),
        (offset_of!(Event, letter), &[1, 0, 0x11], Rule::OptionChar, "letter"),
        (offset_of!(Event, rgb), &[255], Rule::Tag, "rgb"),
        (six, &[2], Rule::Bool, "six.4"),
        (offset_of!(Event, took) + 8, &second, Rule::Nanos, "took.nanos"),
        (offset_of!(Event, at) + 8, &second, Rule::Nanos, "at.nanos"),
        (offset_of!(Event, paused) + 8, &more, Rule::OptionNanos, "paused.nanos"),
        (offset_of!(Event, ended) + 8, &more, Rule::OptionNanos, "ended.nanos"),
    ] {
        let all = found(at, changed);
        let all: Vec<_> = all.iter().map(|one| (one.rule, one.field.as_str())).collect();
        assert_eq!(all, [(rule, field)]);
    }
    // Of what is missing no byte but the tag counts.
    assert_eq!(found(offset_of!(Event, paused) + 8, &second), []);
    assert_eq!(found(offset_of!(Event, is_open), &[2]), []);
}

#[test]
fn a_time_counts_seconds_from_1970_on() {
    let parts = |time: SystemTime| {
        let bytes = bytes(time);
        let seconds = i64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
        (seconds, u32::from_le_bytes(bytes[8..12].try_into().expect("4 bytes")))
    };
    let (second, half) = (Duration::from_secs(1), Duration::from_millis(500));
    assert_eq!(parts(UNIX_EPOCH + 3 * second + half), (3, 500_000_000));
    assert_eq!(parts(UNIX_EPOCH - second - half), (-2, 500_000_000));
    assert_eq!(parts(UNIX_EPOCH + Duration::from_nanos(7)), (0, 7));
}
