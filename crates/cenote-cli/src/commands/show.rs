//! `cenote show`: the values of a pool, by what the store records about types.
//!
//! [`ValueWalker`] reads them; here are the pools that pointers lead to, the roots that paths begin
//! with, and what users read. A damaged value is said in its place, and the status is 1.

mod blocks;
mod json;
mod near;
mod roots;
mod text;

use super::damage;
use super::each::each;
use super::protected::lacks_key;
use super::stats::chosen;
use crate::advice::{answer_for, at_rest};
use crate::cli::Show;
use crate::failure::{Failure, STORE, Verdict, word};
use crate::opening;
use crate::output::Out;
use crate::stop::Stop;
use blocks::StoreBlocks;
use cenote::{Access, Error, Pool, Store};
use cenote_layout::values::Values;
use cenote_layout::values::shown::{
    PathRoot, PathStep, ShownLimits, ShownPath, ShownPlace, ShownValue, StepProblem, ValueWalker,
};
use cenote_store::StoreError;
use near::{listed, meant};
use roots::{RootOf, roots_of};
use serde_json::{Value, json};
use std::path::Path;

pub(crate) fn run(arguments: &Show, out: &mut Out) -> Result<Verdict, Failure> {
    let stop = Stop::install();
    out.heed(stop.clone());
    let path = arguments.path.as_deref().map(parsed).transpose()?;
    let store = opening::to_look(&arguments.store)?;
    let named: Vec<String> = arguments.pool.iter().cloned().collect();
    let names = chosen(&store, &named)?;
    if names.is_empty() {
        out.line(out.dim("no pools yet: a program makes one, or `cenote create`"))?;
    }
    let lost = damage::tell_lost(&store, &names, out)?;
    let torn = tell_torn(&store, &names, &arguments.store.dir, out)?;
    let values = Values::new(store.types());
    let mut is_first = true;
    let verdict = each(&names, &named, out, |name, out| {
        let pool = match store.pool_with(name, Access::ReadOnly) {
            Err(Error::Store(StoreError::AtRest { source, .. }))
                if named.is_empty() && lacks_key(&source) =>
            {
                let label = out.warn("not shown:");
                out.line(format_args!("{label} pool \"{name}\": {}", at_rest(&source)))?;
                out.object(&json!({ "pool": name, "locked": true }))?;
                return Ok(Verdict::Clean);
            }
            opened => opened?,
        };
        if !core::mem::replace(&mut is_first, false) {
            out.line("")?;
        }
        let limits = ShownLimits {
            depth: arguments.depth,
            count: arguments.count,
            bytes: arguments.bytes,
            ..ShownLimits::default()
        };
        let shown = ShownPool { store: &store, pool: &pool, values: &values, limits, stop: &stop };
        match (&path, &arguments.path) {
            (Some(path), Some(text)) => shown.at(path, text, out),
            _ => shown.roots(named.is_empty(), out),
        }
    })?;
    let found = [lost, torn, verdict].contains(&Verdict::Found);
    Ok(Verdict::found(found))
}

/// A path, or where it is none: the caret stands before the place.
fn parsed(text: &str) -> Result<ShownPath, Failure> {
    ShownPath::parse(text).map_err(|syntax| {
        let (before, behind) = text.split_at_checked(syntax.at).unwrap_or((text, ""));
        Failure::Usage(format!(
            "this PATH cannot be read at the caret: {before}^{behind}: {syntax}: see `cenote show \
             --help`"
        ))
    })
}

/// Pools whose values may be those of two moments.
fn tell_torn(
    store: &Store,
    names: &[String],
    dir: &Path,
    out: &mut Out,
) -> Result<Verdict, Failure> {
    let dir = word(&dir.display().to_string());
    let mut torn = store.torn_pools();
    torn.extend(store.report().not_covered.iter().map(|(_, name)| name.clone()));
    torn.sort();
    torn.dedup();
    torn.retain(|name| names.contains(name));
    for name in &torn {
        let text = format!("pool \"{name}\": its values may be torn: {}", answer_for(name));
        let text = text.replace(STORE, &dir);
        out.wrong("torn", &text)?;
        out.object(&json!({ "pool": name, "torn": text }))?;
    }
    Ok(Verdict::found(!torn.is_empty()))
}

