//! Writes the implementation.
//!
//! *No name decides what is described.* The program may call any crate `cenote`, `core` or `std`,
//! may have any item, macro or trait in scope, and may expand a macro to something else each time.
//! The code that is written holds against all of it:
//!
//! * `describe` has a parameter of type `LayoutBuilder`. The signature in the trait makes that
//!   cenote's own type, or the implementation does not compile. All else is asked of that type, as
//!   inherent functions, which go before those of traits.
//! * Field types are not repeated. The compiler infers each from the place of the field in the real
//!   type (`&raw mut`), and computes the offset from the same place, in a constant.
//! * Discriminants are evaluated where no item of this macro is in scope. Each is then a candidate:
//!   a constant writes it into memory without a value and lets the compiler match. Another variant,
//!   or none, does not compile.
//! * Tokens of the program stand in no `unsafe` block; names of fields and variants alone do.
//! * Variables are hygienic, and have names that no constant is likely to have: a constant of that
//!   name would be a pattern, which does not compile. Nothing of the prelude is used.

use crate::attributes::{Repr, TypeAttributes, member_name};
use proc_macro2::{Literal, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{
    Data, DataEnum, DataStruct, DeriveInput, Error, Expr, Fields, GenericParam, Generics, Ident,
    Member, Path, Result, parse_quote,
};

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let attributes = TypeAttributes::read(&input.attrs)?;
    let repr = Repr::read(&input.attrs)?;
    let cenote: Path = attributes.cenote.clone().unwrap_or_else(|| parse_quote!(::cenote));
    let ident = &input.ident;

    if let Some(lifetime) = input.generics.lifetimes().next() {
        let message = "persistent types cannot borrow, as what they borrow from ends with the \
                       process: use `Ptr`, and no lifetime parameters";
        return Err(Error::new(lifetime.span(), message));
    }
    if let Some(packed) = &repr.packed {
        let message =
            "persistent types cannot be packed, as pointers must lie at multiples of 8 bytes";
        return Err(Error::new(packed.span(), message));
    }
    let writer = Writer::new(&cenote);
    let (body, owns) = match &input.data {
        Data::Struct(data) => (writer.structure(data)?, writer.owns(data)?),
        Data::Enum(data) => (writer.enumeration(ident, data, &repr)?, quote!(false)),
        Data::Union(data) => {
            let message = "unions cannot be persistent, as no other program can tell which of \
                           their fields is there: use an enum with `#[repr(u8)]`";
            return Err(Error::new(data.union_token.span(), message));
        }
    };

    let (declared_generics, arguments, declared_where) = input.generics.split_for_impl();
    let mut bounded = input.generics.clone();
    bound_parameters(&mut bounded, &attributes, &cenote);
    let (generics, _, where_clause) = bounded.split_for_impl();
    let (type_id, type_name) = writer.names(input, &attributes)?;
    let (layout, is_owned) = (&writer.layout, attributes.owned);

    Ok(quote! {
        // Apart from the rest: this item is in scope of no expression of the program.
        const _: () = {
            #[allow(drop_bounds)]
            trait PersistentTypesDoNotImplementDrop {}
            impl<T: #cenote::persist::__Drop> PersistentTypesDoNotImplementDrop for T {}
            impl #declared_generics PersistentTypesDoNotImplementDrop for #ident #arguments
            #declared_where {}
        };
        const _: () = {
            // SAFETY: every field of the type is described as the compiler has it, by cenote's own
            // functions; each asks that the field's type is `Persist`. The name is that of the
            // package or one that is given.
            #[automatically_derived]
            #[allow(unreachable_patterns)]
            unsafe impl #generics #cenote::persist::Persist for #ident #arguments #where_clause {
                const TYPE_ID: #cenote::persist::TypeId = #type_id;
                const OWNS: #cenote::persist::__Bool = #owns;
                const IS_OWNED: #cenote::persist::__Bool = #is_owned;

                fn type_name() -> #cenote::persist::__String {
                    #type_name
                }

                fn describe(#layout: &mut #cenote::persist::LayoutBuilder) {
                    #body
                }
            }
        };
    })
}

