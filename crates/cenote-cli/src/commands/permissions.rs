//! `cenote chmod` and `cenote chown`: who may read and write a pool through a daemon.
//!
//! In place of the store's directory they take the socket of the daemon that keeps it: then the
//! daemon decides whether the caller may. In a store that no daemon keeps, a user who may write its
//! files may.

use crate::cli::{ChangedStore, Chmod, Chown};
use crate::failure::{Failure, Verdict, closed};
use crate::opening;
use crate::output::Out;
use cenote::PermissionChange;
use serde_json::json;

pub(crate) fn chmod(arguments: &Chmod, out: &mut Out) -> Result<Verdict, Failure> {
    let change =
        PermissionChange { permissions: Some(arguments.mode), ..PermissionChange::default() };
    apply(&arguments.store, &arguments.pool, change, out)
}

pub(crate) fn chown(arguments: &Chown, out: &mut Out) -> Result<Verdict, Failure> {
    let (owner, group) = arguments.owner.split_once(':').unwrap_or((&arguments.owner, ""));
    let change = PermissionChange {
        uid: id_of(owner, "/etc/passwd", "user")?,
        gid: id_of(group, "/etc/group", "group")?,
        permissions: None,
    };
    if change == PermissionChange::default() {
        return Err(Failure::Usage(
            "name a user, a group after a colon, or both: alice, alice:staff, :staff".into(),
        ));
    }
    apply(&arguments.store, &arguments.pool, change, out)
}

/// A number, or a name of the table; `None` for nothing.
fn id_of(text: &str, table: &str, what: &str) -> Result<Option<u32>, Failure> {
    if text.is_empty() {
        return Ok(None);
    }
    if let Ok(number) = text.parse() {
        return Ok(Some(number));
    }
    let lines = std::fs::read_to_string(table).unwrap_or_default();
    let mut found = lines.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let id = found
        .find(|fields| fields.first() == Some(&text))
        .and_then(|fields| fields.get(2)?.parse().ok());
    id.map(Some)
        .ok_or_else(|| Failure::Usage(format!("{table} has no {what} {text:?}: give the number")))
}

fn apply(
    store: &ChangedStore,
    pool: &str,
    change: PermissionChange,
    out: &mut Out,
) -> Result<Verdict, Failure> {
    let opened = opening::asked_or_change(store)?;
    opened.set_permissions(pool, change)?;
    let found = opened.pools().into_iter().find(|found| found.record.name == pool);
    closed(opened.close())?;
    if let Some(found) = found {
        let record = found.record;
        out.line(format_args!(
            "{} pool \"{pool}\" is of user {}, group {}, mode {:03o}",
            out.good("done:"),
            record.uid,
            record.gid,
            record.permissions
        ))?;
        out.object(&json!({
            "pool": pool, "uid": record.uid, "gid": record.gid,
            "permissions": format!("{:o}", record.permissions),
        }))?;
    }
    Ok(Verdict::Clean)
}
