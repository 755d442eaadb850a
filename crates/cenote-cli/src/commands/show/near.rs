//! Names that are like one that does not exist.

/// Most names in a message.
const LISTED: usize = 12;

/// Bytes of a name that is compared with others, at most: the work grows with both lengths.
const LONG: usize = 1024;

/// The first names of a list of `all`.
pub(super) fn listed(names: &[String], all: u64) -> String {
    let first: Vec<&str> = names.iter().take(LISTED).map(String::as_str).collect();
    let more = all.saturating_sub(first.len() as u64);
    match (first.is_empty(), more) {
        (true, _) => format!("{all} with other keys"),
        (_, 0) => first.join(", "),
        _ => format!("{} and {more} more", first.join(", ")),
    }
}

/// The name that is most like this one, if one is: `did you mean ...? `. No number is like another.
pub(super) fn meant(name: &str, there: &[String]) -> String {
    if name.parse::<i128>().is_ok() {
        return String::new();
    }
    let letters = name.chars().count();
    let most = (letters / 3).max(2).min(letters.saturating_sub(1));
    let near = there.iter().filter(|other| name.len().max(other.len()) <= LONG);
    let near = near.map(|other| (distance(name, other), other));
    match near.min_by_key(|(far, _)| *far).filter(|(far, _)| *far <= most) {
        Some((_, other)) => format!("did you mean {other}? "),
        None => String::new(),
    }
}

/// Letters to insert, remove or replace, at least; upper and lower case are one.
fn distance(a: &str, b: &str) -> usize {
    let [a, b] = [a, b].map(|text| {
        text.chars().flat_map(char::to_lowercase).filter(|c| *c != '"').collect::<Vec<char>>()
    });
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut before = core::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let replaced = before + usize::from(from != to);
            before = row[j + 1];
            row[j + 1] = replaced.min(before + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_near_and_another_name_is_not() {
        assert_eq!(distance("hed", "head"), 1);
        assert_eq!(distance("Head", "head"), 0);
        assert_eq!(distance("", "head"), 4);
        let there = ["head", "tail"].map(String::from);
        assert_eq!(meant("hed", &there), "did you mean head? ");
        assert_eq!(meant("number", &there), "");
        assert_eq!(meant("x", &["0".into()]), "", "each letter is replaced");
        assert_eq!(meant("\"5\"", &["5".into()]), "did you mean 5? ");
        let long = "x".repeat(1 << 17);
        assert_eq!(meant(&long, std::slice::from_ref(&long)), "", "it would take minutes");
        assert_eq!(meant("7", &["8".into()]), "");
        assert_eq!(listed(&there, 5), "head, tail and 3 more");
    }
}
