//! `cenote completions` and `cenote man`: what is made from the command line's own description.

use crate::cli::{Cli, Completions, Man};
use crate::failure::{Failure, Verdict};
use crate::output::Out;
use clap::CommandFactory as _;
use serde_json::json;

pub(crate) fn completions(arguments: &Completions, out: &mut Out) -> Result<Verdict, Failure> {
    // Into memory first: `generate` panics if a pipe is closed.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "cenote", &mut script);
    if out.is_json() {
        let text = String::from_utf8_lossy(&script);
        out.object(&json!({ "shell": arguments.shell.to_string(), "script": text }))?;
    } else {
        out.bytes(&script)?;
    }
    Ok(Verdict::Clean)
}

pub(crate) fn pages(arguments: &Man, out: &mut Out) -> Result<Verdict, Failure> {
    let dir = &arguments.dir;
    let failed = |error: std::io::Error| {
        Failure::Failed(format!(
            "cannot write manual pages to {}: {error}: choose another directory",
            dir.display()
        ))
    };
    std::fs::create_dir_all(dir).map_err(failed)?;
    let mut command = Cli::command();
    command.build();
    let mut pages = Vec::new();
    collect(command, "cenote", &mut pages);
    let mut written = Vec::new();
    for (name, page) in pages {
        let mut text = Vec::new();
        clap_mangen::Man::new(page).render(&mut text).map_err(failed)?;
        let path = dir.join(format!("{name}.1"));
        std::fs::write(&path, text).map_err(failed)?;
        written.push(path.display().to_string());
    }
    for path in &written {
        out.line(path)?;
    }
    out.object(&json!({ "pages": written }))?;
    Ok(Verdict::Clean)
}

/// A command and all below it, each with the name of its page: `cenote-object-create`.
fn collect(command: clap::Command, name: &str, pages: &mut Vec<(String, clap::Command)>) {
    let shown = |sub: &&clap::Command| !sub.is_hide_set() && sub.get_name() != "help";
    for sub in command.get_subcommands().filter(shown) {
        collect(sub.clone(), &format!("{name}-{}", sub.get_name()), pages);
    }
    pages.push((name.to_owned(), command));
}
