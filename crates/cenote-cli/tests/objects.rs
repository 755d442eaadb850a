//! `cenote object` does what its help says, for people and for programs.

mod common;

use common::empty;

#[test]
fn objects_are_made_filled_shown_and_removed() {
    let fixture = empty();
    fixture.run("object", &[]).exits(2);
    let dir = fixture.store.to_str().expect("text").to_owned();
    let object = |arguments: &[&str]| {
        let mut all = vec!["object", arguments[0], dir.as_str()];
        all.extend(&arguments[1..]);
        common::run(all)
    };
    let made = object(&["create", "matrix", "--size", "3M", "--mode", "640", "--json"]).exits(0).json();
    assert_eq!((made["object"].as_str(), made["bytes"].as_u64()), (Some("matrix"), Some(3 << 20)));
    assert_eq!((made["state"].as_str(), made["permissions"].as_str()), (Some("D"), Some("640")));
    object(&["create", "matrix", "--size", "1M"]).complains(3, &["\"matrix\" already"]);
    object(&["create", "none", "--size", "0"]).complains(3, &["0 bytes"]);
    object(&["create", "huge", "--size", "2T"]).complains(3, &["do not fit"]);
    object(&["create", "odd", "--size", "1M", "--mode", "9"]).complains(2, &["no mode"]);

    let bytes: Vec<u8> = (0..2_500_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    let (input, output) = (fixture.dir.path().join("in"), fixture.dir.path().join("out"));
    std::fs::write(&input, &bytes).expect("written");
    let (input, output) = (input.to_str().expect("text"), output.to_str().expect("text"));
    let done = object(&["import", "matrix", "--input", input, "--every", "1M", "--json"]).exits(0).json();
    assert_eq!((done["bytes"].as_u64(), done["psyncs"].as_u64()), (Some(2_500_000), Some(3)));
    object(&["export", "matrix", "--output", output, "--len", "2500000"]).exits(0);
    assert!(std::fs::read(output).expect("read") == bytes);
    object(&["export", "matrix", "--output", output]).complains(3, &["exist"]);
    // Again: nothing has changed, so nothing is written.
    let done = object(&["import", "matrix", "--input", input, "--json"]).exits(0).json();
    assert_eq!((done["pages"].as_u64(), done["psyncs"].as_u64()), (Some(0), Some(0)));
    object(&["import", "matrix", "--input", input, "--at", "1M"]).complains(3, &["longer than object"]);

    let files = fixture.files();
    let list = object(&["ls", "--json"]).exits(0).json_lines();
    assert_eq!((list.len(), list[0]["address"].as_str()), (1, made["address"].as_str()));
    object(&["info", "matrix"]).exits(0);
    object(&["info", "other"]).complains(3, &["no object \"other\""]);
    object(&["rm", "matrix", "-n"]).exits(0);
    object(&["rm", "matrix"]).complains(2, &["--yes"]);
    object(&["rm", "matrix", "other", "-y"]).complains(3, &["no object \"other\""]);
    assert_eq!(fixture.files(), files, "looking at it wrote something");
    object(&["rm", "matrix", "-y"]).exits(0);
    assert!(object(&["ls", "--json"]).exits(0).json_lines().is_empty());
    fixture.run("check", &[]).exits(0);
    fixture.run("rm", &["--store", "-y"]).exits(0);
    assert!(!std::path::Path::new(&dir).exists(), "the journal stayed");
}
