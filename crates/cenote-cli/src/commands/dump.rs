//! `cenote dump`: what is on the medium, part by part.

use super::damage;
use super::logs::{self, ClientLogs, LogOnMedia, hex};
use super::stats::{self, chosen, type_name};
use crate::cli::Dump;
use crate::failure::{Failure, Verdict};
use crate::opening;
use crate::output::Out;
use crate::progress;
use crate::stop::Stop;
use crate::table::{Align, Table};
use crate::units::{bytes, count, date, plural};
use cenote::{Access, Pool, Store, Uuid};
use cenote_layout::header::read;
use cenote_layout::heap::ROOT_COUNT;
use cenote_layout::superblock::{COPY_SIZE, STATE_CLEAN, Superblock};
use cenote_store::Damage;
use serde_json::{Value, json};

pub(crate) fn run(arguments: &Dump, out: &mut Out) -> Result<Verdict, Failure> {
    out.heed(Stop::install());
    let store = opening::to_look(&arguments.store)?;
    if let Some(name) = &arguments.pool {
        chosen(&store, std::slice::from_ref(name))?;
        return pool(&store, name, arguments.blocks, out);
    }
    let sound = superblocks(&store, out)?;
    let known = damage::of(&store)?;
    catalog(&store, &known, out)?;
    puddles(&store, out)?;
    let logs_sound = client_logs(&store, out)?;
    types(&store, out)?;
    let journal_sound = journal_of_objects(&store, out)?;
    Ok(Verdict::found(!sound || !logs_sound || !journal_sound || !known.is_empty()))
}

/// The journal is read as its opener reads it. Of a whole one nothing is shown.
fn journal_of_objects(store: &Store, out: &mut Out) -> Result<bool, Failure> {
    let Some(text) = damage::of_objects(store) else { return Ok(true) };
    out.wrong("damaged", &text)?;
    out.object(&json!({ "kind": "damage", "text": text }))?;
    Ok(false)
}

/// Both copies, as they are on media.
fn superblocks(store: &Store, out: &mut Out) -> Result<bool, Failure> {
    let file = store.read_file("superblock")?;
    let mut sound = true;
    for copy in 0..2_usize {
        let at = file.get(copy * COPY_SIZE as usize..).unwrap_or_default();
        out.line(out.bold(&format!("superblock, copy {copy}")))?;
        match read::<Superblock>(at, false) {
            Ok(block) => {
                let state = if block.state == STATE_CLEAN { "clean" } else { "open" };
                out.field("generation", block.generation)?;
                out.field("state", state)?;
                out.field("store", block.store)?;
                out.field("made", date(block.formatted_at_s))?;
                out.field(
                    "window",
                    format_args!("{} at {:#x}", bytes(block.window_len), block.window_base),
                )?;
                out.field(
                    "last writer",
                    format_args!("process {}, client {}", block.opener_pid, block.client),
                )?;
                out.field("boot", block.boot_id)?;
                out.field("catalog", format_args!("had batch {}", block.catalog_batch))?;
                out.field(
                    "format",
                    format_args!(
                        "version {}, features {:#x} {:#x} {:#x}, checksum {:016x}",
                        block.prefix.version,
                        block.prefix.compat,
                        block.prefix.ro_compat,
                        block.prefix.incompat,
                        block.prefix.checksum
                    ),
                )?;
                out.object(&json!({
                    "kind": "superblock", "copy": copy, "generation": block.generation,
                    "state": state,
                    "store": block.store.to_string(), "formatted_at_s": block.formatted_at_s,
                    "window_base": block.window_base, "window_bytes": block.window_len,
                    "opener_pid": block.opener_pid, "opener_start_ticks": block.opener_start_ticks,
                    "client": block.client.to_string(), "boot": block.boot_id.to_string(),
                    "mounting": block.mounting,
                    "durability": block.durability, "catalog_batch": block.catalog_batch,
                    "version": block.prefix.version,
                    "compat": block.prefix.compat, "ro_compat": block.prefix.ro_compat,
                    "incompat": block.prefix.incompat,
                    "checksum": format!("{:016x}", block.prefix.checksum),
                }))?;
            }
            Err(error) => {
                sound = false;
                out.wrong("damaged", &error)?;
                out.object(
                    &json!({ "kind": "superblock", "copy": copy, "damage": error.to_string() }),
                )?;
            }
        }
        out.line("")?;
    }
    Ok(sound)
}

