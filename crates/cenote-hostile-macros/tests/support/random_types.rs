//! A generator of programs: random structures and enums that derive `Persist`, among names that
//! could mislead the macro.
//!
//! `main` of the program compares what the macro described with what the compiler has: offsets
//! (`offset_of!`, or the address of the field in a value), sizes, type ids, discriminants (the
//! bytes of a value), and the words that the pointer map finds in a value. It changes every byte
//! that has a rule to what is no value of its type, and compares what the records find with it.

use std::fmt::Write as _;

/// Types of one program.
const TYPES: usize = 40;

/// Items that a module may have. None of them may have any influence on a description.
const SHADOWS: &[&str] = &[
    "mod core {}",
    "mod std {}",
    "mod alloc {}",
    "mod persist {}",
    "pub type u8 = i64;",
    "pub type u16 = i8;",
    "pub type u64 = i8;",
    "pub type usize = i8;",
    "pub type String = ();",
    "pub struct Option;",
    "pub struct MaybeUninit;",
    "pub struct LayoutBuilder;",
    "pub struct VariantBuilder;",
    "pub struct TypeId;",
    "pub trait Persist {}",
    "pub trait Drop {}",
    "pub struct PersistentTypesDoNotImplementDrop;",
    "pub const layout: ::core::primitive::u8 = 1;",
    "pub const value: ::core::primitive::u8 = 1;",
    "pub const slot: ::core::primitive::u8 = 1;",
    "pub const tag: ::core::primitive::u8 = 1;",
    "pub const place: ::core::primitive::u8 = 1;",
    "pub const variant: ::core::primitive::u8 = 1;",
    "pub const field_0: ::core::primitive::u8 = 1;",
    "macro_rules! offset_of { ($($any:tt)*) => { 64 } }",
    "macro_rules! concat { ($($any:tt)*) => { \"u64\" } }",
    "macro_rules! env { ($($any:tt)*) => { \"u64\" } }",
    "macro_rules! assert { ($($any:tt)*) => {} }",
    "macro_rules! panic { ($($any:tt)*) => {} }",
    "pub trait Field {
         fn field(&self) {}
         fn variant(&self) {}
         fn __field(&self) {}
         fn as_ptr(&self) {}
     }
     impl<T: ?Sized> Field for T {}",
];

/// Attributes that say nothing about the layout.
const ATTRIBUTES: &[&str] = &[
    "#[allow(dead_code)]",
    "#[doc = \"documented\"]",
    "#[must_use]",
    "#[cfg(all())]",
    "#[cfg_attr(all(), allow(unused))]",
    "#[non_exhaustive]",
];

/// Number types that need no constructor.
const NUMBERS: &[&str] =
    &["u8", "u16", "u32", "u64", "u128", "i8", "i16", "i32", "i64", "f32", "f64"];

/// Integers that an enum may have for its discriminant, with their bits and whether they have a
/// sign.
const TAGS: &[(&str, u32, bool)] = &[
    ("u8", 8, false),
    ("i8", 8, true),
    ("u16", 16, false),
    ("i16", 16, true),
    ("u32", 32, false),
    ("i32", 32, true),
    ("u64", 64, false),
    ("i64", 64, true),
];

/// The program of a seed.
pub(crate) fn program(seed: u64) -> String {
    let mut random = Random(seed | 1);
    let mut out = format!("// The program of seed {seed}.\n{PRELUDE}");
    let mut main = String::new();
    let mut made: Vec<Made> = Vec::new();
    for number in 0..TYPES {
        let mut module = Module { number, random: &mut random, made: &made, items: String::new() };
        let shadows: Vec<&str> =
            SHADOWS.iter().copied().filter(|_| module.random.below(4) == 0).collect();
        let this =
            if module.random.below(2) == 0 { module.structure() } else { module.enumeration() };
        let items = &module.items;
        let _ = writeln!(out, "pub mod m{number} {{\n{}\n{items}\n}}", shadows.join("\n"));
        main += &this.check;
        let _ = writeln!(out, "{}", this.probe);
        made.push(this);
    }
    let _ = writeln!(out, "fn main() {{\n{main}}}");
    out
}

/// A type that the program has.
struct Made {
    path: String,
    /// An expression that makes a value.
    value: String,
    /// Statements for `main`.
    check: String,
    /// How `main` finds what has a rule in a value.
    probe: String,
}

/// A field, as it is written and as it is checked.
struct Field {
    name: String,
    persistent: String,
    attribute: String,
    ty: String,
    value: String,
}

