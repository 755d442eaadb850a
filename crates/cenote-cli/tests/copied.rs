//! `cenote copy`: a pool with another heap that holds what its source holds.

use crate::common::killed;

#[test]
fn a_pool_is_copied_into_one_with_another_heap() {
    let fixture = killed();
    let blocks =
        |pool: &str| fixture.run("stats", &[pool, "--json"]).exits(0).json()["blocks"].clone();
    fixture.run("reclaim", &[]).exits(0);
    let before = blocks("tour");
    let files = fixture.files();
    fixture.run("copy", &["absent", "copy"]).complains(3, &["\"absent\""]);
    fixture.run("copy", &["tour"]).complains(2, &["NAME"]);
    fixture
        .run("copy", &["tour", "copy", "--heap", "none"])
        .complains(2, &["traced, logged or wear"]);
    assert_eq!(fixture.files(), files, "what is refused changes nothing");
    let copy = fixture.run("copy", &["tour", "copy", "--heap", "logged", "--json"]);
    let copy = copy.exits(0).json();
    assert_eq!((&copy["pool"], &copy["from"]), (&"copy".into(), &"tour".into()));
    assert_eq!((&copy["heap"], &copy["resumed"]), (&"logged".into(), &false.into()));
    assert_eq!((&copy["blocks"], blocks("copy")), (&before, before.clone()));
    fixture.run("copy", &["tour", "copy"]).complains(3, &["\"copy\""]);
    fixture.run("copy", &["tour", "tour"]).complains(3, &["\"tour\""]);
    let back = fixture.run("copy", &["copy", "back", "--heap", "traced"]).exits(0);
    assert!(back.out.contains("pool \"back\" is a copy of \"copy\""), "{}", back.out);
    assert!(back.out.contains("traced heap"), "{}", back.out);
    let same = fixture.run("copy", &["copy", "same"]).exits(0).out;
    assert!(same.contains("logged heap"), "{same}");
    let pools = fixture.run("ls", &["--json"]).exits(0).json_lines();
    let heap = |name: &str| -> Option<&serde_json::Value> {
        pools.iter().find(|pool| pool["pool"] == name).map(|pool| &pool["heap"])
    };
    assert_eq!((heap("back"), heap("same")), (Some(&"traced".into()), Some(&"logged".into())));
    fixture.run("check", &[]).exits(0);
}
