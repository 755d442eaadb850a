//! What `docs/format.md` draws and lists.

pub(crate) fn document() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format.md");
    std::fs::read_to_string(path).expect("docs/format.md is there")
}

/// The text from a heading to the next of the same level or a higher one.
pub(crate) fn section<'a>(document: &'a str, heading: &str) -> &'a str {
    let level = heading.chars().take_while(|&c| c == '#').count();
    let start =
        document.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no section {heading}"));
    let body = &document[start + 1 + heading.len()..];
    let mut end = body.len();
    for (at, _) in body.match_indices("\n#") {
        if body[at + 1..].chars().take_while(|&c| c == '#').count() <= level {
            end = at;
            break;
        }
    }
    &body[..end]
}

/// The boxes of a section's drawings. Each is a column of `OFFSET +----` lines, every one followed
/// by a line that names what is there; an offset without a name ends a box.
fn boxes(section: &str) -> Vec<Vec<(usize, String)>> {
    let lines: Vec<Vec<char>> = section.lines().map(|line| line.chars().collect()).collect();
    let mut open: Vec<(usize, Vec<(usize, String)>)> = Vec::new();
    let mut done = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        for column in 0..line.len().saturating_sub(1) {
            if line[column] != '+' || line[column + 1] != '-' {
                continue;
            }
            let before: String = line[..column].iter().collect();
            let Some(offset) =
                before.strip_suffix(' ').and_then(|b| b.rsplit(' ').next()?.parse().ok())
            else {
                continue;
            };
            let name: String = lines
                .get(number + 1)
                .filter(|next| next.get(column) == Some(&'|'))
                .map(|next| next[column + 1..].iter().take_while(|&&c| c != '|').collect())
                .unwrap_or_default();
            let name = name.trim().split([' ', ',']).next().unwrap_or_default().to_owned();
            let at = match open
                .iter()
                .position(|(c, fields)| *c == column && fields.last().is_some_and(|f| f.0 < offset))
            {
                Some(at) => at,
                None => {
                    open.push((column, Vec::new()));
                    open.len() - 1
                }
            };
            if name.is_empty() {
                let (_, mut fields) = open.remove(at);
                fields.push((offset, String::new()));
                done.push(fields);
            } else {
                open[at].1.push((offset, name));
            }
        }
    }
    done.extend(open.into_iter().map(|(_, fields)| fields));
    done
}

/// The box that begins with these names is exactly `expected`, which ends with the size of the
/// whole, without a name.
#[track_caller]
pub(crate) fn assert_drawn(section: &str, expected: &[(usize, &str)]) {
    let expected: Vec<(usize, String)> =
        expected.iter().map(|(offset, name)| (*offset, (*name).to_owned())).collect();
    let all = boxes(section);
    assert!(all.contains(&expected), "not drawn like this: {expected:?}\ndrawn: {all:#?}");
}

/// The cells of the rows of a section's tables, without headings.
pub(crate) fn rows(section: &str) -> Vec<Vec<String>> {
    let cells =
        |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    section
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| ---"))
        .map(cells)
        .collect()
}
