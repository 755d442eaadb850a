//! Pools with a wear heap, as users make them, look at them and find damage in them.

use crate::common::{Fixture, empty};
use cenote::{HeapKind, PoolOptions, Store};
use std::os::unix::fs::FileExt as _;

/// A store with pool `plain`, and pool `wear`, which has blocks of several sizes and free ones.
/// Returns the file of the only puddle of `wear`, and the offset in it of a block of 600 words.
fn with_wear_pool() -> (Fixture, std::path::PathBuf, u64) {
    let fixture = empty();
    let store = Store::open(&fixture.store).expect("opened");
    let plain = store.pool("plain").expect("a pool");
    plain.write(|tx| tx.alloc(1u64).map(drop)).expect("committed");
    let options =
        PoolOptions { heap: HeapKind::Wear { wait_ms: 3_600_000 }, ..PoolOptions::default() };
    let pool = store.create_pool("wear", &options).expect("a pool");
    let written = pool.write(|tx| -> cenote::Result<u64> {
        let mut large = Vec::new();
        for round in 0..12u64 {
            tx.alloc([round; 4])?;
            large.push(tx.alloc([round; 600])?);
        }
        let kept = large.split_off(6);
        large.into_iter().try_for_each(|block| tx.free(block))?;
        Ok(kept[2].addr())
    });
    let block = written.expect("committed");
    let mut records = store.puddle_records().into_iter().filter(|p| p.pool == pool.id());
    let root = records.next().expect("a puddle");
    assert!(records.next().is_none());
    let name = String::from_utf8_lossy(&root.uuid.to_hex()).into_owned();
    drop(pool);
    drop(plain);
    store.close().expect("closed");
    let file = fixture.store.join("puddles").join(name);
    (fixture, file, block - root.addr)
}

#[test]
fn a_pool_with_a_wear_heap_is_made_listed_and_drawn() {
    let fixture = empty();
    let made = fixture.run("create", &["worn", "--heap", "wear", "--wear-wait", "50"]).exits(0);
    assert!(made.out.contains("wear heap (freed blocks wait for 50 ms)"), "{}", made.out);
    let usual = fixture.run("create", &["usual", "--heap", "wear", "--json"]).exits(0).json();
    assert_eq!(usual["heap"], "wear");
    fixture.run("create", &["p", "--wear-wait", "5"]).complains(2, &["--wear-wait is for wear"]);
    let most = ["p", "--heap", "wear", "--wear-wait", "1073741825"];
    fixture.run("create", &most).complains(3, &["--wear-wait of up to 1073741824"]);
    let listed = fixture.run("ls", &["--json"]).exits(0).json_lines();
    let worn = listed.iter().find(|pool| pool["pool"] == "worn").expect("it is listed");
    assert_eq!((&worn["heap"], &worn["wear_wait_ms"]), (&"wear".into(), &50.into()));
    let seen = fixture.run("info", &["--wear", "worn"]).exits(0).out;
    assert!(seen.contains("freed blocks wait for 50 ms"), "{seen}");
    assert!(seen.contains("this medium does not count writes by place"), "{seen}");
    let usual = fixture.run("info", &["--heap", "usual", "--json"]).exits(0).json();
    assert_eq!((&usual["wait_ms"], &usual["writes"]), (&100.into(), &serde_json::Value::Null));
    fixture.run("create", &["traced"]).exits(0);
    fixture.run("info", &["--wear", "traced"]).complains(3, &["traced heap", "--heap"]);
}

#[test]
fn what_only_tracing_can_do_is_refused_for_a_wear_heap() {
    let (fixture, file, _) = with_wear_pool();
    // Behind the header, which says that a program has opened it.
    let blocks = || std::fs::read(&file).expect("readable").split_off(4096);
    let before = blocks();
    fixture
        .run("trim", &["wear"])
        .complains(3, &["\"wear\" has a wear heap", "cannot give space back"]);
    fixture.run("reclaim", &["wear"]).complains(3, &["\"wear\" has a wear heap"]);
    assert!(blocks() == before);
}