/// Types of which there are options, with an option of each.
const OPTIONS: &[(&str, &str)] = &[
    ("::core::primitive::u8", "None"),
    ("::core::primitive::u8", "Some(7)"),
    ("::core::primitive::i16", "Some(-7)"),
    ("::core::primitive::u32", "None"),
    ("::core::primitive::f64", "Some(0.5)"),
    ("[::core::primitive::u16; 3]", "Some([1, 2, 3])"),
    ("(::core::primitive::u64, ::core::primitive::u8)", "Some((1, 2))"),
    ("::core::primitive::bool", "Some(true)"),
    ("::core::primitive::bool", "None"),
    ("::core::primitive::char", "None"),
    ("::core::time::Duration", "None"),
    ("::core::num::NonZeroU16", "None"),
];

struct Module<'a> {
    number: usize,
    random: &'a mut Random,
    made: &'a [Made],
    items: String,
}

impl Module<'_> {
    /// A type for a field and an expression for a value of it.
    fn ty(&mut self) -> (String, String) {
        let number = *self.random.choose(NUMBERS);
        match self.random.below(13) {
            0..=2 => (
                format!("::core::primitive::{number}"),
                "::core::default::Default::default()".into(),
            ),
            3 if self.random.below(3) == 0 => ("::core::primitive::char".into(), "'x'".into()),
            3 => ("::core::primitive::bool".into(), "true".into()),
            4 => ("::core::num::NonZeroU16".into(), "::core::num::NonZeroU16::MIN".into()),
            5 => (
                "::core::option::Option<::cenote::Ptr<crate::Target>>".into(),
                "Some(crate::next())".into(),
            ),
            6 => ("::cenote::Ptr<crate::Target>".into(), "crate::next()".into()),
            7 => {
                let (ty, value) = self.ty();
                let len = self.random.below(4);
                (format!("[{ty}; {len}]"), format!("[(); {len}].map(|()| {value})"))
            }
            8 => {
                let (ty, value) = self.random.choose(OPTIONS);
                (format!("::core::option::Option<{ty}>"), (*value).into())
            }
            9 => (
                "::core::time::Duration".into(),
                "::core::time::Duration::new(5, 999_999_999)".into(),
            ),
            10 => {
                let fields: Vec<_> = (0..1 + self.random.below(6)).map(|_| self.ty()).collect();
                let list = |part: fn(&(String, String)) -> &String| {
                    fields.iter().map(|field| part(field).clone() + ", ").collect::<String>()
                };
                (format!("({})", list(|(ty, _)| ty)), format!("({})", list(|(_, value)| value)))
            }
            11 => {
                let macro_name = format!("ty_{}", self.random.below(1 << 30));
                let (ty, value) = self.ty();
                let _ = writeln!(self.items, "macro_rules! {macro_name} {{ () => {{ {ty} }} }}");
                (format!("{macro_name}!()"), value)
            }
            _ if self.made.is_empty() => ("()".into(), "()".into()),
            _ => {
                let other = self.random.choose(self.made);
                (other.path.clone(), other.value.clone())
            }
        }
    }

    fn attribute(&mut self) -> &'static str {
        match self.random.below(6) {
            i @ 0..2 => ATTRIBUTES[i],
            _ => "",
        }
    }

    /// Up to four fields: named, or else numbered.
    fn fields(&mut self, named: bool) -> Vec<Field> {
        let count = self.random.below(5);
        (0..count)
            .map(|i| {
                let name = match (named, i) {
                    (false, i) => i.to_string(),
                    (true, 0) => "layout".to_string(),
                    (true, 1) => "r#type".to_string(),
                    (true, i) => format!("f{i}"),
                };
                let (mut persistent, mut attribute) =
                    (name.replace("r#", ""), self.attribute().to_string());
                if self.random.below(6) == 0 {
                    persistent = format!("was{i}");
                    attribute += &format!(" #[persist(name = \"{persistent}\")]");
                }
                let (ty, value) = self.ty();
                Field { name, persistent, attribute, ty, value }
            })
            .collect()
    }

    /// What stands above a type.
    fn above(&mut self) -> String {
        let attribute =
            ATTRIBUTES.get(self.random.below(2 * ATTRIBUTES.len())).copied().unwrap_or_default();
        format!("#[derive(::cenote::Persist)]\n{attribute}\n#[allow(dead_code)]")
    }

    fn structure(&mut self) -> Made {
        let (number, named) = (self.number, self.random.below(2) == 0);
        let fields = self.fields(named);
        let repr = *self.random.choose(&[
            "",
            "",
            "#[repr(C)]",
            "#[repr(C, align(32))]",
            "#[repr(align(16))]",
        ]);
        let generic = self.random.below(3) == 0 && !fields.is_empty();
        let written: Vec<String> = fields
            .iter()
            .enumerate()
            .map(|(i, field)| {
                let ty = if generic && i == 0 { "T" } else { &field.ty };
                let name = if named { format!("{}: ", field.name) } else { String::new() };
                format!("{} pub {name}{ty}", field.attribute)
            })
            .collect();
        let (head, argument) = if generic {
            (
                "<T, const N: ::core::primitive::u16>",
                format!("<{}, 7>", self.outside(&fields[0].ty)),
            )
        } else {
            ("", String::new())
        };
        let body = match named {
            true => format!("{{ {} }}", written.join(", ")),
            false => format!("({});", written.join(", ")),
        };
        let above = self.above();
        let _ = writeln!(self.items, "{above}\n{repr}\npub struct T{number}{head} {body}");
        let path = format!("crate::m{number}::T{number}{argument}");
        let expression = path.replacen('<', "::<", usize::from(generic));
        let value = constructor(&expression, &fields);
        let mut check = format!("    check::<{path}>(|| {value});\n");
        for Field { name, persistent, .. } in &fields {
            let _ = writeln!(
                check,
                "    field::<{path}, _>(None, {persistent:?}, \
                 ::core::mem::offset_of!({path}, {name}), |value| &value.{name});"
            );
        }
        let _ = writeln!(check, "    count::<{path}>(None, {});", fields.len());
        let _ = writeln!(check, "    flips::<{path}>(|| {value});");
        let probe = |Field { name, persistent, .. }: &Field| {
            format!("        self.{name}.probe(&inside(path, {persistent:?}), found);\n")
        };
        let probe = implementation(&path, &fields.iter().map(probe).collect::<String>());
        Made { path, value, check, probe }
    }

    /// A type as it is written outside the module: macros of the module are not known there, so the
    /// type has a name.
    fn outside(&mut self, ty: &str) -> String {
        let alias = format!("Alias{}", self.random.below(1 << 30));
        let _ = writeln!(self.items, "pub type {alias} = {ty};");
        format!("crate::m{}::{alias}", self.number)
    }

    /// An expression of the discriminant's type that is `tag`, by one of many ways to write it.
    fn discriminant(&mut self, tag: i128, integer: &str) -> String {
        let name = *self.random.choose(&["PERSIST_TAG_", "__cenote_tag_", "tag_", "TAG_"]);
        let name = format!("{name}{}", self.random.below(1 << 30));
        let ty = format!("::core::primitive::{integer}");
        match self.random.below(6) {
            0 => {
                let _ = writeln!(self.items, "pub const {name}: {ty} = {tag};");
                name
            }
            1 => {
                let _ = writeln!(self.items, "pub const {name}: {ty} = {};", tag - 1);
                format!("{name} + 1")
            }
            2 => {
                let _ = writeln!(self.items, "macro_rules! {name} {{ () => {{ {tag} }} }}");
                format!("{name}!()")
            }
            3 => format!("{{ const {name}: {ty} = {tag}; {name} }}"),
            4 => format!("({tag}_i128) as _"),
            _ => tag.to_string(),
        }
    }

    /// The tag of the next variant, and what is written for it: `next` is free to be left out.
    fn tag(
        &mut self,
        next: i128,
        used: &[i128],
        (low, high): (i128, i128),
        integer: &str,
    ) -> (i128, String) {
        if self.random.below(2) != 0 && !used.contains(&next) && next <= high {
            return (next, String::new());
        }
        let near = if self.random.below(2) == 0 { low + 1 } else { high - 40 };
        let mut tag = near + self.random.below(30) as i128;
        while used.contains(&tag) {
            tag += 1;
        }
        (tag, format!(" = {}", self.discriminant(tag, integer)))
    }

    fn enumeration(&mut self) -> Made {
        let number = self.number;
        let &(integer, bits, signed) = self.random.choose(TAGS);
        let (low, high) = match signed {
            true => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
            false => (0, (1i128 << bits) - 1),
        };
        let path = format!("crate::m{number}::T{number}");
        let (mut written, mut check, mut value) = (Vec::new(), String::new(), String::new());
        let mut arms = String::new();
        let (mut next, mut used) = (0i128, Vec::new());
        let names = ["A", "B", "Option", "Some", "PERSIST_TAG_0", "r#Self_", "Tag"];
        let count = 1 + self.random.below(names.len());
        for (i, name) in names.iter().take(count).enumerate() {
            let (tag, explicit) = self.tag(next, &used, (low, high), integer);
            next = tag;
            used.push(next);
            let bytes = next as u64 & (u64::MAX >> (64 - bits));
            next += 1;

            let named = self.random.below(2) == 0;
            let fields = if self.random.below(3) == 0 { Vec::new() } else { self.fields(named) };
            let body = body(&fields, named);
            let attribute = self.attribute();
            written.push(format!("    {attribute} {name}{body}{explicit},\n"));
            let made = constructor(&format!("{path}::{name}"), &fields);
            let persistent = name.replace("r#", "");
            let _ =
                writeln!(check, "    check::<{path}>(|| {made});\n    flips::<{path}>(|| {made});");
            let _ = writeln!(arms, "            {path}::{name} {{ {} }} => {{", bindings(&fields));
            for (i, Field { persistent: field, .. }) in fields.iter().enumerate() {
                let inside = format!("&inside(&inside(path, {persistent:?}), {field:?})");
                let _ = writeln!(arms, "                p{i}.probe({inside}, found);");
            }
            arms += "            }\n";
            let _ = writeln!(
                check,
                "    tagged::<{path}>({persistent:?}, {bytes}, {}, &{made});",
                bits / 8
            );
            let _ = writeln!(check, "    count::<{path}>(Some({persistent:?}), {});", fields.len());
            let variant = format!("{path}::{name}");
            check += &fields_of_variant(&path, (&variant, &persistent), &fields, &made);
            if i == 0 {
                value = made;
            }
        }
        let _ = writeln!(check, "    variants::<{path}>({count});");
        let above = self.above();
        let repr = if self.random.below(3) == 0 { "cfg_attr(all(), repr(" } else { "repr(" };
        let close = if repr.starts_with("cfg") { "))" } else { ")" };
        let written = written.concat();
        let _ = writeln!(
            self.items,
            "{above}\n#[{repr}{integer}{close}]\npub enum T{number} {{\n{written}}}"
        );
        let tags: Vec<u64> =
            used.iter().map(|tag| *tag as u64 & (u64::MAX >> (64 - bits))).collect();
        let bytes = bits / 8;
        let probe = format!(
            "        probe_tag(self, {bytes}, &{tags:?}, path, found);\n        match self \
             {{\n{arms}        }}\n"
        );
        let probe = implementation(&path, &probe);
        Made { path, value, check, probe }
    }
}

