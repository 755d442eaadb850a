//! `cenote top`: shows a daemon and its clients, live.
//!
//! Everything shown was asked for in messages that any client may send. Other users chose the names
//! of programs and pools: control characters in them are shown as `?`, so that no name changes the
//! terminal.

use crate::cli::Top;
use crate::failure::{Failure, Verdict};
use crate::output::{Out, colour_is_welcome};
use crate::screen::{Screen, Woken};
use crate::units::{bytes, count};
use cenote::{AtRest, ClientItem, DaemonStat, DaemonWatcher, ListedPool, Uuid};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

/// What a daemon said at one moment.
struct Moment {
    at: Instant,
    stat: DaemonStat,
    clients: Vec<ClientItem>,
    pools: Vec<ListedPool>,
    /// Which client this is.
    own: Uuid,
}

fn ask(watcher: &mut DaemonWatcher) -> std::io::Result<Moment> {
    let (clients, pools) = (watcher.clients()?, watcher.pools()?);
    Ok(Moment { at: Instant::now(), stat: watcher.stat()?, clients, pools, own: watcher.client() })
}

/// What happened between two moments, by the second.
struct Rates {
    messages: f64,
    psyncs: f64,
    /// By client.
    clients: HashMap<Uuid, f64>,
    recoveries: u64,
}

impl Rates {
    fn between(before: &Moment, now: &Moment) -> Self {
        let seconds = (now.at - before.at).as_secs_f64().max(1e-3);
        let known: HashMap<Uuid, u64> =
            before.clients.iter().map(|c| (c.client, c.messages)).collect();
        // A client of a new daemon begins again at 0.
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let clients = now.clients.iter();
        Self {
            messages: rate(now.stat.messages, before.stat.messages),
            psyncs: rate(now.stat.psyncs, before.stat.psyncs),
            clients: clients
                .map(|c| (c.client, rate(c.messages, known.get(&c.client).copied().unwrap_or(0))))
                .collect(),
            recoveries: now.stat.recoveries.saturating_sub(before.stat.recoveries),
        }
    }

    fn of(&self, client: Uuid) -> f64 {
        self.clients.get(&client).copied().unwrap_or(0.0)
    }
}

pub(crate) fn run(arguments: &Top, out: &mut Out) -> Result<Verdict, Failure> {
    let socket = &arguments.socket;
    let cannot = |error: std::io::Error| {
        Failure::Failed(format!(
            "{}: {error}: give the socket of a daemon that runs, and that this user may connect to",
            socket.display()
        ))
    };
    let mut watcher = DaemonWatcher::connect(socket).map_err(cannot)?;
    let mut before = ask(&mut watcher).map_err(cannot)?;
    let users = users();
    if !arguments.once && !out.is_json() && Screen::is_there() {
        drop(watcher);
        return live(arguments, before, &users);
    }
    loop {
        std::thread::sleep(arguments.interval);
        let now = ask(&mut watcher).map_err(cannot)?;
        let rates = Rates::between(&before, &now);
        for line in picture(&now, &rates, socket, &users, (usize::MAX, usize::MAX), false) {
            out.line(line)?;
        }
        out.object(&object(&now, &rates))?;
        out.finish()?;
        if arguments.once {
            return Ok(Verdict::Clean);
        }
        out.line("")?;
        before = now;
    }
}

