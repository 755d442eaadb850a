//! `cenote types`: the types that a store knows, and which pools use them.

use crate::cli::{Types, TypesCommand, TypesLs, TypesRm, TypesShow};
use crate::failure::{Failure, Verdict, closed};
use crate::opening;
use crate::output::Out;
use crate::table::{Align, Table};
use crate::units::{bytes, count};
use cenote::{Error, Store, TypeUse, TypeUses};
use cenote_layout::types::{FieldRecord, TypeRecord};
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) fn run(arguments: &Types, out: &mut Out) -> Result<Verdict, Failure> {
    match &arguments.command {
        TypesCommand::Ls(ls) => list(ls, out),
        TypesCommand::Show(show) => shown(show, out),
        TypesCommand::Rm(rm) => removed(rm, out),
    }
}

fn list(arguments: &TypesLs, out: &mut Out) -> Result<Verdict, Failure> {
    let uses = opening::to_look(&arguments.store)?.type_uses()?;
    let mut table = Table::new(&[
        ("TYPE", Align::Left),
        ("VERSION", Align::Right),
        ("ID", Align::Left),
        ("SIZE", Align::Right),
        ("BLOCKS", Align::Right),
        ("USED BY", Align::Left),
    ]);
    for found in &uses.types {
        let record = &found.record;
        let blocks: u64 = found.blocks.iter().map(|(_, blocks)| blocks).sum();
        table.row(vec![
            record.name.clone(),
            record.version.to_string(),
            record.id.to_string(),
            bytes(record.size),
            count(blocks),
            users(&uses, found),
        ]);
    }
    if uses.types.is_empty() {
        out.line(out.dim("no types yet"))?;
    } else {
        table.print(out, 0)?;
    }
    for unclear in &uses.unclear {
        let (label, pool, why) = (out.warn("unclear:"), &unclear.pool, &unclear.why);
        out.line(format_args!("{label} pool \"{pool}\" may use every type: {why}"))?;
    }
    for found in &uses.types {
        let pools = |(pool, blocks): &(String, u64)| json!({ "pool": pool, "blocks": blocks });
        let mut object = as_json(&found.record);
        object["blocks"] = found.blocks.iter().map(pools).collect();
        object["used"] = found.is_used.into();
        object["removable"] = uses.is_unused(found.record.id).into();
        out.object(&object)?;
    }
    for unclear in &uses.unclear {
        out.object(&json!({ "kind": "unclear", "pool": unclear.pool, "why": unclear.why }))?;
    }
    Ok(Verdict::Clean)
}

/// What uses a type, for people.
fn users(uses: &TypeUses, found: &TypeUse) -> String {
    let pools: Vec<&str> = found.blocks.iter().map(|(pool, _)| pool.as_str()).collect();
    match (pools.is_empty(), found.is_used) {
        (false, _) => pools.join(", "),
        (true, true) => "other types".into(),
        (true, false) if uses.is_unused(found.record.id) => "-".into(),
        (true, false) => "unclear".into(),
    }
}

fn shown(arguments: &TypesShow, out: &mut Out) -> Result<Verdict, Failure> {
    let store = opening::to_look(&arguments.store)?;
    let records = match arguments.types.is_empty() {
        true => by_name(&store),
        false => chosen(&store, &arguments.types)?,
    };
    for record in &records {
        for line in record.to_string().lines() {
            out.line(line)?;
        }
        out.object(&as_json(record))?;
    }
    if records.is_empty() {
        out.line(out.dim("no types yet"))?;
    }
    Ok(Verdict::Clean)
}

fn removed(arguments: &TypesRm, out: &mut Out) -> Result<Verdict, Failure> {
    // Looked at first: a type that is not there, or is used, changes no byte.
    let looked = opening::to_look(&arguments.store)?;
    let uses = looked.type_uses()?;
    let records = match arguments.unused {
        true => by_name(&looked).into_iter().filter(|record| uses.is_unused(record.id)).collect(),
        false => chosen(&looked, &arguments.types)?,
    };
    if let Some((record, why)) =
        records.iter().find_map(|record| uses.keeps(record.id).map(|why| (record, why)))
    {
        return Err(Error::TypeUsed { name: record.name.clone(), why }.into());
    }
    drop(looked);
    let store = match arguments.dry_run {
        true => None,
        false => Some(opening::to_change(&arguments.store)?),
    };
    for record in &records {
        let name = &record.name;
        if let Some(store) = &store {
            store.remove_type(record.id)?;
            out.line(format_args!("{} removed type {name}", out.good("done:")))?;
        } else {
            out.line(format_args!("would remove type {name}"))?;
        }
        out.object(&json!({
            "type": name, "type_id": record.id.to_string(), "dry_run": store.is_none(),
        }))?;
    }
    if records.is_empty() {
        out.line("every type is used: nothing to remove")?;
    }
    if let Some(store) = store {
        closed(store.close())?;
    }
    Ok(Verdict::Clean)
}

/// All types, by name.
pub(crate) fn by_name(store: &Store) -> Vec<Arc<TypeRecord>> {
    let mut types = store.types();
    types.sort_by(|a, b| a.name.cmp(&b.name));
    types
}

/// The types of these names or ids, each once.
fn chosen(store: &Store, wanted: &[String]) -> Result<Vec<Arc<TypeRecord>>, Failure> {
    let all = by_name(store);
    let mut found: Vec<Arc<TypeRecord>> = Vec::new();
    for name in wanted {
        let fits = |record: &&Arc<TypeRecord>| {
            let ids = [record.id, record.logical()];
            record.name == *name || ids.iter().any(|id| id.to_string() == *name)
        };
        let these: Vec<&Arc<TypeRecord>> = all.iter().filter(fits).collect();
        match these[..] {
            [] => return Err(Error::TypeUnknown { name: name.clone() }.into()),
            [one] if found.iter().any(|other| other.id == one.id) => {}
            [one] => found.push(Arc::clone(one)),
            ref several => {
                let ids: Vec<String> = several.iter().map(|one| one.id.to_string()).collect();
                let ids = ids.join(" and ");
                return Err(Failure::Usage(format!(
                    "several types have the name {name}: give an id, {ids}"
                )));
            }
        }
    }
    Ok(found)
}

/// A type for programs.
pub(crate) fn as_json(record: &TypeRecord) -> Value {
    let field = |field: &FieldRecord| {
        json!({
            "name": field.name, "offset": field.offset, "bytes": field.size,
            "type": field.type_name, "type_id": field.type_id.to_string(),
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
    json!({
        "kind": "type", "type": record.name, "type_id": record.id.to_string(),
        "version": record.version.of_type, "logical_id": record.logical().to_string(),
        "bytes": record.size, "align": record.align, "repeats": record.repeats,
        "pointers": pointers, "variants": variants,
        "fields": record.fields.iter().map(field).collect::<Vec<_>>(),
    })
}