fn catalog(store: &Store, known: &[Damage], out: &mut Out) -> Result<(), Failure> {
    let info = store.info();
    out.line(out.bold("catalog"))?;
    let batches = format!(
        "{} batches, {} in each of two files",
        count(info.catalog_batch),
        bytes(info.catalog_bytes)
    );
    out.field("size", batches)?;
    out.object(
        &json!({ "kind": "catalog", "batch": info.catalog_batch, "bytes": info.catalog_bytes }),
    )?;
    let name_of = |id: cenote::PoolId| {
        store
            .pools()
            .into_iter()
            .find(|p| p.record.id == id)
            .map_or_else(|| id.to_string(), |p| p.record.name)
    };
    for lease in store.lease_records() {
        let access = if lease.writable { "writes to" } else { "reads" };
        out.field(
            "lease",
            format_args!("client {} {access} pool \"{}\"", lease.client, name_of(lease.pool)),
        )?;
        out.object(&json!({
            "kind": "lease", "client": lease.client.to_string(), "pool": name_of(lease.pool),
            "writable": lease.writable,
        }))?;
    }
    for damage in known {
        let text = damage::text(store, damage);
        out.wrong("damaged", &text)?;
        out.object(&json!({ "kind": "damage", "text": text }))?;
    }
    let mut pools = super::ls::listed(store);
    pools.sort_by_key(|pool| pool.info.record.id);
    if !pools.is_empty() {
        out.line("")?;
        out.line(out.bold("pools"))?;
        super::ls::table(&pools).print(out, 2)?;
    }
    for pool in &pools {
        let mut value = super::ls::as_json(pool);
        value["kind"] = json!("pool");
        out.object(&value)?;
    }
    out.line("")
}

fn puddles(store: &Store, out: &mut Out) -> Result<(), Failure> {
    let pools = store.pools();
    let mut table = Table::new(&[
        ("ADDRESS", Align::Right),
        ("SIZE", Align::Right),
        ("ROLE", Align::Left),
        ("POOL", Align::Left),
        ("FILE", Align::Left),
    ]);
    let records = store.puddle_records();
    for record in &records {
        let pool = pools.iter().find(|p| p.record.id == record.pool).map(|p| p.record.name.clone());
        out.object(&json!({
            "kind": "puddle", "uuid": record.uuid.to_string(), "addr": record.addr,
            "bytes": record.size,
            "role": record.role.to_string(), "pool": pool, "index": record.index,
        }))?;
        let place = pool.map_or_else(String::new, |pool| format!("{pool} [{}]", record.index));
        table.row(vec![
            format!("{:#x}", record.addr),
            bytes(record.size),
            record.role.to_string(),
            place,
            hex(record.uuid),
        ]);
    }
    out.line(out.bold("puddles"))?;
    if records.is_empty() { out.line("  none") } else { table.print(out, 2) }?;
    out.line("")
}

fn client_logs(store: &Store, out: &mut Out) -> Result<bool, Failure> {
    let clients = logs::read_all(store);
    out.line(out.bold("logs"))?;
    if clients.is_empty() {
        let why = if store.report().clean {
            "the store was closed properly"
        } else {
            "no transaction was open"
        };
        out.line(format_args!("  none in use: {why}"))?;
    }
    let mut sound = true;
    for ClientLogs { client, logs } in &clients {
        let logs = match logs {
            Ok(logs) => logs,
            Err(error) => {
                sound = false;
                out.wrong("damaged", format_args!("client {client}: {error}"))?;
                out.object(
                    &json!({ "kind": "log-space", "client": client.to_string(), "damage": error }),
                )?;
                continue;
            }
        };
        for log in logs {
            sound &= log.contents.is_ok();
            one_log(*client, log, out)?;
        }
    }
    out.line("")?;
    Ok(sound)
}

/// A log, entry by entry.
fn one_log(client: Uuid, log: &LogOnMedia, out: &mut Out) -> Result<(), Failure> {
    let contents = match &log.contents {
        Ok(contents) => contents,
        Err(error) => {
            let label = out.bad("damaged:");
            out.line(format_args!(
                "  log {:016x} of client {client}: {label} {error}",
                log.log_id
            ))?;
            return out.object(&json!({
                "kind": "log", "log": format!("{:016x}", log.log_id),
                "client": client.to_string(), "puddle": log.puddle.to_string(),
                "damage": error,
            }));
        }
    };
    out.line(format_args!(
        "  log {:016x} of client {client}: {}, {} in {}{}",
        log.log_id,
        contents.stage,
        plural(contents.entries.len() as u64, "entry"),
        plural(u64::from(contents.segments), "segment"),
        if contents.quarantined { ", set aside" } else { "" }
    ))?;
    let mut entries = Vec::new();
    for entry in &contents.entries {
        let line = format!(
            "    {:<18} {:>14} at {:#x}",
            entry.kind,
            plural(u64::from(entry.size), "byte"),
            entry.addr
        );
        out.line(line)?;
        entries.push(json!({ "entry": entry.kind, "addr": entry.addr, "bytes": entry.size }));
    }
    out.object(&json!({
        "kind": "log", "log": format!("{:016x}", log.log_id), "client": client.to_string(),
        "puddle": log.puddle.to_string(), "stage": contents.stage,
        "segments": contents.segments, "capacity_bytes": contents.capacity,
        "sealed": contents.sealed, "set_aside": contents.quarantined, "entries": entries,
    }))
}