/// Adds `T: Persist` for every type parameter, or the bounds that the user gave instead.
fn bound_parameters(generics: &mut Generics, attributes: &TypeAttributes, cenote: &Path) {
    let parameters: Vec<Ident> =
        generics.type_params().map(|parameter| parameter.ident.clone()).collect();
    let predicates = &mut generics.make_where_clause().predicates;
    match &attributes.bound {
        Some(bound) => predicates.extend(bound.iter().cloned()),
        None => {
            for parameter in parameters {
                predicates.push(parse_quote!(#parameter: #cenote::persist::Persist));
            }
        }
    }
}

/// The declared name: what the attribute says, or else package and type. The package's name is read
/// here and not by `env!` in the program, which may have another macro of that name.
fn declared_name(input: &DeriveInput, attributes: &TypeAttributes) -> Result<String> {
    if let Some(name) = &attributes.name {
        return Ok(name.value());
    }
    let ident = input.ident.unraw();
    match std::env::var("CARGO_PKG_NAME") {
        Ok(package) => Ok(format!("{package}::{ident}")),
        Err(_) => {
            let message = "the name of the package is not known, as this is not built by cargo: \
                           give the type a name with #[persist(name = \"...\")]";
            Err(Error::new(ident.span(), message))
        }
    }
}

/// A field as the generated code needs it.
struct Field {
    member: Member,
    /// Variable that holds the field in a pattern.
    variable: Ident,
    name: String,
    /// Where the type is written, for messages; names are not looked up there.
    span: Span,
}

fn read_fields(fields: &Fields) -> Result<Vec<Field>> {
    let mut out: Vec<Field> = Vec::new();
    for (i, field) in fields.iter().enumerate() {
        let (member, default) = match &field.ident {
            Some(ident) => (Member::Named(ident.clone()), ident.unraw().to_string()),
            None => (Member::from(i), i.to_string()),
        };
        let name = member_name(&field.attrs, &default)?;
        if out.iter().any(|other| other.name == name) {
            return Err(Error::new(
                field.span(),
                format!("two fields have the persistent name `{name}`"),
            ));
        }
        let variable = format_ident!("__cenote_{i}", span = Span::mixed_site());
        let span = field.ty.span().resolved_at(Span::mixed_site());
        out.push(Field { member, variable, name, span });
    }
    Ok(out)
}

/// A pattern that binds every field, and matches only if there are no others.
fn take_apart(path: &TokenStream, fields: &[Field]) -> TokenStream {
    let bindings = fields.iter().map(|Field { member, variable, .. }| quote!(#member: #variable));
    quote!(#path { #(#bindings),* })
}

/// The generated code uses cenote's types, and variables that no token of the program can name.
struct Writer<'a> {
    cenote: &'a Path,
    /// Cenote's type, whose inherent functions do everything.
    builder: TokenStream,
    layout: Ident,
    value: Ident,
    slot: Ident,
    tag: Ident,
    place: Ident,
    variant: Ident,
}

impl<'a> Writer<'a> {
    fn new(cenote: &'a Path) -> Self {
        let variable = |name| format_ident!("__cenote_{name}", span = Span::mixed_site());
        Self {
            cenote,
            builder: quote!(<#cenote::persist::LayoutBuilder>),
            layout: variable("layout"),
            value: variable("value"),
            slot: variable("slot"),
            tag: variable("tag"),
            place: variable("place"),
            variant: variable("variant"),
        }
    }

    /// Expressions for the type id and the type name.
    fn names(
        &self,
        input: &DeriveInput,
        attributes: &TypeAttributes,
    ) -> Result<(TokenStream, TokenStream)> {
        let Self { cenote, builder, .. } = self;
        let name = declared_name(input, attributes)?;
        let mut id = quote!(<#cenote::persist::TypeId>::of_name(#name));
        let mut arguments = Vec::new();
        for parameter in &input.generics.params {
            match parameter {
                GenericParam::Type(parameter) => {
                    let ident = &parameter.ident;
                    id.extend(quote!(.apply(<#ident as #cenote::persist::Persist>::TYPE_ID.0)));
                    arguments.push(quote!(<#ident as #cenote::persist::Persist>::type_name()));
                }
                GenericParam::Const(parameter) => {
                    let ident = &parameter.ident;
                    let ty = parameter.ty.to_token_stream().to_string();
                    id = match ty.as_str() {
                        "u128" | "i128" => {
                            quote!(#id.apply(#ident as _).apply((#ident >> 64) as _))
                        }
                        _ => quote!(#builder::__applied(#id, #ident as _, &#ident)),
                    };
                    arguments.push(quote!(#ident));
                }
                GenericParam::Lifetime(parameter) => {
                    return Err(Error::new(parameter.span(), "lifetime parameter"));
                }
            }
        }
        if attributes.owned {
            id = quote!(#cenote::persist::owned_type_id(#id));
        }
        Ok((id, quote!(#builder::__type_name(#name, &[#(&#arguments),*]))))
    }

    /// The body of `describe` for a structure.
    fn structure(&self, data: &DataStruct) -> Result<TokenStream> {
        let Self { builder, layout, value, slot, .. } = self;
        let fields = read_fields(&data.fields)?;
        let pattern = take_apart(&quote!(Self), &fields);
        let variables = fields.iter().map(|field| &field.variable);
        let describe = fields.iter().map(|Field { member, name, span, .. }| {
            let offset = quote_spanned! {*span=> const {
                let mut #slot = #builder::__slot::<Self>();
                let #value = #slot.as_mut_ptr();
                // SAFETY: the place of a field in memory of the type; nothing is read. The pattern
                // that takes a value apart, in safe code, does not compile for a union.
                unsafe { #builder::__place(#value, &raw mut (*#value).#member) }
            }};
            quote_spanned!(*span=> #layout.__field(#name, #offset);)
        });
        Ok(quote! {
            // Does not compile unless these are all the fields.
            let _ = |#value: &Self| {
                let #pattern = #value;
                #(let _ = #variables;)*
            };
            let _ = &#layout;
            #(#describe)*
        })
    }

    /// Whether a structure has owning edges: an expression for a constant.
    fn owns(&self, data: &DataStruct) -> Result<TokenStream> {
        let Self { builder, value, slot, .. } = self;
        let fields = read_fields(&data.fields)?;
        let owns = fields.iter().map(|Field { member, span, .. }| {
            quote_spanned! {*span=>
                // SAFETY: the place of a field in memory of the type; nothing is read. `describe`
                // does not compile for a union.
                | unsafe { #builder::__owns(#value, &raw mut (*#value).#member) }
            }
        });
        Ok(quote! {{
            let mut #slot = #builder::__slot::<Self>();
            let #value = #slot.as_mut_ptr();
            let _ = #value;
            false #(#owns)*
        }})
    }

    /// The body of `describe` for an enum.
    fn enumeration(&self, ident: &Ident, data: &DataEnum, repr: &Repr) -> Result<TokenStream> {
        let Self { value, .. } = self;
        if data.variants.is_empty() {
            return Err(Error::new(ident.span(), "an enum without variants has no values to keep"));
        }
        let tag_bytes = repr.tag_bytes(ident)?;
        let (mut arms, mut describe, mut names) = (Vec::new(), Vec::new(), Vec::new());
        // The last discriminant that is written, and how many variants ago that was.
        let (mut written, mut since): (Option<&Expr>, u64) = (None, 0);
        for variant in &data.variants {
            let name = member_name(&variant.attrs, &variant.ident.unraw().to_string())?;
            if names.contains(&name) {
                let message = format!("two variants have the persistent name `{name}`");
                return Err(Error::new(variant.span(), message));
            }
            if let Some((_, expression)) = &variant.discriminant {
                (written, since) = (Some(expression), 0);
            }
            let tag = repr.tag(written, since);
            since += 1;

            let fields = read_fields(&variant.fields)?;
            let variant = &variant.ident;
            let pattern = take_apart(&quote!(Self::#variant), &fields);
            let variables = fields.iter().map(|field| &field.variable);
            arms.push(quote!(#pattern => { #(let _ = #variables;)* }));
            let others = data.variants.len() > 1;
            describe.push(self.variant(&name, &pattern, &fields, (&tag, tag_bytes), others));
            names.push(name);
        }
        Ok(quote! {
            // Does not compile unless these are all the variants and fields.
            let _ = |#value: &Self| match #value {
                #(#arms)*
            };
            #(#describe)*
        })
    }

    /// Describes one variant, with the discriminant `tag` that the compiler confirms.
    fn variant(
        &self,
        name: &str,
        pattern: &TokenStream,
        fields: &[Field],
        (tag_value, tag_bytes): (&TokenStream, usize),
        others: bool,
    ) -> TokenStream {
        let Self { builder, layout, value, slot, tag, place, variant, .. } = self;
        let tag_bytes = Literal::usize_suffixed(tag_bytes);
        let places = fields.iter().map(|Field { variable, .. }| {
            quote!(#builder::__place_in_variant(#value, &raw mut *#variable, #tag_bytes))
        });
        let otherwise = others.then(|| quote!(_ => #builder::__another_variant(),));
        let calls = fields.iter().enumerate().map(|(i, Field { name, span, .. })| {
            let i = Literal::usize_unsuffixed(i);
            quote_spanned!(*span=> #variant.__field(#name, #place.#i);)
        });
        quote! {
            let (#tag, #place) = const {
                let #tag = #tag_value;
                // SAFETY: at compile time, where an invalid discriminant is an error.
                let mut #slot = unsafe { #builder::__tagged::<Self>(#tag as _, #tag_bytes) };
                let #value = #slot.as_mut_ptr();
                // SAFETY: at compile time, where reading what has no value is an error: the
                // discriminant alone has one. Fields are named and not read.
                let #place = unsafe {
                    match &mut *#value {
                        #pattern => (#(#places,)*),
                        #otherwise
                    }
                };
                (#builder::__tag(#tag as _, #tag_bytes), #place)
            };
            let _ = &#place;
            #layout.variant(#name, #tag_bytes, #tag, |#variant| {
                let _ = &#variant;
                #(#calls)*
            });
        }
    }
}