/// The fields of a variant, as they are declared.
fn body(fields: &[Field], named: bool) -> String {
    let written: Vec<String> = fields
        .iter()
        .map(|field| match named {
            true => format!("{} {}: {}", field.attribute, field.name, field.ty),
            false => format!("{} {}", field.attribute, field.ty),
        })
        .collect();
    match (fields.is_empty(), named) {
        (true, _) => String::new(),
        (_, true) => format!(" {{ {} }}", written.join(", ")),
        (_, false) => format!("({})", written.join(", ")),
    }
}

/// An expression that makes a value: braces do for every kind of structure and variant.
fn constructor(path: &str, fields: &[Field]) -> String {
    let fields: Vec<String> =
        fields.iter().map(|field| format!("{}: {}", field.name, field.value)).collect();
    format!("{path} {{ {} }}", fields.join(", "))
}

/// A pattern for all fields of a variant.
fn bindings(fields: &[Field]) -> String {
    let fields = fields.iter().enumerate().map(|(i, field)| format!("{}: p{i}", field.name));
    fields.collect::<Vec<_>>().join(", ")
}

/// How what has a rule is found in a value of a type.
fn implementation(path: &str, body: &str) -> String {
    let signature = "fn probe(&self, path: &str, found: &mut Vec<Probed>)";
    format!("impl Probe for {path} {{\n    {signature} {{\n{body}    }}\n}}")
}

/// Checks the fields of a variant, which has a path and a persistent name, in a value of it.
fn fields_of_variant(
    path: &str,
    (variant, persistent): (&str, &str),
    fields: &[Field],
    made: &str,
) -> String {
    let mut check = String::new();
    for Field { name, persistent: called, .. } in fields {
        let find = format!(
            "|value| match value {{ {variant} {{ {name}: found, .. }} => found, _ => \
             unreachable!() }}"
        );
        let _ = writeln!(check, "    let value = {made};");
        let _ = writeln!(
            check,
            "    field::<{path}, _>(Some({persistent:?}), {called:?}, distance(&value, {find}), \
             {find});"
        );
    }
    check
}

/// Numbers of a seed (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 16) % bound as u64) as usize
    }

    fn choose<'t, T>(&mut self, from: &'t [T]) -> &'t T {
        &from[self.below(from.len())]
    }
}

/// What every program has.
const PRELUDE: &str = include_str!("probes.rs");
