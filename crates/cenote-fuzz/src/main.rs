//! `cenote-fuzz TARGET [--seconds N] [--seed S] [--once]`: runs a fuzz target over random inputs; a
//! failure prints the seed that repeats it.

use cenote_fuzz::{FuzzTarget, Random};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Most bytes of one input.
const LEN_MAX: usize = 1024;

fn usage(problem: &str) -> ExitCode {
    let names = FuzzTarget::ALL.map(FuzzTarget::name).join("|");
    eprintln!("{problem}\nusage: cenote-fuzz {names} [--seconds N] [--seed S] [--once]");
    ExitCode::from(2)
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(name) = args.next() else {
        return usage("no target is named");
    };
    let Some(target) = FuzzTarget::from_name(&name) else {
        return usage(&format!("there is no target {name:?}"));
    };
    let (mut seconds, mut first, mut once) = (10, None, false);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|value| value.parse::<u64>().ok());
        match arg.as_str() {
            "--seconds" => match number() {
                Some(value) => seconds = value,
                None => return usage("--seconds wants a number"),
            },
            "--seed" => match number() {
                Some(value) => first = Some(value),
                None => return usage("--seed wants a number"),
            },
            "--once" => once = true,
            other => return usage(&format!("{other:?} is no option")),
        }
    }
    // Without a seed, other inputs every time.
    let first = first.unwrap_or_else(|| {
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Random(now.as_nanos() as u64).next_word() >> 16
    });
    let start = Instant::now();
    let limit = Duration::from_secs(seconds);
    let mut count = 0u64;
    loop {
        let seed = first.wrapping_add(count);
        let input = Random(seed).bytes(LEN_MAX);
        if std::panic::catch_unwind(|| target.run(&input)).is_err() {
            eprintln!("fuzz: {name}, failed; repeat with: cenote-fuzz {name} --seed {seed} --once");
            return ExitCode::FAILURE;
        }
        count += 1;
        if once || start.elapsed() >= limit {
            break;
        }
    }
    println!(
        "fuzz: {name}, {count} inputs, {:.1} seconds, from seed {first}",
        start.elapsed().as_secs_f64()
    );
    ExitCode::SUCCESS
}