/// On a terminal, until the user has seen enough.
fn live(arguments: &Top, first: Moment, users: &HashMap<u32, String>) -> Result<Verdict, Failure> {
    let mut screen = Screen::enter()?;
    let colour = colour_is_welcome();
    let (mut before, mut watcher) = (first, None);
    loop {
        let connected = match watcher.take() {
            Some(watcher) => Ok(watcher),
            None => DaemonWatcher::connect(&arguments.socket),
        };
        let asked = connected.and_then(|mut connected| {
            let moment = ask(&mut connected)?;
            watcher = Some(connected);
            Ok(moment)
        });
        let (width, height) = Screen::size();
        match asked {
            Ok(now) => {
                let rates = Rates::between(&before, &now);
                let size = (width, height.saturating_sub(1));
                let mut lines = picture(&now, &rates, &arguments.socket, users, size, colour);
                lines.resize(height.saturating_sub(1), String::new());
                lines.push(dim(&fit("q or Ctrl-C ends", width), colour));
                screen.draw(&lines)?;
                before = now;
            }
            Err(error) => {
                let said =
                    format!("{}: {error}; waiting for the next daemon", arguments.socket.display());
                screen.draw(&[fit(&clean(&said), width)])?;
            }
        }
        let until = Instant::now() + arguments.interval;
        if screen.wait(until)? == Woken::End {
            return Ok(Verdict::Clean);
        }
    }
}

/// Names of users by number.
fn users() -> HashMap<u32, String> {
    let table = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((fields.nth(1)?.parse().ok()?, name))
    };
    table.lines().filter_map(user).collect()
}

/// Without what would do something to a terminal.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// At most so many characters; what is cut off is said to be.
fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    cut.push('~');
    cut
}

fn dim(text: &str, colour: bool) -> String {
    if colour { format!("\x1b[7m{text}\x1b[0m") } else { text.to_owned() }
}

fn since(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A rate in few characters.
fn rate(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.1}"),
        value if value < 1e5 => count(value as u64),
        value => format!("{}k", count((value / 1e3) as u64)),
    }
}

/// The lines of a moment, in so many columns and lines.
fn picture(
    now: &Moment,
    rates: &Rates,
    socket: &std::path::Path,
    users: &HashMap<u32, String>,
    (width, height): (usize, usize),
    colour: bool,
) -> Vec<String> {
    let drawing = Drawing { now, rates, users, width, colour };
    let mut lines = drawing.totals(socket);
    let mut clients: Vec<&ClientItem> = now.clients.iter().collect();
    let busy = |client: &ClientItem| rates.of(client.client);
    clients.sort_by(|a, b| busy(b).total_cmp(&busy(a)).then(a.pid.cmp(&b.pid)));
    // The other lines are for clients and pools: at least a third for pools, if there are so many.
    // Two lines are the clients' heading and the empty one before it. Of the rest, pools have an
    // empty line and a heading, and one says what there is no room for.
    let taken = lines.len() + 2 + if now.pools.is_empty() { 1 } else { 3 };
    let room = height.saturating_sub(taken);
    let pools_wanted = now.pools.len().min(room / 3).max(room.saturating_sub(clients.len()));
    let clients_shown = clients.len().min(room.saturating_sub(pools_wanted));
    let pools_shown = now.pools.len().min(pools_wanted);
    lines.push(String::new());
    lines.push(drawing.heading(&format!(
        "{:>8} {:<8} {:<15} {:<8} {:>6} {:>7} {:>9}  POOLS",
        "PID", "USER", "PROGRAM", "STATE", "FOR", "MSG/S", "MADE"
    )));
    lines.extend(clients.iter().take(clients_shown).map(|client| drawing.client(client)));
    if !now.pools.is_empty() {
        lines.push(String::new());
        let head = format!("{:<32} {:<9} {:>10} {:>8}  CLIENTS", "POOL", "MODE", "SIZE", "PUDDLES");
        lines.push(drawing.heading(&head));
    }
    let holders = holders(&now.clients);
    let mut pools: Vec<&ListedPool> = now.pools.iter().collect();
    let used = |pool: &ListedPool| holders.get(pool.record.name.as_str()).copied().unwrap_or(0);
    pools.sort_by(|a, b| used(b).cmp(&used(a)).then(b.bytes.cmp(&a.bytes)));
    lines.extend(pools.iter().take(pools_shown).map(|pool| drawing.pool(pool, used(pool))));
    let left = (clients.len() - clients_shown) + (pools.len() - pools_shown);
    if left > 0 {
        lines.push(fit(
            &format!("and {} more, which do not fit on the screen", count(left as u64)),
            width,
        ));
    }
    lines.truncate(height);
    lines
}

