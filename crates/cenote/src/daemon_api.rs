//! The requests of a store that a daemon keeps: [`DaemonApi`] over a connection (`connect.rs`).
//!
//! Each method is one request, or one for each page of a long answer. To send a request twice is to
//! make it once, so the connection may repeat any of them after a daemon has ended.

use crate::answers::{error_of, listed, one_only, unexpected};
use crate::connect::{Client, new_token};
use crate::line::pages_of_pools;
use cenote_layout::catalog::{PoolRecord, PuddleRecord};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::puddle::Role;
use cenote_layout::types::TypeRecord;
use cenote_log::CrashKind;
use cenote_proto::{MESSAGE_LEN_MAX, PoolSpec, PuddlePlace, Reply, Request, encode};
use cenote_store::relocate::ImportManifest;
use cenote_store::{
    Access, BackedUp, DaemonApi, Grant, Granted, ListedObject, LogDecision, MemberList, NewObject,
    ObjectInfo, PermissionChange, PoolListing, PoolOptions, PoolStart, Psync, StoreError,
    UndecidedLogs,
};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

impl DaemonApi for Client {
    fn create_pool(
        &self,
        name: &str,
        options: &PoolOptions,
    ) -> core::result::Result<PoolId, StoreError> {
        let spec = PoolSpec {
            mode: options.mode,
            heap: options.heap,
            puddle_size: options.puddle_size,
            size_max: options.size_max,
            permissions: options.permissions,
        };
        let token = new_token()?;
        match self.answer(&Request::CreatePool { name: name.into(), spec, token }, name)?.0 {
            Reply::Created(id) => Ok(id),
            other => Err(unexpected(&other)),
        }
    }

    fn remove_pool(&self, name: &str) -> core::result::Result<(), StoreError> {
        self.done(&Request::RemovePool { name: name.into() }, name)
    }

    fn pools(&self) -> core::result::Result<Vec<PoolListing>, StoreError> {
        pages_of_pools(|request| Ok(self.answer(request, "")?.0), |other| unexpected(&other))
    }

    fn open_pool(&self, name: &str, access: Access) -> core::result::Result<Grant, StoreError> {
        let request = match access {
            Access::Shared => Request::SharePool { name: name.into() },
            Access::ReadWrite | Access::ReadOnly => {
                Request::OpenPool { name: name.into(), writable: access.writes() }
            }
        };
        let reply = self.answer(&request, name)?.0;
        let (record, start, trace_due, doubts, types, member) = match reply {
            Reply::Pool { record, start, trace_due, doubts, types } => {
                (record, start, trace_due, doubts, types, None)
            }
            Reply::Shared { record, start, trace_due, doubts, types, member } => {
                (record, start, trace_due, doubts, types, Some(member))
            }
            other => return Err(unexpected(&other)),
        };
        let start = match start {
            0 => PoolStart::Fresh,
            1 => PoolStart::Clean,
            2 => PoolStart::Dirty(CrashKind::Process),
            _ => PoolStart::Dirty(CrashKind::Power),
        };
        let puddles = self.puddles_from(record.id, 0)?;
        Ok(Grant { record, puddles, start, trace_due, doubts, member, types })
    }

    fn puddles_from(
        &self,
        pool: PoolId,
        first: u32,
    ) -> core::result::Result<Vec<Granted>, StoreError> {
        self.all_puddles(pool, first, |first| Request::Puddles { pool, first })
    }

    fn primaries_from(
        &self,
        pool: PoolId,
        first: u32,
    ) -> core::result::Result<Vec<Granted>, StoreError> {
        self.all_puddles(pool, first, |first| Request::Primaries { pool, first })
    }

    fn psync_pools(
        &self,
        puddles: &[Uuid],
        runs: u32,
        transfer: &File,
    ) -> core::result::Result<Psync, StoreError> {
        let puddles = puddles.to_vec();
        self.psync(
            |transfer| Request::PsyncPools { transfer, puddles: puddles.clone(), runs },
            transfer,
        )
    }