/// A pool that is shown.
struct ShownPool<'s> {
    store: &'s Store,
    pool: &'s Pool,
    values: &'s Values,
    limits: ShownLimits,
    stop: &'s Stop,
}

impl ShownPool<'_> {
    /// All roots.
    fn roots(&self, is_one_of_many: bool, out: &mut Out) -> Result<Verdict, Failure> {
        let mut blocks = StoreBlocks::new(self.store, self.pool, self.stop);
        let mut walker = ValueWalker::new(self.values, &mut blocks, self.limits);
        let (roots, mut wrong) = roots_of(self.pool);
        let name = self.pool.name();
        if is_one_of_many || roots.is_empty() {
            out.line(out.bold(&text::plain(&format!("pool \"{name}\""))))?;
        }
        if roots.is_empty() && wrong.is_empty() {
            out.line("  no root is set: nothing leads to a value")?;
        }
        for what in &wrong {
            out.wrong("damaged", text::plain(what))?;
        }
        let mut all = Vec::new();
        for RootOf { root, addr, type_id } in &roots {
            let label = root.to_string();
            let (type_name, value) = match walker.root(*addr, *type_id) {
                Ok(place) => {
                    let value = walker.show(&place, &label);
                    (place.type_name, value)
                }
                Err(what) => {
                    wrong.push(format!("root {label}: {what}"));
                    let bytes = Vec::new();
                    (
                        super::stats::type_name(self.store, *type_id),
                        ShownValue::Damaged { what, bytes },
                    )
                }
            };
            self.stop.check()?;
            print(&label, &type_name, &value, out)?;
            if out.is_json() {
                all.push(json!({
                    "root": label, "type": type_name, "value": json::value(&value),
                }));
            }
        }
        let damaged = walker.damaged() + wrong.len() as u64;
        self.tell_cut(walker.is_cut(), out)?;
        out.object(&json!({
            "pool": name, "roots": all, "damaged": damaged, "damage": wrong,
            "cut": walker.is_cut(),
        }))?;
        Ok(Verdict::found(damaged > 0))
    }

    /// The value at a path.
    fn at(&self, path: &ShownPath, text: &str, out: &mut Out) -> Result<Verdict, Failure> {
        let mut blocks = StoreBlocks::new(self.store, self.pool, self.stop);
        let mut walker = ValueWalker::new(self.values, &mut blocks, self.limits);
        let (roots, wrong) = roots_of(self.pool);
        let root = self.root(&roots, &wrong, (path, text))?;
        let label = match path.root {
            PathRoot::Only => format!("{}{text}", root.root),
            _ => text.to_owned(),
        };
        let found = match walker.root(root.addr, root.type_id) {
            Ok(place) => self.follow(&mut walker, place, path, text)?,
            Err(why) => Err(format!("root {}: {why}", root.root)),
        };
        let (type_name, value) = match found {
            Ok(place) => {
                let value = walker.show(&place, &label);
                (place.type_name, value)
            }
            Err(what) => (String::new(), ShownValue::Damaged { what, bytes: Vec::new() }),
        };
        self.stop.check()?;
        let damaged = walker.damaged() + u64::from(type_name.is_empty());
        print(&label, &type_name, &value, out)?;
        self.tell_cut(walker.is_cut(), out)?;
        if out.is_json() {
            out.object(&json!({
                "pool": self.pool.name(), "path": label,
                "type": Some(&type_name).filter(|name| !name.is_empty()),
                "value": json::value(&value), "damaged": damaged, "damage": Value::Array(vec![]),
                "cut": walker.is_cut(),
            }))?;
        }
        Ok(Verdict::found(damaged > 0))
    }

    /// The root that a path begins with.
    fn root<'r>(
        &self,
        roots: &'r [RootOf],
        wrong: &[String],
        (path, text): (&ShownPath, &str),
    ) -> Result<&'r RootOf, Failure> {
        let pool = self.pool.name();
        let there: Vec<String> = roots.iter().map(|root| root.root.to_string()).collect();
        let failed = |why: String| Err(failure(pool, &why));
        if path.root == PathRoot::Only {
            return match roots {
                [root] => Ok(root),
                [] => failed("no root is set: nothing leads to a value".into()),
                _ => failed(format!(
                    "it has several roots: begin the PATH with one of {}",
                    listed(&there, there.len() as u64)
                )),
            };
        }
        if let Some(root) = roots.iter().find(|root| root.root == path.root) {
            return Ok(root);
        }
        let name = path.root.to_string();
        if let Some(damage) = wrong.first() {
            return failed(format!("root `{name}` is not found, and roots are damaged: {damage}"));
        }
        if there.is_empty() {
            return failed("no root is set: nothing leads to a value".into());
        }
        let meant = meant(&name, &there);
        let all = listed(&there, there.len() as u64);
        failed(match roots {
            [_] if meant.is_empty() && !text.starts_with('"') => format!(
                "there is no root `{name}`: the only root is {all}, which a PATH may leave out: \
                 .{text}"
            ),
            _ => format!("there is no root `{name}`: {meant}its roots are {all}"),
        })
    }

    /// Goes the steps of a path. Damage on the way is an answer.
    fn follow(
        &self,
        walker: &mut ValueWalker<'_>,
        mut place: ShownPlace,
        path: &ShownPath,
        text: &str,
    ) -> Result<Result<ShownPlace, String>, Failure> {
        let mut before = path.root_end;
        for (step, end) in &path.steps {
            place = match walker.step(&place, step) {
                Ok(next) => {
                    before = *end;
                    next
                }
                Err(_) if self.stop.is_set() => return Ok(Err("stopped".into())),
                Err(StepProblem::Damaged(why)) => return Ok(Err(why)),
                Err(problem) => {
                    let to = text.get(..*end).unwrap_or(text);
                    let from = text.get(..before).unwrap_or(text);
                    let pool = self.pool.name();
                    return Err(failure(pool, &explained(&problem, step, from, to)));
                }
            };
        }
        Ok(Ok(place))
    }

    fn tell_cut(&self, is_cut: bool, out: &mut Out) -> Result<(), Failure> {
        if is_cut {
            out.line(out.dim(&format!(
                "not all of it is shown (at most {} values): give a PATH, or smaller --count and \
                 --depth",
                crate::units::count(self.limits.values)
            )))?;
        }
        Ok(())
    }
}

