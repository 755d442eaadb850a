//! `cenote types`: what a store knows of types, and how types go that no pool uses.

use crate::common::{Fixture, empty, run, with_pool};
use cenote::{Persist, Ptr, Store};

#[derive(Persist)]
#[persist(name = "types::Node")]
struct Node {
    value: u64,
    next: Option<Ptr<Node>>,
}

/// The next version of it.
#[derive(Persist)]
#[persist(name = "types::Next", version = 2)]
struct Next {
    value: u64,
    next: Option<Ptr<Next>>,
}

#[derive(Persist)]
#[persist(name = "types::Gone")]
struct Gone(u64);

/// A store with a node in pool `kept`, and a type that no pool uses.
fn filled() -> Fixture {
    let fixture = empty();
    let store = Store::open(&fixture.store).expect("opened");
    let (kept, gone) = (store.pool("kept").expect("a pool"), store.pool("gone").expect("a pool"));
    kept.write(|tx| tx.alloc(Node { value: 1, next: None }).map(drop)).expect("a node");
    gone.write(|tx| tx.alloc(Gone(1)).map(drop)).expect("a value");
    drop((kept, gone));
    store.remove_pool("gone").expect("removed");
    store.close().expect("closed");
    fixture
}

impl Fixture {
    fn types(&self, command: &str, rest: &[&str]) -> crate::common::Ran {
        let store = self.store.to_str().expect("text");
        run([&["types", command, store], rest].concat())
    }
}

#[test]
fn types_are_listed_with_the_pools_that_use_them() {
    let fixture = filled();
    let before = fixture.files();
    let listed = fixture.types("ls", &["--json"]).exits(0).json_lines();
    let of = |name: &str| listed.iter().find(|one| one["type"] == name).expect("listed").clone();
    let (node, gone) = (of("types::Node"), of("types::Gone"));
    assert_eq!(
        (&node["blocks"][0]["pool"], &node["blocks"][0]["blocks"]),
        (&"kept".into(), &1.into())
    );
    assert_eq!((&node["removable"], &gone["removable"]), (&false.into(), &true.into()));
    assert_eq!(node["fields"][1]["name"], "next");
    let table = fixture.types("ls", &[]).exits(0).out;
    assert!(table.contains("types::Node") && table.contains("kept"), "{table}");
    let shown = fixture.types("show", &["types::Node"]).exits(0).out;
    assert!(shown.contains("value: u64") && !shown.contains("Gone"), "{shown}");
    let id = node["type_id"].as_str().expect("an id");
    assert_eq!(fixture.types("show", &[id]).exits(0).out, shown);
    fixture.types("show", &["absent"]).complains(3, &["absent", "cenote types ls"]);
    assert_eq!(fixture.files(), before);
    assert!(empty().types("ls", &[]).exits(0).out.contains("no types"));
    assert!(empty().types("show", &[]).exits(0).out.contains("no types"));
}

#[test]
fn a_type_that_no_pool_uses_is_removed_and_one_that_is_used_is_not() {
    let fixture = filled();
    let before = fixture.files();
    fixture.types("rm", &["types::Node"]).complains(3, &["types::Node", "pool \"kept\" has 1"]);
    fixture.types("rm", &["absent"]).complains(3, &["absent"]);
    fixture.types("rm", &[]).exits(2);
    let both = fixture.types("rm", &["types::Gone", "types::Node"]);
    both.complains(3, &["types::Node"]);
    let would = fixture.types("rm", &["-n", "types::Gone"]).exits(0).out;
    assert!(would.contains("would remove type types::Gone"), "{would}");
    assert_eq!(fixture.files(), before, "nothing was removed");
    let done = fixture.types("rm", &["--unused", "--json"]).exits(0).json_lines();
    assert!(done.iter().any(|one| one["type"] == "types::Gone" && one["dry_run"] == false));
    assert!(fixture.types("rm", &["--unused"]).exits(0).out.contains("nothing to remove"));
    let listed = fixture.types("ls", &[]).exits(0).out;
    assert!(listed.contains("types::Node") && !listed.contains("types::Gone"), "{listed}");
}

#[test]
fn a_pool_in_shadowed_mode_keeps_every_type() {
    let fixture = filled();
    fixture.run("create", &["shadowed", "--mode", "shadowed"]).exits(0);
    let listed = fixture.types("ls", &[]).exits(0).out;
    assert!(listed.contains("unclear") && listed.contains("\"shadowed\""), "{listed}");
    fixture.types("rm", &["types::Gone"]).complains(3, &["\"shadowed\"", "shadowed mode"]);
}

#[test]
fn what_is_no_store_has_no_types() {
    let fixture = with_pool();
    let nothing = fixture.dir.path().to_str().expect("text");
    for command in ["ls", "show"] {
        run(["types", command, nothing]).complains(3, &["is not a store"]);
    }
}

#[test]
fn values_of_a_raised_version_are_shown_and_checked() {
    let fixture = empty();
    let store = Store::open(&fixture.store).expect("opened");
    let pool = store.pool("p").expect("a pool");
    let made = pool.write(|tx| {
        let last = tx.alloc(Next { value: 41, next: None })?;
        let first = tx.alloc(Next { value: 40, next: Some(last) })?;
        tx.set_root(first)?;
        tx.set_named_root("first", Some(first))
    });
    made.expect("two values");
    drop(pool);
    store.close().expect("closed");
    let shown = fixture.run("show", &["p"]).exits(0).out;
    assert!(shown.contains("value: 40") && shown.contains("value: 41"), "{shown}");
    fixture.run("check", &[]).exits(0);
    let listed = fixture.types("ls", &["--json"]).exits(0).json_lines();
    let next = listed.iter().find(|one| one["type"] == "types::Next").expect("listed");
    assert_eq!(next["version"], 2);
    assert_ne!(next["type_id"], next["logical_id"]);
    // By either id.
    for id in ["type_id", "logical_id"] {
        let shown = fixture.types("show", &[next[id].as_str().expect("an id")]).exits(0).out;
        assert!(shown.contains("version 2"), "{shown}");
    }
    let dumped = fixture.run("dump", &["--pool", "p"]).exits(0).out;
    assert!(dumped.contains("types::Next") && !dumped.contains("unknown type"), "{dumped}");
}
