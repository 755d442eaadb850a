//! The names of refusals in figures.
//!
//! They are for programs that read figures: once one is in a release it stays.

use crate::message::Refusal;

impl Refusal {
    /// Names of the reasons, by [`Refusal::reason`].
    pub const REASONS: [&str; 26] = [
        "pool_unknown",
        "pool_exists",
        "pool_in_use",
        "pool_busy",
        "permission",
        "pool_full",
        "type_mismatch",
        "no_session",
        "attached",
        "limit",
        "malformed",
        "other",
        "object_unknown",
        "object_exists",
        "object_busy",
        "object_denied",
        "no_space",
        "psync_too_large",
        "no_transfer",
        "no_import",
        "import",
        "backup_failed",
        "not_still",
        "pool_torn",
        "pool_held",
        "window_full",
    ];

    /// Which reason it is.
    #[must_use]
    pub const fn reason(&self) -> usize {
        match self {
            Self::PoolUnknown => 0,
            Self::PoolExists => 1,
            Self::PoolInUse => 2,
            Self::PoolBusy { .. } => 3,
            Self::Permission { .. } => 4,
            Self::PoolFull { .. } => 5,
            Self::TypeMismatch { .. } => 6,
            Self::NoSession => 7,
            Self::Attached => 8,
            Self::Limit { .. } => 9,
            Self::Malformed { .. } => 10,
            Self::Other { .. } => 11,
            Self::ObjectUnknown => 12,
            Self::ObjectExists => 13,
            Self::ObjectBusy { .. } => 14,
            Self::ObjectDenied { .. } => 15,
            Self::NoSpace => 16,
            Self::PsyncTooLarge { .. } => 17,
            Self::NoTransfer => 18,
            Self::NoImport => 19,
            Self::Import { .. } => 20,
            Self::Backup { .. } => 21,
            Self::NotStill { .. } => 22,
            Self::PoolTorn => 23,
            Self::PoolHeld { .. } => 24,
            Self::WindowFull { .. } => 25,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;
    use crate::{ClientItem, ClientState, HeldPool, decode, encode};
    use cenote_layout::id::Uuid;

    #[test]
    fn the_kind_of_a_request_is_its_place_in_the_protocol() {
        // The first byte of a body is the number of the variant.
        for request in [
            Request::Ping,
            Request::LogSpace,
            Request::Goodbye,
            Request::UndecidedLogs,
            Request::Metrics,
            Request::AbandonImport { import: 1 },
            Request::Attend,
        ] {
            let packet = encode(1, &request).expect("encode");
            assert_eq!(usize::from(packet[16]), request.kind(), "{request:?}");
            assert_eq!(Request::KINDS.get(request.kind()), Some(&request.name()));
        }
        let last = Request::DeclareWhole { name: String::new() };
        assert_eq!(Request::KINDS.len(), last.kind() + 1);
        let last = Refusal::WindowFull { wanted: 0, window_len: 0, free: 0 };
        assert_eq!(Refusal::REASONS.len(), last.reason() + 1);
        let mut names: Vec<&str> =
            Request::KINDS.iter().chain(&Refusal::REASONS).copied().collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(
            names.len(),
            Request::KINDS.len() + Refusal::REASONS.len(),
            "a name is there twice"
        );
    }

    #[test]
    fn a_page_of_clients_comes_back() {
        let item = ClientItem {
            client: Uuid([9; 16]),
            pid: 7,
            uid: 1000,
            program: "a \"program\"\n".into(),
            state: ClientState::Failed,
            known_s: 3,
            messages: u64::MAX,
            puddles: 2,
            bytes: 1 << 40,
            pools: vec![HeldPool { name: "numbers".into(), writable: true }],
            pools_held: 12,
        };
        let reply = crate::Reply::Clients { items: vec![item.clone(), item], more: true };
        let packet = encode(5, &reply).expect("encode");
        assert_eq!(decode(&packet), Ok((5, reply)));
    }
}
