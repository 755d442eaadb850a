//! Pools that are exported, imported, copied and moved through a daemon, by clients under several
//! users.

use crate::common::{Actor, Counter, Daemon, add, count, make};
use crate::hostile::Raw;
use crate::limits::figure;
use crate::permissions::{ALICE, BOB, STAFF, as_user, is_root};
use cenote::{
    Access, ArchivingError, Error, ExportOptions, HeapKind, ImportOptions, ImportedArchive,
    Persist, PoolMode, PoolOptions, Ptr, Reader, Store,
};
use cenote_proto::{Reply, Request};
use cenote_store::StoreError;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// All kinds of heaps.
const HEAPS: [HeapKind; 3] = [HeapKind::Traced, HeapKind::Logged, HeapKind::WEAR];

fn readable() -> PoolOptions {
    PoolOptions { permissions: 0o644, ..PoolOptions::default() }
}

pub(crate) fn export(store: &Store, pools: &[&str]) -> cenote::Result<Vec<u8>> {
    Ok(store.export(pools, Vec::new(), ExportOptions::default())?.0)
}

pub(crate) fn import(
    store: &Store,
    archive: &[u8],
    names: &[&str],
) -> cenote::Result<ImportedArchive> {
    let names = names.iter().map(ToString::to_string).collect();
    store.import(archive, ImportOptions { names, ..ImportOptions::default() })
}

/// Puddles that have files, of all kinds.
pub(crate) fn files(daemon: &Daemon) -> usize {
    std::fs::read_dir(daemon.store().join("puddles")).expect("list").count()
}

fn is_denied<T: std::fmt::Debug>(result: &cenote::Result<T>) -> bool {
    matches!(
        result,
        Err(Error::Store(StoreError::Permission { .. })
            | Error::Archive(ArchivingError::Store(StoreError::Permission { .. })))
    )
}

#[test]
fn a_pool_goes_into_an_archive_and_comes_back_beside_itself_and_in_another_window() {
    let modes = [PoolMode::Direct, PoolMode::Shadowed];
    for (heap, mode) in HEAPS.into_iter().flat_map(|heap| modes.map(|mode| (heap, mode))) {
        let (from, to) = (Daemon::start(&[]), Daemon::start(&[]));
        let archive = {
            let store = from.connect();
            make(&store, "numbers", 500, &PoolOptions { mode, heap, ..PoolOptions::default() });
            drop(store);
            let store = from.connect();
            let archive = export(&store, &["numbers"]).expect("export");
            for name in ["a copy", "another"] {
                let made = import(&store, &archive, &[name]).expect("import");
                assert!(
                    made.imported.pools[0].moved && made.imported.pools[0].pending > 0,
                    "{made:?}"
                );
                assert_eq!(store.pools().iter().filter(|pool| pool.record.name == name).count(), 1);
            }
            // All at once, each with its own list.
            let pools =
                ["numbers", "a copy", "another"].map(|name| store.pool(name).expect("open"));
            assert_eq!(add(&pools[1]), 501);
            assert_eq!(pools.each_ref().map(count), [500, 501, 500]);
            assert_eq!(pools[1].check().expect("check").leaked_blocks, 0);
            archive
        };
        let store = to.connect();
        let made = import(&store, &archive, &[]).expect("import");
        assert_eq!(made.imported.pools[0].name, "numbers");
        let pool = store.pool("numbers").expect("open");
        assert_eq!((count(&pool), add(&pool)), (500, 501));
        drop(pool);
        drop(store);
        // What came through the daemon is a store as any other.
        for mut daemon in [from, to] {
            daemon.wait_until("goodbyes are heard", |stat| stat.sessions == 1);
            daemon.stop();
            let store = Store::open(daemon.store()).expect("open");
            assert!(
                store.report().clean && store.report().damage.is_empty(),
                "{:?}",
                store.report()
            );
            for info in store.pools() {
                assert!(count(&store.pool(&info.record.name).expect("open")) >= 500);
            }
        }
    }
}

