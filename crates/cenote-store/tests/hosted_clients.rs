//! What the catalog says about a daemon's clients, and who may read that.

use crate::common::Dir;
use cenote_layout::catalog::HostedClientRecord;
use cenote_layout::header::{HeaderError, read, seal};
use cenote_layout::id::Uuid;
use cenote_layout::puddle::{PuddleHeader, Role};
use cenote_layout::superblock::{
    COPY_SIZE, INCOMPAT_ALWAYS, INCOMPAT_HOSTED, INCOMPAT_POOLS_AT_REST, Superblock,
};
use cenote_store::relocate::ImportManifest;
use cenote_store::{
    Access, AtRest, Credentials, Hosting, NewObject, OpenError, OpenOptions, PoolOptions, Store,
    StoreError,
};

fn hosting(dir: &Dir) -> Store {
    // SAFETY: this process opens no pool and attaches no object.
    let hosting = Some(unsafe { Hosting::new() });
    dir.try_open(OpenOptions { hosting, ..OpenOptions::default() }).unwrap().0
}

fn admit(store: &Store, number: u8) -> Uuid {
    let client = Uuid::from_random_bytes([number; 16]);
    let hosted_client =
        HostedClientRecord { client, pid: 0x7fff_ffff, start_ticks: 1, uid: 7, gid: 7 };
    store.admit(hosted_client).unwrap();
    client
}

fn new(name: &str, number: u8) -> NewObject {
    NewObject {
        id: Uuid::from_random_bytes([number; 16]),
        name: name.into(),
        data_len: 5000,
        permissions: 0o640,
        at_rest: AtRest::None,
        header: Vec::new(),
    }
}

fn user(uid: u32, groups: &[u32]) -> Credentials {
    Credentials { uid, gid: uid, groups: groups.to_vec() }
}

/// Of stamps every store that was opened says so.
fn incompat(dir: &Dir) -> Vec<u64> {
    let bytes = std::fs::read(dir.file("superblock")).unwrap();
    let copies = bytes.chunks_exact(COPY_SIZE as usize);
    copies.map(|copy| read::<Superblock>(copy, true).unwrap().prefix.incompat).collect()
}

#[test]
fn a_store_says_that_it_was_a_daemons_before_its_catalog_does() {
    let dir = Dir::formatted();
    let store = hosting(&dir);
    store.create_pool("a", &PoolOptions { permissions: 0o666, ..PoolOptions::default() }).unwrap();
    let client = admit(&store, 1);
    assert_eq!(incompat(&dir), [INCOMPAT_ALWAYS; 2], "nothing was granted");
    store.client_open(client, &user(7, &[]), "a", Access::ReadWrite).unwrap();
    assert!(incompat(&dir).contains(&(INCOMPAT_ALWAYS | INCOMPAT_HOSTED)));
    store.client_end(client, true).unwrap();
    store.end_hosting().unwrap();
    drop(store);
    // For good: the records are in the catalog's files. This release reads it.
    let (store, _) = dir.open();
    store.close().unwrap();
    assert_eq!(incompat(&dir), [INCOMPAT_ALWAYS | INCOMPAT_HOSTED; 2]);
    // One that does not know a bit refuses the store, and the bits of one header are nothing to
    // another.
    let mut bytes = std::fs::read(dir.file("superblock")).unwrap();
    for copy in bytes.chunks_exact_mut(COPY_SIZE as usize) {
        let mut block = read::<Superblock>(copy, true).unwrap();
        block.prefix.incompat |= 1 << 40;
        seal(&mut block);
        copy.copy_from_slice(zerocopy::IntoBytes::as_bytes(&block));
    }
    std::fs::write(dir.file("superblock"), bytes).unwrap();
    let refused = dir.try_open(OpenOptions::default()).unwrap_err();
    let unknown = HeaderError::Incompatible { what: "superblock", unknown: 1 << 40 };
    assert!(
        matches!(&refused, OpenError::Superblock { source, .. } if *source == unknown),
        "{refused}"
    );
    let puddle = std::fs::read_dir(dir.file("puddles")).unwrap().next().unwrap().unwrap().path();
    let bytes = std::fs::read(puddle).unwrap();
    let mut header = read::<PuddleHeader>(&bytes, true).unwrap();
    header.prefix.incompat |= INCOMPAT_POOLS_AT_REST;
    seal(&mut header);
    let refused = read::<PuddleHeader>(zerocopy::IntoBytes::as_bytes(&header), false).unwrap_err();
    assert!(
        matches!(refused, HeaderError::Incompatible { unknown: INCOMPAT_POOLS_AT_REST, .. }),
        "{refused}"
    );
}

