//! Catalog files: a history as the store writes it, damaged in one file or both, or forged with
//! right checksums, then read frame by frame and put together by the store's own reader.
//!
//! What is asserted: nothing panics; frames are whole; damage to one file alone loses nothing; what
//! is called whole can be read again and says the same.

use crate::file::merge;
use crate::forge;
use crate::input::Input;
use cenote_layout::catalog::{
    AtRest, ClientRecord, DataProtection, FRAME_HEADER_LEN, Frame, HeapKind, HostedClientRecord,
    LeaseRecord, PoolMode, PoolRecord, PuddleRecord, Record, decode_frame, encode_frame,
};
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::pointer::PointerKind;
use cenote_layout::puddle::Role;
use cenote_layout::types::{Condition, FieldRecord, PointerField, TypeRecord, VariantRecord};

pub(crate) fn run(input: &mut Input<'_>) {
    let (bytes, records) = history(input);
    check_frames(&bytes, Some(&records));
    check_pair(&bytes, &bytes, Some((&bytes, &records)));

    // One file damaged by media: the other has everything.
    let mut damaged = bytes.clone();
    for _ in 0..1 + input.below(4) {
        input.spoil(&mut damaged);
    }
    check_frames(&damaged, None);
    check_pair(&damaged, &bytes, Some((&bytes, &records)));
    check_pair(&bytes, &damaged, Some((&bytes, &records)));

    // Both, by an attacker who knows checksums.
    let mut other = if input.one_in(2) { damaged.clone() } else { bytes };
    for file in [&mut damaged, &mut other] {
        for _ in 0..input.below(4) {
            change(input, file);
        }
        check_frames(file, None);
    }
    check_pair(&damaged, &other, None);
    let cut = input.below(other.len() + 1);
    check_pair(&other[..cut], &other, None);
    check_pair(&[], &other, None);
}

/// Changes a file in any way.
fn change(input: &mut Input<'_>, file: &mut Vec<u8>) {
    match input.below(6) {
        0 => file.truncate(input.below(file.len() + 1)),
        1 | 2 => forge::catalog(input, file),
        3 => {
            // A piece twice, or gone.
            let at = input.below(file.len() + 1) / 8 * 8;
            let len = input.below(256).min(file.len() - at);
            if input.one_in(2) {
                let piece = file[at..at + len].to_vec();
                file.splice(at..at, piece);
            } else {
                file.drain(at..at + len);
            }
        }
        4 => {
            let len = input.below(64);
            file.extend(input.bytes(len));
        }
        _ => input.damage(file),
    }
}

/// Puts two files together as an open does.
fn check_pair(first: &[u8], second: &[u8], expected: Option<(&[u8], &[Record])>) {
    for files in
        [[Some(first), Some(second)], [None, Some(second)], [Some(first), None], [None, None]]
    {
        let merged = merge(files, 0);
        for damage in &merged.damage {
            assert!(!damage.to_string().is_empty());
        }
        // Nothing passes for whole that lacks a batch which was there.
        let later = merge(files, merged.last_batch.saturating_add(1));
        assert!(later.canonical.is_none() && later.last_batch > merged.last_batch);
        if let Some(canonical) = &merged.canonical {
            let again = merge([Some(canonical), Some(canonical)], 0);
            assert!(
                again.damage.is_empty(),
                "a catalog that was put together has damage: {:?}",
                again.damage
            );
            assert_eq!(
                again.records, merged.records,
                "a catalog that was put together reads otherwise"
            );
            assert_eq!(again.canonical.as_ref(), Some(canonical));
            assert!(again.last_batch <= merged.last_batch);
        }
        if let (Some((bytes, records)), [Some(_), Some(_)]) = (expected, files) {
            assert_eq!(merged.canonical.as_deref(), Some(bytes), "one sound file was not enough");
            assert_eq!(merged.records, records);
        }
    }
}

fn check_frames(bytes: &[u8], expected: Option<&[Record]>) {
    let mut at = 0;
    let mut found = Vec::new();
    while at < bytes.len() {
        match decode_frame(&bytes[at..]) {
            Ok(frame) => {
                assert!(
                    frame.len % 8 == 0
                        && frame.len >= FRAME_HEADER_LEN
                        && at + frame.len <= bytes.len()
                );
                assert_eq!(again(&frame), frame, "a frame that was read does not encode to itself");
                use_record(&frame.record);
                at += frame.len;
                found.push(frame.record);
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                at += 8;
            }
        }
    }
    if let Some(expected) = expected {
        assert_eq!(found, expected, "a whole file reads otherwise");
    }
}

fn again(frame: &Frame) -> Frame {
    let mut bytes = Vec::new();
    let place = (frame.index, frame.last);
    encode_frame((frame.batch, frame.journals), place, &frame.record, &mut bytes);
    match decode_frame(&bytes) {
        Ok(mut read) => {
            // Another encoding of the same record may have had another length.
            read.len = frame.len;
            read
        }
        Err(error) => panic!("what was encoded cannot be read: {error}"),
    }
}

