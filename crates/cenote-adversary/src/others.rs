//! SIGKILL of a program with objects, and then sessions that use no object.
//!
//! A child psyncs two objects, and says each psync that has returned. It is killed; then commands
//! come that open the store and have nothing to do with objects. What must hold then:
//!
//! * each command works;
//! * every psync that was said is there, or the next one; the objects are as it left them;
//! * a backup that one of the commands made has the same.

use crate::child::{self, Child};
use crate::power::Subject;
use crate::round::{Outcome, Round, require};

/// Kills of one round.
const KILLS: u64 = 4;
/// Most commands between a kill and the next session with objects.
const COMMANDS_MAX: u64 = 4;
/// Commands without objects; `{n}` is another number each time.
const COMMANDS: [&str; 10] = [
    "create {s} new{n} --size 256K --mode direct",
    "create {s} new{n} --size 256K --mode shadowed",
    "clone {s} keep copy{n} --eager",
    "chmod {s} keep 640",
    "trim {s}",
    "reclaim {s}",
    "relocate {s}",
    "check {s}",
    "export {s} keep {d}/archive{n}",
    BACKUP,
];
const BACKUP: &str = "backup {s} {d}/backup{n}";

/// See the module.
pub(crate) fn round(round: &mut Round<'_>) -> Outcome {
    let store = round.dir.join("store");
    let mut subject = Subject::objects(&store)?;
    command(round, "create {s} keep --size 256K")?;
    let mut number = 0;
    for kill in 0..KILLS {
        let mut child =
            Child::start(round.dir, subject.role(), &[&store, &round.seed.to_string()])?;
        // One of four while it opens the store.
        if round.below(4) > 0 {
            child.hear()?;
        }
        std::thread::sleep(round.moment(30_000));
        let (psynced, count) = subject.acknowledged(&child.kill()?);
        round.counts.add("kills", 1);
        round.counts.add("psyncs acknowledged", count);
        let mut lines = Vec::new();
        let mut copies = Vec::new();
        for _ in 0..round.below(COMMANDS_MAX + 1) {
            number += 1;
            let chosen = COMMANDS[round.below(COMMANDS.len() as u64) as usize];
            let line = chosen.replace("{n}", &number.to_string());
            if chosen == BACKUP {
                copies.push(round.dir.join(format!("backup{number}")));
            }
            command(round, &line)?;
            round.counts.add("commands", 1);
            lines.push(line);
        }
        let judged = copies.iter().chain([&store]).try_for_each(|at| {
            subject.judge(at, round.seed, psynced).map_err(|trouble| trouble.at(at.display()))
        });
        judged.map_err(|trouble| trouble.at(format_args!("kill {kill}, then {lines:?}")))?;
    }
    Ok(())
}

fn command(round: &Round<'_>, line: &str) -> Outcome {
    let ended = child::run(&mut child::cenote_line(line, round.dir), round.dir, child::LIMIT)?;
    require(ended.code == Some(0), || format!("{line}: {ended:?}"))
}