fn types(store: &Store, out: &mut Out) -> Result<(), Failure> {
    let mut types = store.types();
    types.sort_by(|a, b| a.name.cmp(&b.name));
    out.line(out.bold("types"))?;
    if types.is_empty() {
        out.line("  none")?;
    }
    for record in &types {
        for line in record.to_string().lines() {
            out.line(format_args!("  {line}"))?;
        }
        let field = |field: &cenote_layout::types::FieldRecord| {
            json!({
                "name": field.name, "offset": field.offset, "bytes": field.size,
                "type": field.type_name,
                "type_id": field.type_id.to_string(),
            })
        };
        let pointers: Vec<Value> = record
            .pointers
            .iter()
            .map(|pointer| {
                json!({
                    "offset": pointer.offset, "stride": pointer.stride, "count": pointer.count,
                    "tag_mask": pointer.tag_mask, "target": pointer.target.to_string(),
                    "text": pointer.to_string(),
                })
            })
            .collect();
        let variants: Vec<Value> = record
            .variants
            .iter()
            .map(|variant| {
                json!({
                    "name": variant.name, "if": variant.tag.to_string(),
                    "fields": variant.fields.iter().map(field).collect::<Vec<_>>(),
                })
            })
            .collect();
        out.object(&json!({
            "kind": "type", "type": record.name, "type_id": record.id.to_string(),
            "bytes": record.size,
            "align": record.align, "repeats": record.repeats, "pointers": pointers,
            "variants": variants,
            "fields": record.fields.iter().map(field).collect::<Vec<_>>(),
        }))?;
    }
    Ok(())
}

/// One pool: roots, and blocks by type or one by one.
fn pool(store: &Store, name: &str, blocks: bool, out: &mut Out) -> Result<Verdict, Failure> {
    let pool = store.pool_with(name, Access::ReadOnly)?;
    let stats = pool.stats()?;
    out.line(out.bold(&format!("pool \"{name}\"")))?;
    let mut verdict = damage::tell_lost(store, &[name.to_owned()], out)?;
    if !roots(store, &pool, out)? {
        verdict = Verdict::Found;
    }
    // Each puddle was looked at for the numbers of blocks.
    for damage in pool.heap_damage() {
        verdict = Verdict::Found;
        damaged(&damage.to_string(), out)?;
    }
    for damage in pool.header_damage() {
        verdict = Verdict::Found;
        damaged(&damage.to_string(), out)?;
    }
    if blocks {
        all_blocks(store, &pool, stats.blocks, out)?;
        return Ok(verdict);
    }
    if stats.bins.is_empty() {
        out.field("blocks", "none is allocated")?;
    } else {
        out.line("")?;
        stats::by_type(store, &stats).print(out, 0)?;
    }
    let mut value = stats::as_json(store, name, &stats);
    value["kind"] = json!("pool");
    out.object(&value)?;
    Ok(verdict)
}

fn damaged(text: &str, out: &mut Out) -> Result<(), Failure> {
    out.wrong("damaged", text)?;
    out.object(&json!({ "kind": "damage", "text": text }))
}

/// The roots that are set, by number and by name. `false`: one of them is damaged.
fn roots(store: &Store, pool: &Pool, out: &mut Out) -> Result<bool, Failure> {
    let mut sound = true;
    let mut roots = 0_u64;
    for index in (0..ROOT_COUNT).filter_map(|index| u16::try_from(index).ok()) {
        let root = match pool.heap().root(index) {
            Ok(root) if root.addr == 0 => continue,
            Ok(root) => root,
            Err(error) => {
                roots += 1;
                sound = false;
                damaged(&error.to_string(), out)?;
                continue;
            }
        };
        roots += 1;
        let type_name = type_name(store, root.type_id);
        out.field("root", format_args!("{index}: {type_name} at {:#x}", root.addr))?;
        out.object(&json!({
            "kind": "root", "index": index, "addr": root.addr, "type": type_name,
            "type_id": root.type_id.to_string(),
        }))?;
    }
    let named = pool.named_roots()?;
    for root in &named {
        let type_name = type_name(store, root.type_id);
        out.field("root", format_args!("{:?}: {type_name} at {:#x}", root.name, root.addr))?;
        out.object(&json!({
            "kind": "named-root", "name": root.name, "addr": root.addr, "type": type_name,
            "type_id": root.type_id.to_string(),
        }))?;
    }
    if roots == 0 && named.is_empty() {
        out.field("root", "none is set")?;
    }
    Ok(sound)
}

/// A block a line, as wide as it comes: there may be millions.
fn all_blocks(store: &Store, pool: &Pool, blocks: u64, out: &mut Out) -> Result<(), Failure> {
    let bar = progress::bar(blocks, "reading blocks", out.is_json());
    let mut found = Vec::new();
    pool.heap()
        .walk(&mut |block| {
            found.push(block);
            bar.inc(1);
        })
        .map_err(cenote::Error::from)?;
    bar.finish_and_clear();
    out.line("")?;
    let mut last = None;
    let mut last_name = String::new();
    for block in found {
        if last != Some(block.type_id) {
            last_name = type_name(store, block.type_id);
            last = Some(block.type_id);
        }
        if out.is_json() {
            out.object(&json!({
                "kind": "block", "addr": block.addr, "bytes": block.size, "type": last_name,
                "type_id": block.type_id.to_string(),
            }))?;
        } else {
            out.line(format_args!("{:#x}  {:>10}  {last_name}", block.addr, bytes(block.size)))?;
        }
    }
    Ok(())
}