#[test]
fn objects_have_one_writer_or_many_readers_and_leases_outlive_the_daemon_not_the_process() {
    let dir = Dir::formatted();
    let store = hosting(&dir);
    let (one, two) = (admit(&store, 1), admit(&store, 2));
    let owner = user(7, &[]);
    let made = store.client_create_object(&owner, &new("a", 9)).unwrap();
    assert_eq!(store.client_create_object(&owner, &new("a", 9)).unwrap(), made, "asked again");
    let twice = [new("a", 8), new("b", 9)];
    for taken in twice {
        let refused = store.client_create_object(&owner, &taken).unwrap_err();
        assert!(matches!(refused, StoreError::ObjectExists { .. }), "{refused}");
    }
    let bad = NewObject { header: vec![1; 64], ..new("c", 7) };
    assert!(store.client_create_object(&owner, &bad).is_err(), "a header without protection");
    let attach = |client, who: &Credentials, writable| {
        store.client_attach_object(client, who, "a", writable)
    };
    attach(one, &owner, true).unwrap();
    assert!(store.client_object(two, made.id()).is_err());
    let busy = attach(two, &owner, false).unwrap_err();
    assert!(
        matches!(busy, StoreError::ObjectBusy { writing: true, pid: 0x7fff_ffff, .. }),
        "{busy}"
    );
    // SAFETY: this process has no object attached.
    assert!(unsafe { store.client_remove_object(&owner, "a") }.is_err());
    store.client_detach_object(one, made.id()).unwrap();
    store.client_detach_object(one, made.id()).unwrap();
    for (who, reads, writes) in [
        (user(7, &[]), true, true),
        (user(8, &[7]), true, false),
        (user(8, &[]), false, false),
        (user(0, &[]), false, false),
    ] {
        assert_eq!(attach(one, &who, false).is_ok(), reads, "{who:?}");
        store.client_detach_object(one, made.id()).unwrap();
        assert_eq!(attach(one, &who, true).is_ok(), writes, "{who:?}");
        store.client_detach_object(one, made.id()).unwrap();
    }
    attach(one, &owner, false).unwrap();
    attach(two, &owner, false).unwrap();
    assert_eq!((store.object_holders("a").len(), store.object_use(made.id())), (2, Some(false)));
    assert!(matches!(
        attach(one, &owner, true),
        Err(StoreError::ObjectBusy { writing: false, .. })
    ));
    store.client_end(two, false).unwrap();
    attach(one, &owner, true).unwrap();
    store.abandon();
    // The process is none that lives.
    let store = hosting(&dir);
    assert_eq!((store.object_holders("a").len(), store.hosted_clients().len()), (0, 0));
    // SAFETY: this process has no object attached.
    unsafe { store.client_remove_object(&owner, "a") }.unwrap();
    store.end_hosting().unwrap();
}

/// Every function for clients that changes something, called for a session that was not admitted
/// and for the store's own, which has a lease on the pool.
#[test]
fn a_store_that_was_not_opened_to_serve_does_nothing_for_clients() {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    store.create_pool("a", &PoolOptions::default()).unwrap();
    let own = store.open_pool("a", Access::ReadWrite).unwrap();
    let (pool, owner) = (own.id(), user(0, &[]));
    let manifest = || ImportManifest { pools: Vec::new(), types: Vec::new() };
    let puddle = store.puddle_records()[0];
    let file = || std::fs::File::open(dir.file("superblock")).unwrap();
    for client in [Uuid::from_random_bytes([1; 16]), store.client()] {
        let hosted_client = HostedClientRecord { client, pid: 1, start_ticks: 1, uid: 0, gid: 0 };
        let token = Uuid::from_random_bytes([2; 16]);
        let by = (client, token);
        let done: [(&str, bool); 21] = [
            ("admit", store.admit(hosted_client).is_ok()),
            ("end_hosting", store.end_hosting().is_ok()),
            ("create", store.client_create(by, &owner, "b", &PoolOptions::default()).is_ok()),
            ("open", store.client_open(client, &owner, "a", Access::ReadWrite).is_ok()),
            ("members", store.client_members(client, pool).is_ok()),
            ("puddles", store.client_puddles(client, pool, 0, 9).is_ok()),
            ("take", store.client_take(client, pool, 1 << 20, Role::Heap).is_ok()),
            ("remove", store.client_remove(client, &owner, "a").is_ok()),
            ("primary", store.client_primary(client, &puddle).is_ok()),
            ("psync", store.client_psync(client, &[puddle.uuid], (&file(), 0)).is_ok()),
            ("ensure", store.client_ensure(client, pool, puddle.addr, 4096).is_ok()),
            ("traced", store.client_traced(client, pool).is_ok()),
            ("log", store.client_log(client, Role::Log, 1 << 20).is_ok()),
            ("end", store.client_end(client, true).is_ok()),
            ("finish", store.client_finish(&owner, "a").is_ok()),
            ("source", store.client_source(&owner, "a").is_ok()),
            ("randomize", store.client_randomize(&owner, "a").is_ok()),
            ("import", store.client_begin_import(&owner, manifest()).is_ok()),
            ("object", store.client_create_object(&owner, &new("o", 9)).is_ok()),
            ("attach", store.client_attach_object(client, &owner, "o", true).is_ok()),
            ("attached", store.client_object(client, token).is_ok()),
        ];
        let done: Vec<&str> =
            done.iter().filter(|(_, done)| *done).map(|(name, _)| *name).collect();
        assert!(done.is_empty(), "{done:?}");
    }
    assert!(store.check_usable().is_ok() && store.objects().is_empty() && store.pools().len() == 1);
}
