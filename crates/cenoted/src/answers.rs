//! Parts of answers that all kinds of requests have.

use cenote_layout::error_kind::ErrorKind;
use std::os::fd::OwnedFd;

use cenote_proto::{MESSAGE_LEN_MAX, Refusal, Reply};
use cenote_store::StoreError;
use std::fmt::Display;

/// Bytes of a page of a list: what is left of a message for the rest.
pub(crate) const PAGE_LEN: usize = MESSAGE_LEN_MAX - 4096;

pub(crate) type Answer = (Reply, Vec<OwnedFd>);

pub(crate) fn done() -> Result<Answer, Refusal> {
    Ok((Reply::Done, Vec::new()))
}

pub(crate) fn malformed(detail: &str) -> Refusal {
    Refusal::Malformed { detail: detail.into() }
}

/// Doubts that fit into a message.
pub(crate) fn short(doubts: Vec<String>) -> Vec<String> {
    doubts.into_iter().take(16).map(|text| text.chars().take(1000).collect()).collect()
}

/// A store's error as the client hears it; no part of it grows with what the client sent.
pub(crate) fn refusal(error: StoreError) -> Refusal {
    match error {
        StoreError::PoolUnknown { .. } => Refusal::PoolUnknown,
        StoreError::PoolExists { .. } => Refusal::PoolExists,
        StoreError::PoolInUse { .. } => Refusal::PoolInUse,
        StoreError::PoolTorn { .. } => Refusal::PoolTorn,
        StoreError::PoolBusy { by, .. } => Refusal::PoolBusy { by },
        StoreError::Permission { what, .. } => Refusal::Permission { what: what.into() },
        StoreError::PoolFull { wanted, used, size_max, .. } => {
            Refusal::PoolFull { wanted, used, size_max }
        }
        StoreError::TypeMismatch(mismatch) => {
            Refusal::TypeMismatch { known: Box::new(mismatch.known) }
        }
        StoreError::NoClient { .. } => Refusal::NoSession,
        StoreError::ObjectUnknown { .. } => Refusal::ObjectUnknown,
        StoreError::ObjectExists { .. } => Refusal::ObjectExists,
        StoreError::ObjectBusy { writing, pid, .. } => Refusal::ObjectBusy { writing, pid },
        StoreError::ObjectDenied { what, uid, mode, owner, .. } => {
            Refusal::ObjectDenied { what: what.into(), uid, mode, owner }
        }
        StoreError::PoolHeld { name, by } => Refusal::PoolHeld { name, by },
        StoreError::WindowFull { wanted, window_len, free } => {
            Refusal::WindowFull { wanted, window_len, free }
        }
        StoreError::Medium(error) if error.is_no_space() => Refusal::NoSpace,
        StoreError::PsyncTooLarge { limit, .. } => Refusal::PsyncTooLarge { limit },
        StoreError::Import { detail } => {
            Refusal::Import { detail: detail.chars().take(2000).collect() }
        }
        other => {
            let kind = other.kind();
            refused_as(kind, other)
        }
    }
}

/// A refusal for which there is no other answer.
pub(crate) fn refused_as(kind: ErrorKind, detail: impl Display) -> Refusal {
    let detail = detail.to_string().chars().take(2000).collect();
    Refusal::Other { kind: kind.code().into(), detail }
}
