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
use cenote_layout::catalog::{HeapKind, PoolMode};
use cenote_layout::id::PoolId;
use cenote_proto::samples::{self, Source};
use cenote_proto::{ImportPoolSpec, ImportSpec, Reply, Request, decode, encode, peek};
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
    transfer(&packet);
    import(input);
    again::<Request>(&packet);
    again::<Reply>(&packet);
}

/// The list of lines that comes with a psync: whatever it says, what is accepted lies in its
/// primaries.
fn transfer(bytes: &[u8]) {
    let Ok(file) = cenote_sys::dual_mapping::nameless_file("cenote-fuzz") else { return };
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

impl Source for Input<'_> {
    fn below(&mut self, end: u64) -> u64 {
        Input::below(self, end as usize) as u64
    }

    fn word(&mut self) -> u64 {
        Input::word(self)
    }

    fn text(&mut self) -> String {
        text(self)
    }
}

fn request(input: &mut Input<'_>) -> Request {
    let kind = Input::below(input, Request::KINDS.len());
    match samples::request(kind, input) {
        // Types that chance alone does not make: whole ones, with fields and variants that fit.
        Some(Request::RegisterTypes { .. }) => {
            let records = (0..Input::below(input, 3)).map(|_| type_record(input)).collect();
            Request::RegisterTypes { records }
        }
        Some(request) => request,
        None => Request::Ping,
    }
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
