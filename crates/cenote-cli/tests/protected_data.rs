//! Pools whose data are write-protected, from the command line.

use crate::common::{empty, run};

#[test]
fn create_protects_data_and_info_says_so() {
    let fixture = empty();
    let of = |what: &'static str| ["p", "--heap", "logged", "--protect", what, "--json"];
    let made = fixture.run("create", &of("data")).exits(0).json();
    assert_eq!(made["protect"], "deferred by 40 ms");
    let [_, heap, logged, protect, _, json] = of("data");
    for (name, what, protection) in
        [("q", "data:7", "deferred by 7 ms"), ("r", "data:sync", "synchronous")]
    {
        let arguments = [name, heap, logged, protect, what, json];
        assert_eq!(fixture.run("create", &arguments).exits(0).json()["protect"], protection);
    }
    let text = fixture.run("info", &[]).exits(0).out;
    assert_eq!(text.matches("data protected").count(), 3, "{text}");
    assert_eq!(text.matches("data protected at once").count(), 1, "{text}");
    let listed = fixture.run("info", &["--json"]).exits(0).json();
    let pools = listed["pools"].as_array().expect("pools");
    let known = |name: &str| pools.iter().find(|pool| pool["pool"] == name).expect("listed");
    assert_eq!(known("q")["protect"], "deferred by 7 ms");
    let traced = fixture.run("create", &["s", "--protect", "data"]);
    traced.complains(3, &["write-protected data", "a traced heap", "choose the logged heap"]);
    let refused = fixture.run("create", &["s", heap, logged, protect, "data:70000"]);
    refused.complains(2, &["use none, data, data:MS"]);
    let help = run(["create", "--help"]).exits(0).out;
    assert!(help.contains("only transactions store") && help.contains("--protect"), "{help}");
}