/// A moment, as it is drawn in lines of so many columns.
struct Drawing<'a> {
    now: &'a Moment,
    rates: &'a Rates,
    users: &'a HashMap<u32, String>,
    width: usize,
    colour: bool,
}

impl Drawing<'_> {
    /// What is true of the daemon as a whole.
    fn totals(&self, socket: &std::path::Path) -> Vec<String> {
        let (stat, rates) = (&self.now.stat, self.rates);
        let held: u64 = self.now.clients.iter().map(|client| client.pools_held).sum();
        let set_aside = match stat.logs_set_aside {
            0 => String::new(),
            logs => format!("   {logs} set aside: see cenote logs"),
        };
        let failed = match stat.ends_failed {
            0 => String::new(),
            ends => format!("   ends failed {}", count(ends)),
        };
        let socket = clean(&socket.display().to_string());
        let lines = [
            format!("cenoted at {socket}, up {}", since(stat.uptime_s)),
            format!(
                "clients {}   leases {}   pools {}   spare puddles {}   refused {}",
                count(stat.sessions),
                count(held),
                self.now.pools.len(),
                bytes(stat.spare_bytes),
                count(stat.refused),
            ),
            format!(
                "messages {}/s   psyncs {}/s   recoveries {} (+{})   \
                 entries replayed {}{set_aside}{failed}",
                rate(rates.messages),
                rate(rates.psyncs),
                count(stat.recoveries),
                count(rates.recoveries),
                count(stat.entries_replayed),
            ),
        ];
        lines.iter().map(|line| fit(line, self.width)).collect()
    }

    /// A table's first line, over the whole width.
    fn heading(&self, text: &str) -> String {
        let padded = if self.width > 1000 { 0 } else { self.width };
        dim(&format!("{:<padded$}", fit(text, self.width)), self.colour)
    }

    fn client(&self, client: &ClientItem) -> String {
        let user = self.users.get(&client.uid).cloned().unwrap_or_else(|| client.uid.to_string());
        let mut pools: Vec<String> = client
            .pools
            .iter()
            .map(|pool| {
                format!("{}{}", clean(&pool.name), if pool.writable { "" } else { " (reads)" })
            })
            .collect();
        let more = client.pools_held.saturating_sub(client.pools.len() as u64);
        if more > 0 {
            pools.push(format!("and {more} more"));
        }
        let is_own = client.client == self.now.own;
        let program = if is_own { "(this command)".into() } else { clean(&client.program) };
        let text = format!(
            "{:>8} {:<8} {:<15} {:<8} {:>6} {:>7} {:>9}  {}",
            client.pid,
            fit(&clean(&user), 8),
            fit(&program, 15),
            client.state.name(),
            since(client.known_s),
            rate(self.rates.of(client.client)),
            bytes(client.bytes),
            pools.join(", ")
        );
        fit(text.trim_end(), self.width)
    }

    /// A pool that so many clients have.
    fn pool(&self, pool: &ListedPool, clients: u64) -> String {
        let text = format!(
            "{:<32} {:<9} {:>10} {:>8}  {clients}",
            fit(&clean(&pool.record.name), 32),
            super::ls::mode(pool.record.mode, AtRest::None),
            bytes(pool.bytes),
            count(pool.puddles),
        );
        fit(&text, self.width)
    }
}

/// How many clients have a pool, as far as each names its pools.
fn holders(clients: &[ClientItem]) -> BTreeMap<&str, u64> {
    let mut holders = BTreeMap::new();
    for pool in clients.iter().flat_map(|client| &client.pools) {
        *holders.entry(pool.name.as_str()).or_default() += 1;
    }
    holders
}

