//! Windows of stores that programs make one after the other: none is open when the next is made.

use crate::common::cenote;
use std::collections::BTreeSet;

/// So many that two of them would have one window, if each were chosen by chance.
const STORES: usize = 80;

#[test]
fn stores_of_programs_that_have_ended_have_windows_of_their_own() {
    let dir = tempfile::tempdir().expect("a directory");
    for number in 0..STORES {
        let mut format = cenote();
        format.env("XDG_STATE_HOME", dir.path()).arg("format");
        let ran = format.arg(dir.path().join(number.to_string())).output().expect("cenote runs");
        assert!(ran.status.success(), "{ran:?}");
    }
    // A window is noted once.
    let list = std::fs::read_to_string(dir.path().join("cenote/windows")).expect("noted");
    let windows: BTreeSet<&str> = list.lines().collect();
    assert_eq!(windows.len(), STORES, "{list}");
}
