//! Paths: from a root to a value, as users write them.
//!
//! ```text
//! path:   [root] step*
//! root:   a name or a number of digits alone, up to the first `.` or `[`; or a name in quotes
//! step:   .name | [key] | [#position]
//! key:    characters up to `]`, or a text in quotes with \" \\ \n \t \r and \u{hexadecimal}
//! ```

use super::{String, Vec};
use core::fmt;

/// The root that a path begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathRoot {
    /// None is said: the only one of the pool.
    Only,
    /// A root with a name.
    Name(String),
    /// A numbered root.
    Number(u16),
}

/// An index of an array, or a key of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathKey {
    /// What is between the brackets, without quotes.
    pub text: String,
    /// Whether it was in quotes: then it is no number.
    pub is_quoted: bool,
}

/// As a path begins with it.
impl fmt::Display for PathRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Only => Ok(()),
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => {
                let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
                match is_number || name.contains(['.', '[', '"']) {
                    true => f.write_str(&super::walk::quoted(name)),
                    false => f.write_str(name),
                }
            }
        }
    }
}

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathStep {
    /// To a field, or to a variant of an enum.
    Field(String),
    /// To an element, or to the value of a key.
    Key(PathKey),
    /// To the value of an entry of a map by its position, from 0.
    Position(u64),
}

impl fmt::Display for PathKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_quoted {
            true => f.write_str(&super::walk::quoted(&self.text)),
            false => f.write_str(&self.text),
        }
    }
}

impl fmt::Display for PathStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(key) => write!(f, "[{key}]"),
            Self::Position(number) => write!(f, "[#{number}]"),
        }
    }
}

/// A way from a root to a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownPath {
    /// Where it begins.
    pub root: PathRoot,
    /// The byte of the text behind the root.
    pub root_end: usize,
    /// Its steps, each with the byte of the text behind it.
    pub steps: Vec<(PathStep, usize)>,
}

/// A text is no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{expected}")]
pub struct PathSyntax {
    /// The byte of the text from which on it is none.
    pub at: usize,
    /// What a path has there.
    pub expected: &'static str,
}

/// The rest of a text, and where that begins.
struct PathReader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> PathReader<'t> {
    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn refuse<T>(&self, expected: &'static str) -> Result<T, PathSyntax> {
        Err(PathSyntax { at: self.at, expected })
    }

    fn take(&mut self, letter: char) -> bool {
        let is_next = self.rest().starts_with(letter);
        self.at += if is_next { letter.len_utf8() } else { 0 };
        is_next
    }

    /// Up to one of these characters, or the end.
    fn until(&mut self, ends: &[char]) -> &'t str {
        let rest = self.rest();
        let len = rest.find(ends).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    fn spaces(&mut self) {
        while self.take(' ') {}
    }

    /// A text in quotes, of which the first was read.
    fn quoted(&mut self) -> Result<String, PathSyntax> {
        let mut out = String::new();
        loop {
            let Some(letter) = self.rest().chars().next() else {
                return self.refuse("a quote that ends the text is missing");
            };
            let at = self.at;
            self.at += letter.len_utf8();
            match letter {
                '"' => return Ok(out),
                '\\' => match self.escaped() {
                    Some(letter) => out.push(letter),
                    None => {
                        self.at = at;
                        return self.refuse(
                            "after \\ comes one of \\ \" n t r, or a character as u{1f600}",
                        );
                    }
                },
                letter => out.push(letter),
            }
        }
    }

    fn escaped(&mut self) -> Option<char> {
        let letter = self.rest().chars().next()?;
        self.at += letter.len_utf8();
        Some(match letter {
            '\\' | '"' => letter,
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'u' => {
                let digits = self.take('{').then(|| self.until(&['}']))?;
                let is_closed = self.take('}');
                let code = u32::from_str_radix(digits, 16).ok().filter(|_| is_closed)?;
                char::from_u32(code)?
            }
            _ => return None,
        })
    }

    fn root(&mut self) -> Result<PathRoot, PathSyntax> {
        if self.take('"') {
            return self.quoted().map(PathRoot::Name);
        }
        let at = self.at;
        let name = self.until(&['.', '[']);
        if name.is_empty() {
            return Ok(PathRoot::Only);
        }
        if !name.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(PathRoot::Name(name.into()));
        }
        match name.parse() {
            Ok(number) if number < 1024 => Ok(PathRoot::Number(number)),
            _ => {
                self.at = at;
                self.refuse("roots have numbers from 0 to 1023; a name of digits is in quotes")
            }
        }
    }

    fn step(&mut self) -> Result<PathStep, PathSyntax> {
        if self.take('.') {
            let name = self.until(&['.', '[', ']']);
            return match name.is_empty() {
                true => self.refuse("a name of a field is missing behind the point"),
                false => Ok(PathStep::Field(name.into())),
            };
        }
        if !self.take('[') {
            return self.refuse("a step begins with . or [");
        }
        self.spaces();
        if self.take('#') {
            let digits = self.until(&[']', ' ']);
            let Ok(number) = digits.parse() else {
                self.at -= digits.len();
                return self.refuse("behind # comes the position of an entry, a number from 0");
            };
            return self.end(PathStep::Position(number));
        }
        if self.take('"') {
            let text = self.quoted()?;
            return self.end(PathStep::Key(PathKey { text, is_quoted: true }));
        }
        let text = self.until(&[']']).trim_end();
        match text.is_empty() {
            true => self.refuse("an index or a key is missing in the brackets"),
            false => self.end(PathStep::Key(PathKey { text: text.into(), is_quoted: false })),
        }
    }

    fn end(&mut self, step: PathStep) -> Result<PathStep, PathSyntax> {
        self.spaces();
        match self.take(']') {
            true => Ok(step),
            false => self.refuse("] is missing"),
        }
    }
}

impl ShownPath {
    /// Reads a path.
    ///
    /// # Errors
    /// It is none: from where on.
    pub fn parse(text: &str) -> Result<Self, PathSyntax> {
        let mut reader = PathReader { text, at: 0 };
        let root = reader.root()?;
        let root_end = reader.at;
        let mut steps = Vec::new();
        while !reader.rest().is_empty() {
            steps.push((reader.step()?, reader.at));
        }
        match (&root, steps.is_empty()) {
            (PathRoot::Only, true) => reader.refuse("a path begins with the name of a root"),
            _ => Ok(Self { root, root_end, steps }),
        }
    }
}