/// Uses what a record says as its readers do: types are checked and run over blocks of any length.
fn use_record(record: &Record) {
    if let Record::Type(record) = record
        && record.check().is_ok()
    {
        for len in [0, 1, record.size.min(256) as usize, 256] {
            let block = vec![1u8; len];
            record.for_each_pointer(&block, &mut |offset, _| {
                assert!(offset + 8 <= len, "a pointer outside of its block")
            });
            let conditions = record.pointers.iter().flat_map(|pointer| &pointer.conditions);
            conditions
                .chain(record.variants.iter().map(|variant| &variant.tag))
                .for_each(|c| _ = c.holds(&block));
        }
        assert!(record.differences(record).is_empty());
    }
}

/// A file of some batches.
fn history(input: &mut Input<'_>) -> (Vec<u8>, Vec<Record>) {
    let mut bytes = Vec::new();
    let mut records = vec![Record::NextPool(PoolId(1))];
    encode_frame((1, [0; 2]), (0, true), &records[0], &mut bytes);
    for batch in 2..2 + input.below(6) as u64 {
        let count = 1 + input.below(3) as u32;
        for index in 0..count {
            let record = record(input);
            let journals = [input.below(9) as u64, batch];
            encode_frame((batch, journals), (index, index + 1 == count), &record, &mut bytes);
            records.push(record);
        }
    }
    (bytes, records)
}

fn name(input: &mut Input<'_>) -> String {
    let len = input.below(12);
    input.bytes(len).iter().map(|b| char::from(b'a' + b % 26)).collect()
}

fn record(input: &mut Input<'_>) -> Record {
    let pool = PoolId(input.number(1));
    match input.below(20) {
        0 => Record::Pool(PoolRecord {
            id: pool,
            name: name(input),
            mode: PoolMode::Direct,
            heap: HeapKind::Traced,
            puddle_size: input.number(1 << 21),
            size_max: input.number(1 << 30),
            uid: input.byte().into(),
            gid: input.byte().into(),
            permissions: 0o600,
            created_at_s: input.word(),
        }),
        1 => Record::PoolRemoved(pool),
        2 => Record::Puddle(PuddleRecord {
            uuid: Uuid(input.array()),
            pool,
            role: Role::from_u32(1 + input.below(6) as u32).unwrap_or(Role::Heap),
            index: input.number(0) as u32,
            addr: input.number(1 << 45),
            size: input.number(1 << 21),
        }),
        3 => Record::PuddleRemoved(Uuid(input.array())),
        4 => Record::Type(type_record(input)),
        5 => Record::Client(ClientRecord {
            client: Uuid(input.array()),
            log_space: Uuid(input.array()),
        }),
        6 => Record::ClientRemoved(Uuid(input.array())),
        7 => Record::Lease(LeaseRecord {
            client: Uuid(input.array()),
            pool,
            writable: input.one_in(2),
        }),
        8 => Record::LeasesEnded(Uuid(input.array())),
        9 => Record::TypeRemoved(TypeId(input.word())),
        10 => Record::HostedClient(HostedClientRecord {
            client: Uuid(input.array()),
            pid: input.word() as u32,
            start_ticks: input.word(),
            uid: input.word() as u32,
            gid: input.word() as u32,
        }),
        11 => Record::LeaseShared { client: Uuid(input.array()), pool },
        12 => Record::PoolMade { client: Uuid(input.array()), token: Uuid(input.array()), pool },
        13 => Record::ObjectLease {
            client: Uuid(input.array()),
            object: Uuid(input.array()),
            writable: input.one_in(2),
        },
        14 => Record::ObjectLeaseEnded { client: Uuid(input.array()), object: Uuid(input.array()) },
        15 => Record::PoolAtRest(pool, AtRest::Authenticated),
        16 => Record::SealedAs { puddle: Uuid(input.array()), identity: Uuid(input.array()) },
        17 => Record::PoolTorn(pool),
        18 => Record::PoolProtected(
            pool,
            DataProtection::Deferred { wait_ms: input.word() as u32 % 100_000 },
        ),
        _ => Record::PoolNotCovered(pool),
    }
}

pub(crate) fn type_record(input: &mut Input<'_>) -> TypeRecord {
    let condition = |input: &mut Input<'_>| Condition {
        offset: input.number(0),
        size: 1 << input.below(5),
        value: input.number(1),
    };
    let field = |input: &mut Input<'_>| FieldRecord {
        name: name(input),
        offset: input.number(8),
        size: input.number(8),
        type_id: TypeId(input.word()),
        type_name: name(input),
    };
    let name = name(input);
    TypeRecord {
        version: 1 + u32::from(input.one_in(16)),
        id: TypeId::of_name(&name),
        name,
        size: input.number(64),
        align: 1 << input.below(12),
        repeats: input.one_in(2),
        fields: (0..input.below(3)).map(|_| field(input)).collect(),
        variants: (0..input.below(2))
            .map(|_| VariantRecord {
                name: self::name(input),
                tag: condition(input),
                fields: vec![field(input)],
            })
            .collect(),
        pointers: (0..input.below(3))
            .map(|_| PointerField {
                offset: input.number(0),
                stride: input.number(8),
                count: input.number(2),
                kind: PointerKind(input.below(5) as u8),
                tag_mask: input.number(0),
                target: TypeId(input.word()),
                conditions: (0..input.below(2)).map(|_| condition(input)).collect(),
            })
            .collect(),
    }
}