#[test]
fn a_damaged_header_costs_one_block_and_every_command_says_so() {
    let (fixture, file, block) = with_wear_pool();
    let before = fixture.run("stats", &["wear", "--json"]).exits(0).json()["blocks"].clone();
    assert_eq!(before, 18);
    let wear = fixture.run("info", &["--wear", "wear", "--json"]).exits(0).json();
    assert_eq!((&wear["blocks"], &wear["damaged_bytes"]), (&before, &0.into()));
    assert_eq!(wear["waiting_blocks"], 6);
    let puddle = std::fs::File::options().read(true).write(true).open(&file).expect("its file");
    let mut byte = [0];
    puddle.read_exact_at(&mut byte, block - 64 + 9).expect("read");
    puddle.write_all_at(&[byte[0] ^ 4], block - 64 + 9).expect("written");
    let check = fixture.run("check", &["--json"]).exits(1).json();
    let findings = check["findings"].as_array().expect("a list");
    let named: Vec<_> = findings.iter().filter(|finding| finding["kind"] == "heap").collect();
    assert_eq!(named.len(), 1, "{check}");
    let text = named[0]["text"].as_str().expect("a text");
    assert!(text.contains("header of a block is damaged; 4864 bytes are out of use"), "{text}");
    for (command, arguments) in
        [("info", vec![]), ("info", vec!["--wear", "wear"]), ("dump", vec!["--pool", "wear"])]
    {
        let said = fixture.run(command, &arguments).exits(1).out;
        assert!(said.contains("4864 bytes are out of use"), "{command}: {said}");
    }
    let wear = fixture.run("info", &["--wear", "wear", "--json"]).exits(1).json();
    assert_eq!((&wear["blocks"], &wear["damaged_bytes"]), (&17.into(), &4864.into()));
    assert_eq!(fixture.run("stats", &["wear", "--json"]).exits(0).json()["blocks"], 17);
    // It is copied with the others, and out of use in the copy.
    fixture.run("clone", &["wear", "clone"]).exits(0);
    let clone = fixture.run("info", &["--wear", "clone", "--json"]).exits(1).json();
    assert_eq!((&clone["blocks"], &clone["damaged_bytes"]), (&17.into(), &4864.into()));
    // And it stays so when a program has written the pool.
    let store = Store::open(&fixture.store).expect("opened");
    let pool = store.pool("wear").expect("a pool");
    pool.write(|tx| tx.alloc([7u64; 600]).map(drop)).expect("committed");
    drop(pool);
    store.close().expect("closed");
    let wear = fixture.run("info", &["--wear", "wear", "--json"]).exits(1).json();
    assert_eq!((&wear["blocks"], &wear["damaged_bytes"]), (&18.into(), &4864.into()));
}

#[test]
fn a_damaged_header_of_the_heap_is_named_and_the_pool_neither_opened_nor_copied() {
    let (fixture, file, _) = with_wear_pool();
    let puddle = std::fs::File::options().write(true).open(&file).expect("its file");
    puddle.write_all_at(&[0xff; 16], 4096 + 48).expect("written");
    let check = fixture.run("check", &["--json"]).exits(1).json();
    assert!(check.to_string().contains("wear heap header"), "{check}");
    fixture.run("clone", &["wear", "clone"]).complains(3, &["wear heap header"]);
    fixture.run("stats", &["plain"]).exits(0);
}

#[test]
fn a_pool_is_copied_into_one_with_a_wear_heap_and_back() {
    let (fixture, _, _) = with_wear_pool();
    let copy = ["plain", "copy", "--heap", "wear", "--wear-wait", "7", "--json"];
    assert_eq!(fixture.run("copy", &copy).exits(0).json()["heap"], "wear");
    let wear = fixture.run("info", &["--wear", "copy", "--json"]).exits(0).json();
    assert_eq!(wear["wait_ms"], 7);
    fixture.run("copy", &["copy", "back", "--heap", "traced"]).exits(0);
    fixture.run("copy", &["wear", "p", "--wear-wait", "9"]).exits(0);
    let wear = fixture.run("info", &["--wear", "p", "--json"]).exits(0).json();
    assert_eq!(wear["wait_ms"], 9, "the kind is that of the source");
    let refused = fixture.run("copy", &["plain", "q", "--wear-wait", "9"]);
    refused.complains(2, &["--wear-wait is for wear"]);
}
