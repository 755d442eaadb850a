//! Reads `#[persist(...)]` and `#[repr(...)]`.

use proc_macro2::{Literal, TokenStream};
use quote::quote;
use syn::meta::ParseNestedMeta;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Attribute, Error, Expr, Ident, LitStr, Path, Result, Token, WherePredicate};

/// Most bytes of a declared name.
const NAME_LEN_MAX: usize = 255;

/// Names that the crate `cenote` gives to types itself.
const BUILT_IN_NAMES: &[&str] = &[
    "u8",
    "u16",
    "u32",
    "u64",
    "u128",
    "usize",
    "i8",
    "i16",
    "i32",
    "i64",
    "i128",
    "isize",
    "f32",
    "f64",
    "bool",
    "char",
    "Option",
    "Ptr",
    "RelPtr",
    "RegionPtr",
    "HeapPtr",
    "Owned",
    "PhantomData",
    "Duration",
    "SystemTime",
    "Wrapping",
    "Saturating",
    "Reverse",
    "NonZeroU8",
    "NonZeroU16",
    "NonZeroU32",
    "NonZeroU64",
    "NonZeroU128",
    "NonZeroUsize",
    "NonZeroI8",
    "NonZeroI16",
    "NonZeroI32",
    "NonZeroI64",
    "NonZeroI128",
    "NonZeroIsize",
];

/// What `#[persist(...)]` says on a type.
#[derive(Default)]
pub(crate) struct TypeAttributes {
    pub(crate) name: Option<LitStr>,
    pub(crate) bound: Option<Punctuated<WherePredicate, Token![,]>>,
    pub(crate) cenote: Option<Path>,
    pub(crate) owned: bool,
}

impl TypeAttributes {
    pub(crate) fn read(attributes: &[Attribute]) -> Result<Self> {
        let mut this = Self::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("persist"))
        {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("name") {
                    let name = read_name(&meta, this.name.is_some())?;
                    if BUILT_IN_NAMES.contains(&name.value().as_str()) {
                        return Err(Error::new(name.span(), "this is the name of a built-in type"));
                    }
                    this.name = Some(name);
                } else if meta.path.is_ident("bound") {
                    let text: LitStr = meta.value()?.parse()?;
                    this.bound = Some(text.parse_with(Punctuated::parse_terminated)?);
                } else if meta.path.is_ident("crate") {
                    this.cenote = Some(meta.value()?.parse::<LitStr>()?.parse()?);
                } else if meta.path.is_ident("owned") {
                    this.owned = true;
                } else {
                    let message = "unknown attribute: a type has `name`, `bound`, `crate` and \
                                   `owned`";
                    return Err(meta.error(message));
                }
                Ok(())
            })?;
        }
        Ok(this)
    }
}

/// The name in the record of a field or a variant: what `#[persist(name = "...")]` says, or else
/// `default`.
pub(crate) fn member_name(attributes: &[Attribute], default: &str) -> Result<String> {
    let mut name = None;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("persist")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("name") {
                return Err(meta.error("unknown attribute: a field or variant has `name`"));
            }
            name = Some(read_name(&meta, name.is_some())?.value());
            Ok(())
        })?;
    }
    Ok(name.unwrap_or_else(|| default.to_string()))
}

fn read_name(meta: &ParseNestedMeta<'_>, again: bool) -> Result<LitStr> {
    let name: LitStr = meta.value()?.parse()?;
    if again {
        return Err(meta.error("`name` is given twice"));
    }
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':' | '-' | '.');
    if name.value().is_empty()
        || name.value().len() > NAME_LEN_MAX
        || !name.value().chars().all(allowed)
    {
        let message = "a name is 1 to 255 bytes of letters, digits, `_`, `-`, `.` and `:`";
        return Err(Error::new(name.span(), message));
    }
    Ok(name)
}

/// What `#[repr(...)]` says on a type.
#[derive(Default)]
pub(crate) struct Repr {
    pub(crate) c: Option<Path>,
    pub(crate) packed: Option<Path>,
    /// `u8` and the like.
    pub(crate) integer: Option<Ident>,
}

impl Repr {
    pub(crate) fn read(attributes: &[Attribute]) -> Result<Self> {
        let mut this = Self::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("repr")) {
            attribute.parse_nested_meta(|meta| {
                if meta.input.peek(syn::token::Paren) {
                    // The argument of `align(8)`, `packed(2)`: the compiler's business.
                    let content;
                    syn::parenthesized!(content in meta.input);
                    content.parse::<TokenStream>()?;
                }
                if meta.path.is_ident("C") {
                    this.c = Some(meta.path);
                } else if meta.path.is_ident("packed") {
                    this.packed = Some(meta.path);
                } else if let Some(ident) = meta.path.get_ident()
                    && ident != "align"
                    && ident != "transparent"
                {
                    this.integer = Some(ident.clone());
                }
                Ok(())
            })?;
        }
        Ok(this)
    }

    /// Bytes of the discriminant of the enum `ident`; an error if the type may not be persistent.
    pub(crate) fn tag_bytes(&self, ident: &Ident) -> Result<usize> {
        let help = "`#[repr(u8)]` (or u16, u32, u64, i8, i16, i32, i64)";
        if let Some(c) = &self.c {
            let message = format!("the size of a C enum depends on the machine: use {help} alone");
            return Err(Error::new(c.span(), message));
        }
        let Some(integer) = &self.integer else {
            let message = format!(
                "a persistent enum needs {help}: only that fixes where the discriminant lies"
            );
            return Err(Error::new(ident.span(), message));
        };
        match integer.to_string().as_str() {
            "u8" | "i8" => Ok(1),
            "u16" | "i16" => Ok(2),
            "u32" | "i32" => Ok(4),
            "u64" | "i64" => Ok(8),
            _ => Err(Error::new(integer.span(), format!("a persistent enum needs {help}"))),
        }
    }

    /// The discriminant of the variant that comes `since` variants after the one at which `written`
    /// stands, by the language's rule. Of the type that the enum says, which is named by literals
    /// alone: `u8` may be another type here.
    pub(crate) fn tag(&self, written: Option<&Expr>, since: u64) -> TokenStream {
        let suffix = self.integer.as_ref().map(Ident::to_string).unwrap_or_default();
        let literal = |number: u64| -> Literal {
            let text = format!("{number}{suffix}");
            text.parse().unwrap_or_else(|_| Literal::u64_unsuffixed(number))
        };
        let (zero, since) = (literal(0), literal(since));
        match written {
            // The element before it gives the expression its type, as the enum does.
            Some(expression) => quote!([#zero, #expression][1] + #since),
            None => quote!(#since),
        }
    }
}