fn object(now: &Moment, rates: &Rates) -> Value {
    let stat = &now.stat;
    let client = |client: &ClientItem| {
        let pools: Vec<Value> = client
            .pools
            .iter()
            .map(|pool| json!({ "pool": pool.name, "writable": pool.writable }))
            .collect();
        json!({
            "client": client.client.to_string(), "pid": client.pid, "uid": client.uid,
            "program": client.program,
            "state": client.state.name(), "known_s": client.known_s, "messages": client.messages,
            "messages_per_s": rates.of(client.client), "puddles": client.puddles,
            "bytes": client.bytes,
            "pools": pools, "pools_held": client.pools_held, "own": client.client == now.own,
        })
    };
    let pool = |pool: &ListedPool| {
        json!({
            "pool": pool.record.name, "mode": super::ls::mode(pool.record.mode, AtRest::None),
            "uid": pool.record.uid,
            "gid": pool.record.gid, "permissions": format!("{:o}", pool.record.permissions),
            "bytes": pool.bytes, "puddles": pool.puddles,
        })
    };
    json!({
        "uptime_s": stat.uptime_s, "sessions": stat.sessions, "messages": stat.messages,
        "messages_per_s": rates.messages, "psyncs": stat.psyncs, "psyncs_per_s": rates.psyncs,
        "recoveries": stat.recoveries, "logs_replayed": stat.logs_replayed,
        "entries_replayed": stat.entries_replayed,
        "logs_set_aside": stat.logs_set_aside, "refused": stat.refused,
        "ends_failed": stat.ends_failed,
        "spare_bytes": stat.spare_bytes,
        "clients": now.clients.iter().map(client).collect::<Vec<_>>(),
        "pools": now.pools.iter().map(pool).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote::{ClientState, HeapKind, HeldPool, PoolId, PoolMode};
    use cenote_layout::catalog::PoolRecord;
    use std::time::Duration;

    fn moment(clients: u8) -> Moment {
        let client = |number: u8| ClientItem {
            client: Uuid([number; 16]),
            pid: 4_000_000 + u32::from(number),
            uid: 4_294_967_294,
            program: "a\x1b[2J\nprogram".into(),
            state: ClientState::Detached,
            known_s: 100_000,
            messages: u64::MAX,
            puddles: 9,
            bytes: 1023 << 30,
            pools: vec![HeldPool { name: "n\u{9b}".repeat(40), writable: false }; 8],
            pools_held: 1000,
        };
        let stat = DaemonStat {
            sessions: u64::from(clients),
            messages: u64::MAX,
            messages_here: 1,
            recoveries: 1 << 60,
            logs_replayed: 0,
            logs_set_aside: 3,
            entries_replayed: u64::MAX,
            psyncs: 0,
            refused: u64::MAX,
            ends_failed: 2,
            spare_bytes: u64::MAX,
            uptime_s: u64::MAX,
        };
        let clients = (0..clients).map(client).collect();
        Moment { at: Instant::now(), stat, clients, pools: Vec::new(), own: Uuid([1; 16]) }
    }

    #[test]
    fn a_picture_of_any_content_fits_and_has_no_control_characters() {
        for (width, height) in [(80, 24), (40, 10), (20, 5), (200, 60), (1, 1)] {
            for clients in [0, 1, 30, 200] {
                let (mut before, now) = (moment(clients), moment(clients));
                before.at = now.at - Duration::from_secs(1);
                before.stat.messages = 0;
                let rates = Rates::between(&before, &now);
                let lines = picture(
                    &now,
                    &rates,
                    "/run/x\x1b".as_ref(),
                    &HashMap::new(),
                    (width, height),
                    false,
                );
                assert!(lines.len() <= height, "{} lines of {height}", lines.len());
                for line in &lines {
                    assert!(line.chars().count() <= width, "{width}: {line:?}");
                    assert!(!line.chars().any(char::is_control), "{line:?}");
                }
            }
        }
    }

    fn listed(number: u64) -> ListedPool {
        ListedPool {
            record: PoolRecord {
                id: PoolId(number + 1),
                name: format!("pool {number:03}\x1b[2J {}", "long ".repeat(number as usize)),
                mode: PoolMode::Shadowed,
                heap: HeapKind::Traced,
                puddle_size: 2 << 20,
                size_max: u64::MAX,
                uid: 0,
                gid: 0,
                permissions: 0o600,
                created_at_s: 0,
            },
            // The largest come first.
            bytes: (100 - number) << 30,
            puddles: u64::MAX,
        }
    }

    /// What is on the screen, and what the last line says there is no room for.
    #[test]
    fn pools_without_room_are_counted_and_the_largest_are_shown() {
        for (width, height) in [(80usize, 24usize), (80, 23), (40, 10), (20, 6), (1, 1), (0, 0)] {
            for (clients, pools) in
                [(0, 0), (0, 1), (0, 40), (1, 0), (1, 1), (1, 40), (30, 1), (30, 40)]
            {
                let mut now = moment(clients);
                now.pools = (0..pools).rev().map(listed).collect();
                let rates = Rates::between(&moment(clients), &now);
                for colour in [false, true] {
                    let size = (width, height);
                    let lines =
                        picture(&now, &rates, "/run/x".as_ref(), &HashMap::new(), size, colour);
                    let said =
                        format!("{width}x{height}, {clients} clients, {pools} pools: {lines:#?}");
                    assert!(lines.len() <= height, "{said}");
                    // Headings are coloured, and nothing else is.
                    let plain = |line: &String| line.replace("\x1b[7m", "").replace("\x1b[0m", "");
                    let lines: Vec<String> =
                        if colour { lines.iter().map(plain).collect() } else { lines };
                    assert!(lines.iter().all(|line| line.chars().count() <= width), "{said}");
                    assert!(!lines.iter().any(|line| line.chars().any(char::is_control)), "{said}");
                    if height < 10 {
                        continue;
                    }
                    let shown =
                        |what: &str| lines.iter().filter(|line| line.contains(what)).count();
                    let headings = lines.iter().filter(|line| line.starts_with("POOL ")).count();
                    assert_eq!(headings, usize::from(pools > 0), "{said}");
                    let (clients_shown, pools_shown) = (shown("40000"), shown("pool 0"));
                    let left = usize::from(clients) + pools as usize - clients_shown - pools_shown;
                    let told = format!("and {left} more, which do not fit on the screen");
                    assert_eq!(lines.last() == Some(&fit(&told, width)), left > 0, "{said}");
                    // Something of everything, where there are some lines for it; the first in
                    // order.
                    if height >= 23 {
                        assert_eq!(
                            (clients_shown > 0, pools_shown > 0),
                            (clients > 0, pools > 0),
                            "{said}"
                        );
                    }
                    for number in 0..pools {
                        let is_there = shown(&format!("pool {number:03}")) == 1;
                        assert_eq!(is_there, (number as usize) < pools_shown, "{said}");
                    }
                    if height >= 23 && pools == 40 && clients < 2 {
                        assert!(pools_shown > 10 && left > 0, "{said}");
                    }
                    if pools < 2 && clients < 2 {
                        assert_eq!(left, 0, "{said}");
                    }
                }
            }
        }
    }

    #[test]
    fn rates_are_what_happened_in_between() {
        let (mut before, mut now) = (moment(2), moment(3));
        before.at = now.at - Duration::from_secs(2);
        (before.stat.messages, now.stat.messages) = (100, 300);
        (before.clients[0].messages, now.clients[0].messages) = (10, 50);
        // One that came in between, and one whose daemon is another now.
        now.clients[2].messages = 8;
        (before.clients[1].messages, now.clients[1].messages) = (50, 10);
        let rates = Rates::between(&before, &now);
        assert_eq!(rates.messages, 100.0);
        assert_eq!([0, 1, 2].map(|client| rates.of(Uuid([client; 16]))), [20.0, 0.0, 4.0]);
        assert_eq!(rates.of(Uuid([9; 16])), 0.0);
    }
}
