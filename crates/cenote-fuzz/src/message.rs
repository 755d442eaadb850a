//! Fuzzes messages between a daemon and its clients: whole ones of every kind, with fields that no
//! client would send; and such that are damaged, cut off, or made of nothing but chance, with a
//! header that fits.
//!
//! It asserts:
//!
//! * nothing panics;
//! * what is decoded is encoded to the same bytes, or to shorter ones that mean the same (numbers
//!   may be written in more bytes than they need);
//! * a message that was not touched comes back.

use crate::catalog::type_record;
use crate::input::Input;
use cenote_journal::{Limits, Receiver};
use cenote_layout::catalog::{AtRest, HeapKind, PoolMode};
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::types::TypeRecord;
use cenote_proto::{ImportPoolSpec, ImportSpec, PoolSpec, Reply, Request, decode, encode, peek};
use std::os::unix::fs::FileExt;

pub(crate) fn run(input: &mut Input<'_>) {
    let request = request(input);
    let number = input.word() as u32;
    let Ok(mut packet) = encode(number, &request) else { return };
    assert_eq!(decode::<Request>(&packet), Ok((number, request)), "a message does not come back");
    match input.below(4) {
        0 => packet.truncate(input.below(packet.len() + 1)),
        1 => {
            for _ in 0..=input.below(4) {
                let at = input.below(packet.len());
                packet[at] ^= 1 << input.below(8);
            }
        }
        2 => {
            packet.truncate(16);
            packet.extend((0..input.below(600)).map(|_| input.word() as u8));
            fit(&mut packet);
        }
        _ => {
            let at = 16 + input.below(packet.len() - 15).min(packet.len() - 16);
            packet.insert(at, input.word() as u8);
            fit(&mut packet);
        }
    }
    let _ = peek(&packet);
    parcel(&packet);
    import(input);
    again::<Request>(&packet);
    again::<Reply>(&packet);
}

/// The list of lines that comes with a psync: whatever it says, what is accepted lies in its
/// primaries.
fn parcel(bytes: &[u8]) {
    let Ok(file) = cenote_sys::twin::nameless_file("cenote-fuzz") else { return };
    if file.write_all_at(bytes, 0).is_err() {
        return;
    }
    let limits = |lines| Limits { from: 4096, len: 1 << 20, lines };
    for count in [1, bytes.len() as u32 / 16] {
        let _ = Receiver::read(&file, count, &[limits(true), limits(false)]);
    }
}

/// What an import is to be, damaged: it is read or refused, and what is read is the same again.
fn import(input: &mut Input<'_>) {
    let pool = |input: &mut Input<'_>| ImportPoolSpec {
        name: text(input),
        old_id: PoolId(input.word()),
        mode: if input.one_in(2) { PoolMode::Direct } else { PoolMode::Shadowed },
        heap: HeapKind::Traced,
        puddle_size: input.word(),
        size_max: input.word(),
        permissions: input.word() as u32,
        torn: input.one_in(2),
        puddles: (0..input.below(4)).map(|_| (input.word(), input.word())).collect(),
    };
    let spec =
        ImportSpec { pools: (0..input.below(3)).map(|_| pool(input)).collect(), types: Vec::new() };
    let Ok(mut bytes) = spec.encode() else { return };
    assert_eq!(ImportSpec::decode(&bytes), Ok(spec), "a list does not come back");
    for _ in 0..=input.below(3) {
        if bytes.is_empty() || input.one_in(4) {
            bytes.push(input.word() as u8);
        } else if input.one_in(3) {
            bytes.truncate(input.below(bytes.len()));
        } else {
            let at = input.below(bytes.len());
            bytes[at] = input.word() as u8;
        }
    }
    if let Ok(read) = ImportSpec::decode(&bytes) {
        let again = read.encode().expect("what was read can be written");
        assert_eq!(ImportSpec::decode(&again), Ok(read));
    }
}

/// Makes the header's length that of the body.
fn fit(packet: &mut [u8]) {
    let len = (packet.len() - 16) as u32;
    packet[12..16].copy_from_slice(&len.to_le_bytes());
}

/// What can be read can be written, and read again.
fn again<T>(packet: &[u8])
where
    T: serde::de::DeserializeOwned + serde::Serialize + PartialEq + core::fmt::Debug,
{
    let Ok((number, message)) = decode::<T>(packet) else { return };
    let Ok(written) = encode(number, &message) else { return };
    assert!(written.len() <= packet.len(), "{message:?} grows");
    assert_eq!(decode::<T>(&written), Ok((number, message)));
}

fn text(input: &mut Input<'_>) -> String {
    (0..input.below(40)).map(|_| char::from(input.word() as u8)).collect()
}

