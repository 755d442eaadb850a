use super::*;
use crate::Request;
use cenote_layout::id::Uuid;

fn sample() -> Request {
    let spec = PoolSpec {
        mode: PoolMode::Direct,
        heap: HeapKind::Traced,
        puddle_size: 2 << 20,
        size_max: u64::MAX,
        permissions: 0o640,
    };
    Request::CreatePool { name: "a pool".into(), spec, token: Uuid([3; 16]) }
}

#[test]
fn messages_come_back_as_they_were_sent() {
    let psync =
        Request::PsyncObjects { transfer: 9, objects: vec![Uuid([3; 16])], runs: 7, settled: true };
    let attach = Request::AttachObject { name: "an object".into(), writable: true };
    for (number, message) in
        [sample(), Request::Ping, Request::Hello { resume: Some(Uuid([7; 16])) }, psync, attach]
            .into_iter()
            .enumerate()
    {
        let packet = encode(number as u32, &message).expect("encode");
        assert_eq!(decode::<Request>(&packet), Ok((number as u32, message)));
        assert_eq!(peek(&packet), number as u32);
    }
}

#[test]
fn whatever_is_cut_off_or_added_is_refused() {
    let packet = encode(9, &sample()).expect("encode");
    for len in 0..packet.len() {
        assert!(decode::<Request>(&packet[..len]).is_err(), "{len} bytes");
    }
    let mut long = packet.clone();
    long.push(0);
    assert_eq!(
        decode::<Request>(&long),
        Err(DecodeError::Length { found: long.len(), said: packet.len() as u64 })
    );
    // The length says so too, and the body has a byte that nothing reads.
    long[12] += 1;
    assert_eq!(decode::<Request>(&long), Err(DecodeError::Body));
}

#[test]
fn other_versions_and_other_programs_are_named() {
    let mut packet = encode(9, &Request::Ping).expect("encode");
    packet[4] = 1;
    assert_eq!(decode::<Request>(&packet), Err(DecodeError::Version { found: 1 }));
    packet[0] = b'X';
    assert_eq!(decode::<Request>(&packet), Err(DecodeError::Magic));
}

#[test]
fn a_length_that_no_packet_has_takes_no_memory() {
    // A list of types that says it has 2^60 elements.
    let mut packet = encode(1, &Request::RegisterTypes { records: Vec::new() }).expect("encode");
    packet.pop();
    packet.extend_from_slice(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10]);
    let len = (packet.len() - HEADER_LEN) as u32;
    packet[12..16].copy_from_slice(&len.to_le_bytes());
    assert_eq!(decode::<Request>(&packet), Err(DecodeError::Body));
}

#[test]
fn what_is_too_long_is_not_sent() {
    let name = "x".repeat(MESSAGE_LEN_MAX);
    let refused = encode(1, &Request::RemovePool { name });
    assert!(matches!(refused, Err(DecodeError::TooLong { .. })), "{refused:?}");
}
