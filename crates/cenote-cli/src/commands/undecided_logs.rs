//! `cenote logs`: logs that recovery has set aside, and what an operator decides about them.
//!
//! As `cenote chmod`, it takes the socket of a daemon in place of the store's directory.

use crate::cli::{Logs, LogsCommand, LogsDecide, LogsDeclare, LogsList};
use crate::failure::{Failure, Verdict, closed};
use crate::opening;
use crate::output::Out;
use serde_json::json;

pub(crate) fn run(arguments: &Logs, out: &mut Out) -> Result<Verdict, Failure> {
    match &arguments.command {
        LogsCommand::List(list) => show(list, out),
        LogsCommand::Apply(decide) => decided(decide, true, out),
        LogsCommand::Discard(decide) => decided(decide, false, out),
        LogsCommand::DeclareWhole(declare) => declared(declare, out),
    }
}

fn show(arguments: &LogsList, out: &mut Out) -> Result<Verdict, Failure> {
    let dir = &arguments.store;
    let store = opening::asked_or_look(dir)?;
    let found = store.undecided_logs()?;
    for client in &found {
        let names: Vec<&str> = client.pools.iter().map(|(_, name)| &**name).collect();
        out.line(format_args!("{}  pools: {}", client.client, names.join(", ")))?;
        for why in &client.why {
            out.line(format_args!("    {why}"))?;
        }
        out.object(
            &json!({ "client": client.client.to_string(), "pools": names, "why": client.why }),
        )?;
    }
    if found.is_empty() {
        out.line(format_args!("{} no log is set aside", out.good("good:")))?;
        return Ok(Verdict::Clean);
    }
    Ok(Verdict::Found)
}

fn decided(arguments: &LogsDecide, apply: bool, out: &mut Out) -> Result<Verdict, Failure> {
    let dir = &arguments.store;
    let store = opening::asked_or_change(dir)?;
    if apply {
        store.apply_logs(arguments.client)?;
    } else {
        store.discard_logs(arguments.client)?;
    }
    closed(store.close())?;
    let what = if apply { "replayed" } else { "forgotten" };
    out.line(format_args!(
        "{} the logs of client {} are {what}",
        out.good("done:"),
        arguments.client
    ))?;
    out.object(&json!({ "client": arguments.client.to_string(), "logs": what }))?;
    Ok(Verdict::Clean)
}

fn declared(arguments: &LogsDeclare, out: &mut Out) -> Result<Verdict, Failure> {
    let store = match opening::asked_to_change(&arguments.store)? {
        Some(kept) => kept,
        None => opening::to_declare(&arguments.store, &arguments.pool)?,
    };
    // A daemon does not say which pools are torn.
    let is_torn = store.is_connected() || store.torn_pools().contains(&arguments.pool);
    // SAFETY: this command reads no value; the operator answers for the pool from here on, as
    // `cenote logs declare-whole --help` says.
    unsafe { store.declare_whole(&arguments.pool) }?;
    let unchecked = !store.is_connected() && store.handle().is_unchecked_copy();
    closed(store.close())?;
    let said = if is_torn { "is declared whole" } else { "is whole already: nothing was changed" };
    out.line(format_args!("{} pool \"{}\" {said}", out.good("done:"), arguments.pool))?;
    if unchecked {
        let dir = arguments.store.dir.display();
        let again = crate::failure::word(&dir.to_string());
        out.line(format_args!(
            "{dir} is still an unchecked copy: `cenote adopt {again}` checks all of it; with \
             --of-one-moment it declares all pools and objects whole"
        ))?;
    }
    out.object(&json!({ "pool": arguments.pool, "declared": "whole", "changed": is_torn }))?;
    Ok(Verdict::Clean)
}