/// Descriptors come by the page, and two that read one pool do not take them from each other.
#[test]
fn exports_at_one_time_ask_for_descriptors_by_the_page() {
    let daemon = Daemon::start(&[]);
    let options =
        PoolOptions { puddle_size: 128 << 10, size_max: 8 << 20, ..PoolOptions::default() };
    {
        let store = daemon.connect();
        make(&store, "one puddle", 1, &options);
        make(&store, "numbers", 1, &options);
        let pool = store.pool("numbers").expect("open");
        // Until it has no room.
        while pool.write(|tx| tx.alloc([0_u64; 4096]).map(drop)).is_ok() {}
    }
    daemon.wait_until("the session has ended", |stat| stat.sessions == 1);
    let store = daemon.connect();
    let asked = ["one puddle", "numbers"].map(|name| {
        let before = daemon.stat().messages;
        export(&store, &[name]).expect("export");
        daemon.stat().messages - before
    });
    let puddles = store.pools().iter().map(|pool| pool.puddles).max();
    assert!(
        puddles > Some(4) && asked[0] == asked[1],
        "{asked:?} messages for 1 and {puddles:?} puddles"
    );
    for _ in 0..20 {
        std::thread::scope(|scope| {
            let two = [0, 1]
                .map(|_| scope.spawn(|| export(&store, &["numbers"]).map(|bytes| bytes.len())));
            let [one, other] = two.map(|thread| thread.join().expect("no panic").expect("export"));
            assert_eq!(one, other);
        });
    }
}

#[derive(Persist)]
struct Pointing {
    there: Option<Ptr<Counter>>,
}

#[test]
fn an_export_tells_where_pointers_lead_that_leave_the_pool_and_takes_those_pools_along() {
    let daemon = Daemon::start(&[]);
    {
        let store = daemon.connect();
        make(&store, "numbers", 3, &PoolOptions::default());
        let numbers = store.pool("numbers").expect("open");
        let there = numbers.read().expect("read").root::<Counter>().expect("root");
        let pointing = store.create_pool("pointing", &PoolOptions::default()).expect("create");
        pointing
            .write(|tx| -> cenote::Result<()> {
                let from = tx.alloc(Pointing { there })?;
                tx.set_root(from)
            })
            .expect("write");
    }
    let store = daemon.connect();
    let (_, exported) =
        store.export(&["pointing"], Vec::new(), ExportOptions::default()).expect("export");
    let left: Vec<(&str, u64)> =
        exported.left.iter().map(|left| (&*left.name, left.pointers)).collect();
    assert_eq!(left, [("numbers", 1)]);
    let options = ExportOptions { with_targets: true, ..ExportOptions::default() };
    let (archive, exported) = store.export(&["pointing"], Vec::new(), options).expect("export");
    assert!(exported.left.is_empty() && exported.pools.len() == 2, "{exported:?}");
    let names: Vec<String> = exported.pools.iter().map(|name| format!("{name} again")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    import(&store, &archive, &names).expect("import");
    let again =
        [store.pool("numbers again"), store.pool("pointing again")].map(|pool| pool.expect("open"));
    let view = again[1].read().expect("read");
    let there = view.get(view.root::<Pointing>().expect("root").expect("set")).expect("get").there;
    let root = again[0].read().expect("read").root::<Counter>().expect("root");
    assert_eq!(there, root, "the copy points into the copy");
    assert_eq!(count(&again[0]), 3);
}

#[test]
fn who_may_not_read_a_pool_gets_neither_an_archive_nor_a_copy_of_it() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    as_user(ALICE, STAFF, || {
        let store = daemon.connect();
        make(&store, "hers", 5, &PoolOptions { permissions: 0o600, ..PoolOptions::default() });
        make(&store, "public", 7, &readable());
    });
    let archive = as_user(BOB, BOB, || {
        let store = daemon.connect();
        assert!(is_denied(&export(&store, &["hers"])), "an archive of what he may not read");
        assert!(is_denied(&store.clone_pool("hers", "his")), "a copy of it");
        assert!(
            is_denied(&store.randomize_pool("hers")) && is_denied(&store.randomize_pool("public"))
        );
        let archive = export(&store, &["public"]).expect("what he may read");
        let with = ExportOptions { with_targets: true, ..ExportOptions::default() };
        assert!(
            store.export(&["public"], Vec::new(), with).is_ok(),
            "no pointer of it leads to hers"
        );
        drop(store);
        let store = daemon.connect();
        let copy = store.clone_pool("public", "his").expect("a copy");
        assert!(copy.moved);
        import(&store, &archive, &["his too"]).expect("import");
        for name in ["his", "his too"] {
            let info =
                store.pools().into_iter().find(|info| info.record.name == name).expect("listed");
            assert_eq!((info.record.uid, info.record.gid), (BOB, BOB), "it is the importer's");
            assert_eq!(add(&store.pool(name).expect("open")), 8);
        }
        archive
    });
    as_user(ALICE, STAFF, || {
        let store = daemon.connect();
        assert_eq!(count(&store.pool("public").expect("hers still")), 7);
        assert!(is_denied(&store.remove_pool("his").map(drop)), "his are his");
        assert!(matches!(
            import(&store, &archive, &["his"]),
            Err(Error::Archive(ArchivingError::Store(StoreError::PoolExists { name })))
                if name == "his"
        ));
    });
}

