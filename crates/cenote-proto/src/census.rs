//! The names of messages and refusals in figures.
//!
//! Names of kinds and reasons are for programs that read figures: once one is in a release it
//! stays.

use crate::message::{Refusal, Request};

impl Request {
    /// Names of the kinds of requests, by [`Request::kind`].
    pub const KINDS: [&str; 44] = [
        "hello",
        "ping",
        "stat",
        "pools",
        "create_pool",
        "remove_pool",
        "open_pool",
        "puddles",
        "take_puddle",
        "log_space",
        "log_puddle",
        "types",
        "register_types",
        "trace_done",
        "ensure_space",
        "set_permissions",
        "goodbye",
        "share_pool",
        "members",
        "set_aside",
        "decide_logs",
        "clients",
        "metrics",
        "primaries",
        "psync_pools",
        "objects",
        "object",
        "create_object",
        "destroy_object",
        "attach_object",
        "detach_object",
        "psync_objects",
        "set_object_owner",
        "parcel",
        "places",
        "clone_pool",
        "randomize_pool",
        "begin_import",
        "fill_import",
        "commit_import",
        "abandon_import",
        "attend",
        "backup",
        "declare_whole",
    ];

    /// Which kind it is.
    #[must_use]
    pub const fn kind(&self) -> usize {
        match self {
            Self::Hello { .. } => 0,
            Self::Ping => 1,
            Self::Stat => 2,
            Self::Pools { .. } => 3,
            Self::CreatePool { .. } => 4,
            Self::RemovePool { .. } => 5,
            Self::OpenPool { .. } => 6,
            Self::Puddles { .. } => 7,
            Self::TakePuddle { .. } => 8,
            Self::LogSpace => 9,
            Self::LogPuddle { .. } => 10,
            Self::Types { .. } => 11,
            Self::RegisterTypes { .. } => 12,
            Self::TraceDone { .. } => 13,
            Self::EnsureSpace { .. } => 14,
            Self::SetPermissions { .. } => 15,
            Self::Goodbye => 16,
            Self::SharePool { .. } => 17,
            Self::Members { .. } => 18,
            Self::SetAside => 19,
            Self::DecideLogs { .. } => 20,
            Self::Clients { .. } => 21,
            Self::Metrics => 22,
            Self::Primaries { .. } => 23,
            Self::PsyncPools { .. } => 24,
            Self::Objects { .. } => 25,
            Self::Object { .. } => 26,
            Self::CreateObject { .. } => 27,
            Self::DestroyObject { .. } => 28,
            Self::AttachObject { .. } => 29,
            Self::DetachObject { .. } => 30,
            Self::PsyncObjects { .. } => 31,
            Self::SetObjectOwner { .. } => 32,
            Self::Parcel => 33,
            Self::Places { .. } => 34,
            Self::ClonePool { .. } => 35,
            Self::RandomizePool { .. } => 36,
            Self::BeginImport { .. } => 37,
            Self::FillImport { .. } => 38,
            Self::CommitImport { .. } => 39,
            Self::AbandonImport { .. } => 40,
            Self::Attend => 41,
            Self::Backup { .. } => 42,
            Self::DeclareWhole { .. } => 43,
        }
    }
}

impl Refusal {
    /// Names of the reasons, by [`Refusal::reason`].
    pub const REASONS: [&str; 24] = [
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
        "no_parcel",
        "no_import",
        "import",
        "backup_failed",
        "not_still",
        "pool_torn",
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
            Self::NoParcel => 18,
            Self::NoImport => 19,
            Self::Import { .. } => 20,
            Self::Backup { .. } => 21,
            Self::NotStill { .. } => 22,
            Self::PoolTorn => 23,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClientItem, ClientState, HeldPool, decode, encode};
    use cenote_layout::id::Uuid;

    #[test]
    fn the_kind_of_a_request_is_its_place_in_the_protocol() {
        // The first byte of a body is the number of the variant.
        for request in [
            Request::Ping,
            Request::LogSpace,
            Request::Goodbye,
            Request::SetAside,
            Request::Metrics,
            Request::AbandonImport { import: 1 },
            Request::Attend,
        ] {
            let packet = encode(1, &request).expect("encode");
            assert_eq!(usize::from(packet[16]), request.kind(), "{request:?}");
            assert!(Request::KINDS.get(request.kind()).is_some(), "{request:?}");
        }
        let last = Request::DeclareWhole { name: String::new() };
        assert_eq!(Request::KINDS.len(), last.kind() + 1);
        assert_eq!(Refusal::REASONS.len(), Refusal::PoolTorn.reason() + 1);
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
