//! Shown values as text, about as Rust prints them: on one line if that has room, else a part a
//! line.

use cenote_layout::values::Values;
use cenote_layout::values::shown::ShownValue;
use std::fmt::{self, Write};

/// Columns of a line, if its parts are shorter.
const WIDTH: usize = 80;
/// Columns of an element that shares its line with others.
const NARROW: usize = 20;

/// A text with control characters as escapes.
pub(super) fn plain(text: &str) -> String {
    text.chars()
        .map(|letter| match letter.is_control() || is_invisible(letter) {
            true => letter.escape_unicode().to_string(),
            false => letter.to_string(),
        })
        .collect()
}

/// Characters that change the order of others on a terminal, or show nothing.
const fn is_invisible(letter: char) -> bool {
    matches!(letter, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        | '\u{e0000}'..='\u{e007f}')
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            letter => out.push_str(&plain(letter.encode_utf8(&mut [0; 4]))),
        }
    }
    out.push('"');
    out
}

/// The beginning of a line. It is full at some length.
struct Room {
    text: String,
    left: usize,
}

impl Write for Room {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let columns = text.chars().count();
        self.left = self.left.checked_sub(columns).ok_or(fmt::Error)?;
        self.text.push_str(text);
        Ok(())
    }
}

/// The value in so many columns; `None`: it needs more.
fn inline(value: &ShownValue, columns: usize) -> Option<String> {
    let mut room = Room { text: String::new(), left: columns };
    write_inline(value, &mut room).ok()?;
    Some(room.text)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

fn more_bytes(more: u64) -> String {
    match more {
        0 => String::new(),
        _ => format!(" ... {} more", crate::units::plural(more, "byte")),
    }
}

fn is_tuple(fields: &[(String, ShownValue)]) -> bool {
    let is_number = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    !fields.is_empty() && fields.iter().all(|(name, _)| is_number(name))
}

/// The name of a structure, or of a variant.
fn title(type_name: &str, variant: Option<&str>) -> String {
    if type_name.starts_with('(') {
        return String::new();
    }
    let name = plain(&Values::short_name(type_name));
    match variant {
        Some(variant) => format!("{name}::{}", plain(variant)),
        None => name,
    }
}

/// What a value is that has no parts.
fn leaf(value: &ShownValue) -> String {
    match value {
        ShownValue::Unit => "()".into(),
        ShownValue::Null => "null".into(),
        ShownValue::Bool(is) => is.to_string(),
        ShownValue::Char(letter) => format!("{letter:?}"),
        ShownValue::Unsigned(number) => number.to_string(),
        ShownValue::Signed(number) => number.to_string(),
        ShownValue::Float32(number) => format!("{number:?}"),
        ShownValue::Float64(number) => format!("{number:?}"),
        ShownValue::Text { text, more } => format!("{}{}", quoted(text), more_bytes(*more)),
        ShownValue::Bytes { bytes, more } => format!("{}{}", hex(bytes), more_bytes(*more)),
        ShownValue::Again { addr, path } => {
            format!("-> the same as {} ({addr:#x})", plain(path))
        }
        ShownValue::Deep { addr, type_name } => {
            format!("-> {} at {addr:#x} ...", plain(&Values::short_name(type_name)))
        }
        ShownValue::Destroyed => "(a collection that was destroyed)".into(),
        ShownValue::Damaged { what, bytes } if bytes.is_empty() => {
            format!("damaged: {}", plain(what))
        }
        ShownValue::Damaged { what, bytes } => format!("damaged: {}: {}", plain(what), hex(bytes)),
        _ => "...".into(),
    }
}

fn write_inline(value: &ShownValue, out: &mut Room) -> fmt::Result {
    match value {
        ShownValue::Pointer(target) => {
            out.write_str("-> ")?;
            write_inline(target, out)
        }
        ShownValue::Struct { type_name, variant, fields } => {
            out.write_str(&title(type_name, variant.as_deref()))?;
            let (open, close) = match (fields.is_empty(), is_tuple(fields)) {
                (true, _) => ("", ""),
                (_, true) => ("(", ")"),
                (_, false) => (" { ", " }"),
            };
            out.write_str(open)?;
            for (number, (name, field)) in fields.iter().enumerate() {
                out.write_str(if number > 0 { ", " } else { "" })?;
                if !is_tuple(fields) {
                    write!(out, "{}: ", plain(name))?;
                }
                write_inline(field, out)?;
            }
            out.write_str(close)
        }
        ShownValue::List { items, more, damage } => {
            out.write_str("[")?;
            for (number, item) in items.iter().enumerate() {
                out.write_str(if number > 0 { ", " } else { "" })?;
                write_inline(item, out)?;
            }
            write_ends(items.is_empty(), (*more, damage), out)?;
            out.write_str("]")
        }
        ShownValue::Map { entries, more, damage } => {
            out.write_str("{")?;
            for (number, (key, value)) in entries.iter().enumerate() {
                out.write_str(if number > 0 { ", " } else { "" })?;
                write_inline(key, out)?;
                out.write_str(": ")?;
                write_inline(value, out)?;
            }
            write_ends(entries.is_empty(), (*more, damage), out)?;
            out.write_str("}")
        }
        leaf_value => out.write_str(&leaf(leaf_value)),
    }
}

fn write_ends(is_empty: bool, ends: (u64, &[String]), out: &mut Room) -> fmt::Result {
    for (number, end) in ends_of(ends).iter().enumerate() {
        out.write_str(if number > 0 || !is_empty { ", " } else { "" })?;
        out.write_str(end)?;
    }
    Ok(())
}

/// What is said behind elements: damage, and how many are not shown.
fn ends_of((more, damage): (u64, &[String])) -> Vec<String> {
    let mut ends: Vec<String> =
        damage.iter().map(|what| format!("damaged: {}", plain(what))).collect();
    if more > 0 {
        ends.push(format!("... {} more", crate::units::count(more)));
    }
    ends
}

/// The value behind a label, with the name of its type, as lines.
pub(super) fn lines(label: &str, type_name: &str, value: &ShownValue) -> Vec<String> {
    let mut out = Vec::new();
    let (label, name) = (plain(label), plain(type_name));
    match value {
        ShownValue::Struct { fields, variant, .. } if !fields.is_empty() => {
            let variant = variant.as_ref().map(|name| format!("::{}", plain(name)));
            out.push(format!("{label}{name}{} {{", variant.unwrap_or_default()));
            for (name, field) in fields {
                write_lines(&format!("{}: ", plain(name)), field, 2, &mut out);
            }
            out.push("}".into());
        }
        ShownValue::Damaged { .. } => write_lines(&label, value, 0, &mut out),
        value => write_lines(&format!("{label}{name} = "), value, 0, &mut out),
    }
    out
}

fn write_lines(label: &str, value: &ShownValue, indent: usize, out: &mut Vec<String>) {
    let start = format!("{:indent$}{label}", "");
    let room = WIDTH.saturating_sub(start.chars().count());
    if let Some(text) = inline(value, room) {
        return out.push(start + &text);
    }
    match value {
        ShownValue::Pointer(target) => write_lines(&format!("{label}-> "), target, indent, out),
        ShownValue::Struct { type_name, variant, fields } if !fields.is_empty() => {
            out.push(format!("{start}{} {{", title(type_name, variant.as_deref())));
            for (name, field) in fields {
                write_lines(&format!("{}: ", plain(name)), field, indent + 2, out);
            }
            out.push(format!("{:indent$}}}", ""));
        }
        ShownValue::List { items, more, damage } => {
            out.push(format!("{start}["));
            let short = items.iter().map(short).collect();
            if !filled(short, indent + 2, out) {
                for (number, item) in items.iter().enumerate() {
                    write_lines(&format!("[{number}] "), item, indent + 2, out);
                }
            }
            for end in ends_of((*more, damage)) {
                out.push(format!("{:1$}{end}", "", indent + 2));
            }
            out.push(format!("{:indent$}]", ""));
        }
        ShownValue::Map { entries, more, damage } => {
            out.push(format!("{start}{{"));
            let pair = |(key, value): &(ShownValue, ShownValue)| {
                Some(format!("{}: {}", short(key)?, short(value)?))
            };
            if !filled(entries.iter().map(pair).collect(), indent + 2, out) {
                for (key, value) in entries {
                    let key = inline(key, usize::MAX).unwrap_or_default();
                    write_lines(&format!("{key}: "), value, indent + 2, out);
                }
            }
            for end in ends_of((*more, damage)) {
                out.push(format!("{:1$}{end}", "", indent + 2));
            }
            out.push(format!("{:indent$}}}", ""));
        }
        value => out.push(start + &leaf(value)),
    }
}

/// A value without parts that leaves room for others on its line.
fn short(value: &ShownValue) -> Option<String> {
    match value {
        ShownValue::List { .. }
        | ShownValue::Map { .. }
        | ShownValue::Struct { .. }
        | ShownValue::Pointer(_)
        | ShownValue::Damaged { .. } => None,
        value => inline(value, NARROW),
    }
}

/// Elements that are all short, several a line; `false`: they are not.
fn filled(short: Option<Vec<String>>, indent: usize, out: &mut Vec<String>) -> bool {
    let Some(short) = short else { return false };
    let mut line = String::new();
    for text in short {
        if !line.is_empty() && indent + line.chars().count() + text.chars().count() + 3 > WIDTH {
            out.push(format!("{:indent$}{line},", ""));
            line.clear();
        }
        line.push_str(if line.is_empty() { "" } else { ", " });
        line.push_str(&text);
    }
    if !line.is_empty() {
        out.push(format!("{:indent$}{line}", ""));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(items: Vec<ShownValue>, more: u64) -> ShownValue {
        ShownValue::List { items, more, damage: Vec::new() }
    }

    fn numbers(many: u128) -> Vec<ShownValue> {
        (0..many).map(|number| ShownValue::Unsigned(1000 + number)).collect()
    }

    #[test]
    fn what_has_room_is_one_line_and_the_rest_is_indented() {
        assert_eq!(
            lines("a: ", "x::List", &list(numbers(3), 1200)),
            ["a: x::List = [1000, 1001, 1002, ... 1,200 more]"]
        );
        let long = lines("a: ", "x::List", &list(numbers(30), 2));
        assert_eq!((long[0].as_str(), long[4].as_str()), ("a: x::List = [", "  ... 2 more"));
        assert!(long[1].starts_with("  1000, 1001, ") && long[1].len() <= WIDTH, "{long:?}");
        let nested = lines("a: ", "x", &list(vec![list(numbers(30), 0)], 0));
        assert!(nested[1] == "  [0] [" && nested[2].starts_with("    1000, "), "{nested:?}");
        let field = ("to".to_owned(), ShownValue::Pointer(Box::new(ShownValue::Null)));
        let type_name = "a::B<c::D>".into();
        let of = ShownValue::Struct { type_name, variant: Some("V".into()), fields: vec![field] };
        assert_eq!(lines("r: ", "a::B<c::D>", &of), ["r: a::B<c::D>::V {", "  to: -> null", "}"]);
        assert_eq!(inline(&of, WIDTH).as_deref(), Some("B::V { to: -> null }"));
    }

    #[test]
    fn nothing_in_a_store_reaches_the_terminal_as_a_control_character() {
        let nasty = "a\u{1b}[2J\u{202e}\n\"\\é\u{61c}";
        let text = ShownValue::Text { text: nasty.into(), more: 2 };
        let shown = leaf(&text);
        assert_eq!(shown, "\"a\\u{1b}[2J\\u{202e}\\n\\\"\\\\é\\u{61c}\" ... 2 bytes more");
        let again = ShownValue::Again { addr: 16, path: nasty.into() };
        for shown in [leaf(&again), lines(nasty, nasty, &text).join("")] {
            assert!(!shown.contains(|letter: char| letter.is_control()), "{shown:?}");
        }
    }
}