#[test]
fn an_export_with_targets_of_which_one_may_not_be_read_is_refused() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    as_user(ALICE, STAFF, || {
        let store = daemon.connect();
        make(&store, "hers", 5, &PoolOptions { permissions: 0o600, ..PoolOptions::default() });
        let hers = store.pool("hers").expect("open");
        let there = hers.read().expect("read").root::<Counter>().expect("root");
        let set = store.create_pool("public", &readable()).expect("create").write(
            |tx| -> cenote::Result<()> {
                let from = tx.alloc(Pointing { there })?;
                tx.set_root(from)
            },
        );
        set.expect("write");
    });
    daemon.wait_until("the session has ended", |stat| stat.sessions == 1);
    as_user(BOB, BOB, || {
        let store = daemon.connect();
        let (_, exported) =
            store.export(&["public"], Vec::new(), ExportOptions::default()).expect("export");
        let left: Vec<(&str, u64)> =
            exported.left.iter().map(|left| (&*left.name, left.pointers)).collect();
        assert_eq!(left, [("hers", 1)], "every user may list its name");
        let with = ExportOptions { with_targets: true, ..ExportOptions::default() };
        let refused = store.export(&["public"], Vec::new(), with).map(drop);
        assert!(is_denied(&refused), "{refused:?}");
    });
}

#[test]
fn an_imported_pool_is_read_by_two_clients_and_written_by_none_meanwhile() {
    HEAPS.into_iter().for_each(an_imported_pool_is_read);
}

fn an_imported_pool_is_read(heap: HeapKind) {
    let daemon = Daemon::start(&[]);
    {
        let store = daemon.connect();
        make(&store, "original", 20, &PoolOptions { heap, ..PoolOptions::default() });
    }
    {
        let store = daemon.connect();
        let archive = export(&store, &["original"]).expect("export");
        import(&store, &archive, &["numbers"]).expect("import");
    }
    // Both ask at once for what is still to be rewritten.
    let mut readers = [Actor::start("reader", &daemon), Actor::start("reader", &daemon)];
    for reader in &mut readers {
        assert_eq!(reader.hear(), "open");
        reader.tell("count");
        assert_eq!(reader.hear(), "20");
    }
    let store = daemon.connect();
    let busy = store.pool_with("numbers", Access::ReadWrite);
    assert!(matches!(busy, Err(Error::Store(StoreError::PoolBusy { .. }))), "{busy:?}");
    // It can be copied though, because no client writes it.
    store.clone_pool("numbers", "copy").expect("a copy");
    assert_eq!(count(&store.pool("copy").expect("open")), 20);
    readers.into_iter().for_each(|reader| assert!(reader.ends()));
}

#[test]
fn a_pool_that_a_client_writes_is_not_copied_nor_exported_nor_moved() {
    let daemon = Daemon::start(&[]);
    {
        make(&daemon.connect(), "numbers", 1, &PoolOptions::default());
    }
    let mut writer = Actor::start("holder", &daemon);
    assert_eq!(writer.hear(), "inside");
    let store = daemon.connect();
    let before = files(&daemon);
    let busy = |error: &StoreError| {
        matches!(error, StoreError::PoolBusy { .. } | StoreError::PoolHeld { .. })
    };
    let exported = export(&store, &["numbers"]);
    assert!(matches!(&exported, Err(Error::Archive(ArchivingError::Store(error))) if busy(error)));
    assert!(
        matches!(&store.clone_pool("numbers", "copy"), Err(Error::Store(error)) if busy(error))
    );
    assert!(matches!(&store.randomize_pool("numbers"), Err(Error::Store(error)) if busy(error)));
    assert_eq!(files(&daemon), before);
    // It dies: a client that asks for the pool waits for the replay of its logs.
    writer.kill();
    store.clone_pool("numbers", "copy").expect("a copy");
    assert_eq!(count(&store.pool("copy").expect("open")), 1, "without the half of a transaction");
}

#[test]
fn a_pool_gets_other_addresses_and_pointers_from_other_pools_follow() {
    HEAPS.into_iter().for_each(a_pool_gets_other_addresses);
}