/// Names and keys come from the store: they reach no terminal as they are.
fn failure(pool: &str, why: &str) -> Failure {
    Failure::Failed(text::plain(&format!("pool \"{pool}\": {why}")))
}

/// Why a step leads nowhere, and what there is instead.
fn explained(problem: &StepProblem, step: &PathStep, from: &str, to: &str) -> String {
    match problem {
        StepProblem::NoField { name, there, .. } => {
            let has = match there.is_empty() {
                true => "it has none".into(),
                false => format!("it has {}", listed(there, there.len() as u64)),
            };
            format!("{to}: {problem}: {}{has}", meant(name, there))
        }
        StepProblem::NoKey { key, there, len, .. } => {
            let has = match len {
                0 => "it is empty".into(),
                _ => format!("it has {}", listed(there, *len)),
            };
            format!("{to}: {problem}: {}{has}", meant(key, there))
        }
        StepProblem::OtherVariant { is, .. } => format!("{to}: {problem}: use {from}.{is}"),
        StepProblem::NoElement { len: 0, .. } => format!("{to}: {problem}: it is empty"),
        StepProblem::NoElement { len, .. } => {
            format!("{to}: {problem}: use a number from 0 to {}", len - 1)
        }
        StepProblem::Null => format!("{from}: {problem}: end the PATH there"),
        _ if from.is_empty() => format!("{to}: {problem}: leave out {step}"),
        _ => format!("{to}: {problem}: end the PATH at {from}"),
    }
}

/// A value with its name.
fn print(label: &str, type_name: &str, value: &ShownValue, out: &mut Out) -> Result<(), Failure> {
    if out.is_json() {
        return Ok(());
    }
    let name = out.bold(&text::plain(label));
    let mut lines = text::lines(&format!("{label}: "), type_name, value).into_iter();
    let first = lines.next().unwrap_or_default();
    let rest = first.strip_prefix(&text::plain(label)).unwrap_or(&first).to_owned();
    out.line(format_args!("{name}{rest}"))?;
    lines.try_for_each(|line| out.line(line))
}