fn request(input: &mut Input<'_>) -> Request {
    let some = input.one_in(2);
    let pool = PoolId(input.word());
    match input.below(Request::KINDS.len()) {
        0 => Request::Hello { resume: some.then(|| Uuid(input.array())) },
        1 => Request::Ping,
        2 => Request::Stat,
        3 => Request::Pools { after: some.then_some(pool) },
        4 => {
            let spec = pool_spec(some, input);
            Request::CreatePool { name: text(input), spec, token: Uuid(input.array()) }
        }
        5 => Request::RemovePool { name: text(input) },
        6 => Request::OpenPool { name: text(input), writable: some },
        7 => Request::Puddles { pool, first: input.word() as u32 },
        8 => Request::TakePuddle { pool, index: input.word() as u32, size: input.word() },
        9 => Request::LogSpace,
        10 => Request::LogPuddle { size: input.word() },
        11 => Request::Types { after: some.then(|| TypeId(input.word())) },
        12 => Request::TraceDone { pool },
        13 => Request::EnsureSpace { pool, addr: input.word(), len: input.word() },
        14 => {
            let half = |some: bool, input: &mut Input<'_>| some.then(|| input.word() as u32);
            Request::SetPermissions {
                name: text(input),
                uid: half(some, input),
                gid: half(!some, input),
                permissions: half(some, input),
            }
        }
        15 => Request::Primaries { pool, first: input.word() as u32 },
        16 => Request::PsyncPools {
            parcel: input.word(),
            puddles: ids(input),
            runs: input.word() as u32,
        },
        25 => Request::SharePool { name: text(input) },
        26 => Request::Members { pool },
        27 => Request::SetAside,
        28 => Request::DecideLogs { client: Uuid(input.array()), apply: some },
        29 => Request::Clients { after: some.then(|| Uuid(input.array())) },
        30 => Request::Metrics,
        31 => Request::Parcel,
        39 => Request::Attend,
        40 => Request::Backup { target: text(input), within_ms: input.word() as u32 },
        41 => Request::DeclareWhole { name: text(input) },
        42 => Request::RegisterTypes { records: types(input) },
        kind @ 17..=24 => about_object(kind, some, input),
        kind @ 32..=38 => about_move(kind, some, pool, input),
        _ => Request::Goodbye,
    }
}

/// A request about an object.
fn about_object(kind: usize, some: bool, input: &mut Input<'_>) -> Request {
    match kind {
        17 => Request::Objects { after: some.then(|| text(input)) },
        18 => Request::Object { name: text(input) },
        19 => Request::CreateObject {
            id: Uuid(input.array()),
            name: text(input),
            data_len: input.word(),
            permissions: input.word() as u32,
            at_rest: if some { AtRest::None } else { AtRest::Authenticated },
            header: (0..input.below(200)).map(|_| input.word() as u8).collect(),
        },
        20 => Request::DestroyObject { name: text(input) },
        21 => Request::AttachObject { name: text(input), writable: some },
        22 => Request::DetachObject { object: Uuid(input.array()) },
        23 => Request::PsyncObjects {
            parcel: input.word(),
            objects: ids(input),
            runs: input.word() as u32,
            settled: some,
        },
        _ => Request::SetObjectOwner {
            name: text(input),
            uid: None,
            gid: None,
            permissions: Some(0o640),
        },
    }
}

/// A request about pools that are copied, moved or imported.
fn about_move(kind: usize, some: bool, pool: PoolId, input: &mut Input<'_>) -> Request {
    match kind {
        32 => Request::Places { after: some.then(|| (pool, input.word() as u32)) },
        33 => {
            Request::ClonePool { name: text(input), copy: text(input), token: Uuid(input.array()) }
        }
        34 => Request::RandomizePool { name: text(input) },
        35 => Request::BeginImport {
            parcel: input.word(),
            len: input.word() as u32,
            check_only: some,
        },
        36 => Request::FillImport {
            import: input.word(),
            slot: input.word() as u32,
            parcel: input.word(),
            pieces: (0..input.below(5)).map(|_| (input.word(), input.word() as u32)).collect(),
        },
        37 => Request::CommitImport {
            import: input.word(),
            token: Uuid(input.array()),
            pools: input.word() as u32,
        },
        _ => Request::AbandonImport { import: input.word() },
    }
}

fn pool_spec(is_direct: bool, input: &mut Input<'_>) -> PoolSpec {
    PoolSpec {
        mode: if is_direct { PoolMode::Direct } else { PoolMode::Shadowed },
        heap: HeapKind::Traced,
        puddle_size: input.word(),
        size_max: input.word(),
        permissions: input.word() as u32,
    }
}

fn types(input: &mut Input<'_>) -> Vec<TypeRecord> {
    (0..input.below(3)).map(|_| type_record(input)).collect()
}

fn ids(input: &mut Input<'_>) -> Vec<Uuid> {
    (0..input.below(5)).map(|_| Uuid(input.array())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Random;
    use std::collections::BTreeSet;

    #[test]
    fn requests_of_every_kind_are_made() {
        let kinds: BTreeSet<usize> = (0..4000)
            .map(|seed| request(&mut Input::new(&Random(seed).bytes(512))).kind())
            .collect();
        assert_eq!(kinds, (0..Request::KINDS.len()).collect());
    }
}