    fn objects(&self, name: Option<&str>) -> core::result::Result<Vec<ListedObject>, StoreError> {
        if let Some(name) = name {
            return Ok(vec![self.one_object(&Request::Object { name: name.into() }, name)?.0]);
        }
        let mut found: Vec<ListedObject> = Vec::new();
        loop {
            let after = found.last().map(|last| last.object.record.name.clone());
            match self.answer(&Request::Objects { after: after.clone() }, "")?.0 {
                Reply::Objects { items, more } => {
                    found.extend(items.into_iter().map(listed));
                    let last = found.last().map(|last| last.object.record.name.clone());
                    if !more || last <= after {
                        return Ok(found);
                    }
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    fn create_object(&self, new: &NewObject) -> core::result::Result<ObjectInfo, StoreError> {
        let request = Request::CreateObject {
            id: new.id,
            name: new.name.clone(),
            data_len: new.data_len,
            permissions: new.permissions,
            at_rest: new.at_rest,
            header: new.header.clone(),
        };
        Ok(self.one_object(&request, &new.name)?.0.object)
    }

    fn destroy_object(&self, name: &str) -> core::result::Result<(), StoreError> {
        self.done(&Request::DestroyObject { name: name.into() }, name)
    }

    fn attach_object(
        &self,
        name: &str,
        writable: bool,
    ) -> core::result::Result<(ListedObject, File), StoreError> {
        let (listed, file) =
            self.one_object(&Request::AttachObject { name: name.into(), writable }, name)?;
        Ok((listed, file.ok_or_else(one_only)?))
    }

    fn detach_object(&self, object: Uuid) -> core::result::Result<(), StoreError> {
        self.done(&Request::DetachObject { object }, "")
    }

    fn psync_objects(
        &self,
        objects: &[Uuid],
        runs: u32,
        settled: bool,
        transfer: &File,
    ) -> core::result::Result<Psync, StoreError> {
        let objects = objects.to_vec();
        self.psync(
            |transfer| Request::PsyncObjects { transfer, objects: objects.clone(), runs, settled },
            transfer,
        )
    }

    fn set_object_owner(
        &self,
        name: &str,
        change: PermissionChange,
    ) -> core::result::Result<(), StoreError> {
        let PermissionChange { uid, gid, permissions } = change;
        self.done(&Request::SetObjectOwner { name: name.into(), uid, gid, permissions }, name)
    }

    fn members(&self, pool: PoolId, patient: bool) -> core::result::Result<MemberList, StoreError> {
        let (request, name) = (Request::Members { pool }, pool.to_string());
        let answer =
            if patient { self.answer(&request, &name)?.0 } else { self.ask_now(&request)?.0 };
        match answer {
            Reply::Refused(refusal) => Err(error_of(refusal, &name)),
            Reply::Members { living, doubts } => Ok(MemberList { living, doubts }),
            other => Err(unexpected(&other)),
        }
    }

    fn take_puddle(
        &self,
        pool: PoolId,
        index: u32,
        size: u64,
        role: Role,
    ) -> core::result::Result<Granted, StoreError> {
        let metadata = role == Role::Metadata;
        self.puddle(&Request::TakePuddle { pool, index, size, metadata }, &pool.to_string())
    }

    fn log_puddle(&self, role: Role, size: u64) -> core::result::Result<Granted, StoreError> {
        let request =
            if role == Role::LogSpace { Request::LogSpace } else { Request::LogPuddle { size } };
        self.puddle(&request, "")
    }

    fn register_types(&self, records: &[&TypeRecord]) -> core::result::Result<(), StoreError> {
        // As many at a time as fit into a message. What a type refers to need not be there before
        // it.
        let mut piece: Vec<TypeRecord> = Vec::new();
        let mut len = 0;
        for record in records {
            let record = (*record).clone();
            let more = match encode(0, &Request::RegisterTypes { records: vec![record.clone()] }) {
                Ok(packet) => packet.len(),
                Err(cenote_proto::DecodeError::TooLong { len }) => {
                    let name = record.name.chars().take(200).collect();
                    return Err(StoreError::TypeTooLong { name, len, most: MESSAGE_LEN_MAX });
                }
                Err(error) => {
                    return Err(StoreError::Refused {
                        kind: ErrorKind::Misuse,
                        detail: error.to_string(),
                    });
                }
            };
            if len + more > MESSAGE_LEN_MAX && !piece.is_empty() {
                self.register_piece(core::mem::take(&mut piece))?;
                len = 0;
            }
            len += more;
            piece.push(record);
        }
        if piece.is_empty() { Ok(()) } else { self.register_piece(piece) }
    }

    fn types(&self) -> core::result::Result<Vec<TypeRecord>, StoreError> {
        let (mut types, mut after): (Vec<TypeRecord>, Option<TypeId>) = (Vec::new(), None);
        loop {
            match self.answer(&Request::Types { after }, "")?.0 {
                Reply::Types { records, more } => {
                    let last = records.last().map(|record| record.id);
                    types.extend(records);
                    if !more || last <= after {
                        return Ok(types);
                    }
                    after = last;
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    fn trace_done(&self, pool: PoolId) -> core::result::Result<(), StoreError> {
        self.done(&Request::TraceDone { pool }, &pool.to_string())
    }

    fn ensure_space(
        &self,
        pool: PoolId,
        addr: u64,
        len: u64,
    ) -> core::result::Result<(), StoreError> {
        self.done(&Request::EnsureSpace { pool, addr, len }, &pool.to_string())
    }

    fn set_permissions(
        &self,
        name: &str,
        change: PermissionChange,
    ) -> core::result::Result<(), StoreError> {
        let PermissionChange { uid, gid, permissions } = change;
        self.done(&Request::SetPermissions { name: name.into(), uid, gid, permissions }, name)
    }

    fn undecided_logs(&self) -> core::result::Result<Vec<UndecidedLogs>, StoreError> {
        match self.answer(&Request::UndecidedLogs, "")?.0 {
            Reply::UndecidedLogs { items } => Ok(items
                .into_iter()
                .map(|item| UndecidedLogs { client: item.client, pools: item.pools, why: item.why })
                .collect()),
            other => Err(unexpected(&other)),
        }
    }

    fn decide_logs(
        &self,
        client: Uuid,
        decision: LogDecision,
    ) -> core::result::Result<(), StoreError> {
        let apply = decision == LogDecision::Apply;
        self.done(&Request::DecideLogs { client, apply }, &format!("of client {client}"))
    }

    fn declare_whole(&self, name: &str) -> core::result::Result<(), StoreError> {
        self.done(&Request::DeclareWhole { name: name.into() }, name)
    }

    fn grant_to_read(&self, name: &str) -> core::result::Result<PoolRecord, StoreError> {
        match self.answer(&Request::OpenPool { name: name.into(), writable: false }, name)?.0 {
            Reply::Pool { record, .. } | Reply::Shared { record, .. } => Ok(record),
            other => Err(unexpected(&other)),
        }
    }

    fn page_of_puddles(
        &self,
        pool: PoolId,
        first: u32,
    ) -> core::result::Result<(Vec<Granted>, bool), StoreError> {
        self.puddles(&Request::Puddles { pool, first }, &pool.to_string())
    }

    fn places(&self) -> core::result::Result<Vec<PuddleRecord>, StoreError> {
        let (mut places, mut after): (Vec<PuddleRecord>, Option<(PoolId, u32)>) =
            (Vec::new(), None);
        loop {
            match self.answer(&Request::Places { after }, "")?.0 {
                Reply::Places { items, more } => {
                    let last = items.last().map(|place| (place.pool, place.index));
                    places.extend(items.into_iter().map(|place| {
                        let PuddlePlace { pool, index, addr, size } = place;
                        PuddleRecord { uuid: Uuid::NIL, pool, role: Role::Heap, index, addr, size }
                    }));
                    if !more || last <= after {
                        return Ok(places);
                    }
                    after = last;
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    fn clone_pool(
        &self,
        name: &str,
        copy_name: &str,
    ) -> core::result::Result<(PoolId, bool, u64), StoreError> {
        let request =
            Request::ClonePool { name: name.into(), copy: copy_name.into(), token: new_token()? };
        let reply = match self.answer(&request, name) {
            // It is the copy's name that is taken.
            Err(StoreError::PoolExists { .. }) => {
                return Err(StoreError::PoolExists { name: copy_name.into() });
            }
            reply => reply?.0,
        };
        match reply {
            Reply::Imported { pools } if pools.len() == 1 => {
                pools.first().copied().ok_or_else(|| unexpected(&Reply::Done))
            }
            other => Err(unexpected(&other)),
        }
    }

    fn randomize_pool(&self, name: &str) -> core::result::Result<(), StoreError> {
        self.done(&Request::RandomizePool { name: name.into() }, name)
    }

    fn check_import(&self, manifest: &ImportManifest) -> core::result::Result<(), StoreError> {
        match self.ask_import(manifest, true)? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn begin_import(&self, manifest: &ImportManifest) -> core::result::Result<u64, StoreError> {
        match self.ask_import(manifest, false)? {
            Reply::Import { number } => Ok(number),
            other => Err(unexpected(&other)),
        }
    }

    fn fill_import(
        &self,
        import: u64,
        slot: u32,
        pieces: &[(u64, u32)],
        bytes: &[u8],
    ) -> core::result::Result<(), StoreError> {
        let pieces = pieces.to_vec();
        let fill =
            |transfer| Request::FillImport { import, slot, transfer, pieces: pieces.clone() };
        match self.with_transfer(|file| file.write_all_at(bytes, 0), fill)? {
            Reply::Done => Ok(()),
            Reply::Refused(refusal) => Err(error_of(refusal, "that is imported")),
            other => Err(unexpected(&other)),
        }
    }

    fn commit_import(
        &self,
        import: u64,
        pools: u32,
    ) -> core::result::Result<Vec<(PoolId, bool, u64)>, StoreError> {
        let token = new_token()?;
        match self.answer(&Request::CommitImport { import, token, pools }, "that is imported")?.0 {
            Reply::Imported { pools: made } if made.len() == pools as usize => Ok(made),
            other => Err(unexpected(&other)),
        }
    }

    fn abandon_import(&self, import: u64) -> core::result::Result<(), StoreError> {
        self.done(&Request::AbandonImport { import }, "")
    }

    fn attend(&self, patient: bool) -> core::result::Result<OwnedFd, StoreError> {
        let request = Request::Attend;
        let (reply, mut files) =
            if patient { self.answer(&request, "")? } else { self.ask_now(&request)? };
        match (reply, files.pop()) {
            (Reply::Ear, Some(ear)) => Ok(ear),
            (other, _) => Err(unexpected(&other)),
        }
    }

    fn backup(
        &self,
        target: &Path,
        more: &mut dyn FnMut() -> bool,
    ) -> core::result::Result<BackedUp, StoreError> {
        crate::backup::ask_for((&self.path, self.options), self.store, target, more)
    }

    fn goodbye(&self) -> core::result::Result<(), StoreError> {
        self.done(&Request::Goodbye, "")
    }
}
