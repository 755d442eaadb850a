//! Blocks whose owners are gone, in a pool of a program that this one knows nothing of.

use crate::common::{Fixture, empty};
use cenote::{Error, Owned, Persist, Store, field};

#[derive(Persist)]
#[persist(name = "frees::List")]
struct List {
    first: Owned<Node>,
}

#[derive(Persist)]
#[persist(name = "frees::Node", owned)]
struct Node {
    value: u64,
    next: Owned<Node>,
}

const NODES: u64 = 300;

/// A store in which a list of 300 nodes has lost its owner.
fn disowned() -> Fixture {
    let fixture = empty();
    let pool = Store::open(&fixture.store).expect("opened").pool("lists").expect("a pool");
    let made = pool.write(|tx| {
        let list = tx.alloc(List { first: Owned::EMPTY })?;
        tx.set_root(list)?;
        for value in 0..NODES {
            let mut rest = tx.take_owned(list, field!(List, first))?;
            let node = Node { value, next: Owned::EMPTY };
            let node = rest.tx().put_owned(list, field!(List, first), node)?;
            rest.put(node, field!(Node, next))?;
        }
        Ok::<_, Error>(list)
    });
    let list = made.expect("made");
    pool.write(|tx| tx.free_owned(list, field!(List, first)).map(drop)).expect("freed");
    fixture
}

#[test]
fn a_program_without_the_types_frees_what_has_lost_its_owner() {
    let fixture = disowned();
    let checked = fixture.run("check", &["--json"]).exits(0).json();
    let waiting = checked["pools"][0]["waiting_blocks"].as_u64().expect("it is reported");
    assert!((NODES - 64..NODES).contains(&waiting), "{waiting}");
    let text = format!("{waiting} wait to be freed");
    assert!(fixture.run("check", &[]).exits(0).out.contains(&text));
    let files = fixture.files();
    let would = fixture.run("finish-frees", &["-n", "--json"]).exits(0).json();
    assert_eq!((&would["freed_blocks"], &would["dry_run"]), (&waiting.into(), &true.into()));
    assert!(fixture.run("finish-frees", &["-n"]).exits(0).out.contains("would free"));
    fixture.run("finish-frees", &["absent"]).complains(3, &["no pool \"absent\""]);
    assert_eq!(fixture.files(), files, "a dry run wrote something");
    let done = fixture.run("finish-frees", &["--json"]).exits(0).json();
    assert_eq!((&done["pool"], &done["freed_blocks"]), (&"lists".into(), &waiting.into()));
    let again = fixture.run("finish-frees", &["lists"]).exits(0).out;
    assert!(again.contains("freed no blocks") || again.contains("freed 0 blocks"), "{again}");
    assert!(!fixture.run("check", &[]).exits(0).out.contains("to be freed"));
}