fn a_pool_gets_other_addresses(heap: HeapKind) {
    let daemon = Daemon::start(&[]);
    {
        let store = daemon.connect();
        make(&store, "numbers", 50, &PoolOptions { heap, ..PoolOptions::default() });
        let shadowed = PoolOptions { mode: PoolMode::Shadowed, heap, ..PoolOptions::default() };
        make(&store, "shadowed", 9, &shadowed);
        let there = store
            .pool("numbers")
            .expect("open")
            .read()
            .expect("read")
            .root::<Counter>()
            .expect("root");
        let pointing = store.create_pool("pointing", &PoolOptions::default()).expect("create");
        let set = pointing.write(|tx| -> cenote::Result<()> {
            let from = tx.alloc(Pointing { there })?;
            tx.set_root(from)
        });
        set.expect("write");
        // Not while this session has pools.
        drop(pointing);
        let used = store.randomize_pool("numbers");
        assert!(matches!(used, Err(Error::Store(StoreError::PoolHeld { .. }))), "{used:?}");
    }
    let root_of = |store: &Store| {
        let pool = store.pool("numbers").expect("open");
        let root = pool.read().expect("read").root::<Counter>().expect("root").expect("set");
        root.addr()
    };
    let before = root_of(&daemon.connect());
    for name in ["numbers", "shadowed", "numbers"] {
        daemon.wait_until("the session has ended", |stat| stat.sessions == 1);
        daemon.connect().randomize_pool(name).expect("move");
    }
    // No client has opened one of them since: what one move left, the next had to do first.
    assert!(figure(&daemon, "cenoted_pointers_rewritten_total") > 50.0);
    daemon.wait_until("the session has ended", |stat| stat.sessions == 1);
    let store = daemon.connect();
    assert_ne!(root_of(&store), before);
    let numbers = store.pool("numbers").expect("open");
    let pointing = store.pool("pointing").expect("open");
    let view = pointing.read().expect("read");
    let there = view.get(view.root::<Pointing>().expect("root").expect("set")).expect("get").there;
    assert_eq!(there, numbers.read().expect("read").root::<Counter>().expect("root"));
    assert_eq!((count(&numbers), count(&store.pool("shadowed").expect("open"))), (50, 9));
}

#[test]
fn a_descriptor_that_a_client_kept_from_before_a_move_writes_nowhere() {
    let daemon = Daemon::start(&[]);
    make(&daemon.connect(), "numbers", 40, &PoolOptions::default());
    daemon.wait_until("the session has ended", |stat| stat.sessions == 1);
    let mut raw = Raw::connect(&daemon);
    let granted = raw.ask(&Request::OpenPool { name: "numbers".into(), writable: true }).0;
    let Reply::Pool { record, .. } = granted else { panic!("{granted:?}") };
    let kept = raw.ask(&Request::Puddles { pool: record.id, first: 0 }).1;
    let kept = File::from(kept.into_iter().next().expect("a descriptor"));
    assert_eq!(raw.ask(&Request::Goodbye).0, Reply::Done);
    drop(raw);
    daemon.wait_until("the session has ended", |stat| stat.sessions == 1);
    daemon.connect().randomize_pool("numbers").expect("move");
    daemon.wait_until("the session has ended", |stat| stat.sessions == 1);
    let store = daemon.connect();
    let pool = store.pool("numbers").expect("open");
    assert_eq!(count(&pool), 40);
    kept.write_all_at(&[0xff; 1 << 20], 4096).expect("into a file that no pool has any more");
    kept.set_len(0).expect("and cut short");
    assert_eq!((count(&pool), add(&pool)), (40, 41));
    assert_eq!(pool.check().expect("check").leaked_blocks, 0);
}

#[test]
fn an_import_counts_from_its_beginning_and_no_more_when_it_comes_to_nothing() {
    let archive = {
        let daemon = Daemon::start(&[]);
        make(&daemon.connect(), "numbers", 2, &PoolOptions::default());
        daemon.wait_until("the session has ended", |stat| stat.sessions == 1);
        export(&daemon.connect(), &["numbers"]).expect("export")
    };
    let daemon = Daemon::start(&["--client-puddles", "3"]);
    let store = daemon.connect();
    let empty = files(&daemon);
    for name in ["a", "b", "c"] {
        // One that fails at its end, because its archive is cut short, is no loss.
        assert!(import(&store, &archive[..archive.len() - 8], &[name]).is_err());
        assert_eq!(files(&daemon), empty + store.pools().len(), "nothing is left");
        import(&store, &archive, &[name]).expect("import");
    }
    let more = import(&store, &archive, &["d"]).expect_err("a fourth puddle").to_string();
    assert!(more.contains("3 puddles"), "{more}");
    let more = store.clone_pool("a", "d").expect_err("a fourth puddle").to_string();
    assert!(more.contains("3 puddles"), "{more}");
    assert_eq!((store.pools().len(), files(&daemon)), (3, empty + 3));
}
