//! Bugs that the environment plants, to show that harnesses find them.

use cenote_medium::planted::Bug;

/// Bugs that are planted in this process and its children if the environment names one: a harness
/// that finds none of them is of no use.
const PLANTED: [(&str, Bug); 3] = [
    ("AbortKeepsAllocation", Bug::AbortKeepsAllocation),
    ("PsyncNotSynced", Bug::PsyncNotSynced),
    ("SettledByStranger", Bug::SettledByStranger),
];

/// Plants what the environment names.
pub(crate) fn plant() {
    let Ok(name) = std::env::var("CENOTE_ADVERSARY_PLANT") else { return };
    match PLANTED.iter().find(|(known, _)| *known == name) {
        Some((_, bug)) => cenote_medium::planted::plant(*bug),
        None => eprintln!("no bug is called {name:?}"),
    }
}
