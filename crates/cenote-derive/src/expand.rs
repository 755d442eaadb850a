//! Writes the implementation.

use crate::attributes::{Repr, TypeAttributes, member_name};
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{
    Data, DataEnum, DataStruct, DeriveInput, Error, Fields, GenericParam, Generics, Ident, Member, Path,
    Result, Type, parse_quote,
};

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let attributes = TypeAttributes::read(&input.attrs)?;
    let repr = Repr::read(&input.attrs)?;
    let cenote: Path = attributes.cenote.clone().unwrap_or_else(|| parse_quote!(::cenote));
    let ident = &input.ident;

    if let Some(lifetime) = input.generics.lifetimes().next() {
        let message = "persistent types cannot borrow, as what they borrow from ends with the process: use `Ptr`, and no lifetime parameters";
        return Err(Error::new(lifetime.span(), message));
    }
    if let Some(packed) = &repr.packed {
        let message = "persistent types cannot be packed, as pointers must lie at multiples of 8 bytes";
        return Err(Error::new(packed.span(), message));
    }
    let body = match &input.data {
        Data::Struct(data) => expand_struct(data, &cenote)?,
        Data::Enum(data) => expand_enum(ident, data, &repr, &cenote)?,
        Data::Union(data) => {
            let message = "unions cannot be persistent, as nobody else can tell which of their fields is there: use an enum with `#[repr(u8)]`";
            return Err(Error::new(data.union_token.span(), message));
        }
    };

    let (declared_generics, arguments, declared_where) = input.generics.split_for_impl();
    let mut bounded = input.generics.clone();
    bound_parameters(&mut bounded, &attributes, &cenote);
    let (generics, _, where_clause) = bounded.split_for_impl();
    let (type_id, type_name) = names(input, &attributes, &cenote)?;

    Ok(quote! {
        const _: () = {
            #[allow(drop_bounds)]
            trait PersistentTypesDoNotImplementDrop {}
            impl<T: ::core::ops::Drop> PersistentTypesDoNotImplementDrop for T {}
            impl #declared_generics PersistentTypesDoNotImplementDrop for #ident #arguments #declared_where {}

            // SAFETY: the derive macro describes every field of the type where the compiler puts it, refuses whatever is
            // not `Persist` itself, and names the type after its package.
            #[automatically_derived]
            unsafe impl #generics #cenote::persist::Persist for #ident #arguments #where_clause {
                const TYPE_ID: #cenote::persist::TypeId = #type_id;

                fn type_name() -> ::std::string::String {
                    #type_name
                }

                fn describe(layout: &mut #cenote::persist::LayoutBuilder) {
                    #body
                }
            }
        };
    })
}

/// Adds `T: Persist` for every type parameter, or the bounds that the user gave instead.
fn bound_parameters(generics: &mut Generics, attributes: &TypeAttributes, cenote: &Path) {
    let parameters: Vec<Ident> = generics.type_params().map(|parameter| parameter.ident.clone()).collect();
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

/// Expressions for the type id and the type name.
fn names(
    input: &DeriveInput,
    attributes: &TypeAttributes,
    cenote: &Path,
) -> Result<(TokenStream, TokenStream)> {
    let name = match &attributes.name {
        Some(name) => quote!(#name),
        None => {
            let ident = input.ident.unraw().to_string();
            quote!(::core::concat!(::core::env!("CARGO_PKG_NAME"), "::", #ident))
        }
    };
    let mut id = quote!(#cenote::persist::TypeId::of_name(#name));
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
                id.extend(match ty.as_str() {
                    "u128" | "i128" => quote!(.apply(#ident as u64).apply((#ident >> 64) as u64)),
                    _ => quote!(.apply(#ident as u64)),
                });
                arguments.push(quote!(#ident));
            }
            GenericParam::Lifetime(parameter) => {
                return Err(Error::new(parameter.span(), "lifetime parameter"));
            }
        }
    }
    let type_name = if arguments.is_empty() {
        quote!(::std::string::ToString::to_string(#name))
    } else {
        let format = format!("{{}}<{}>", vec!["{}"; arguments.len()].join(", "));
        quote!(::std::format!(#format, #name, #(#arguments),*))
    };
    Ok((id, type_name))
}

/// A field as the generated code needs it.
struct Field<'a> {
    member: Member,
    /// Variable that holds the field in a pattern.
    variable: Ident,
    name: String,
    ty: &'a Type,
}

fn read_fields(fields: &Fields) -> Result<Vec<Field<'_>>> {
    let mut out: Vec<Field<'_>> = Vec::new();
    for (i, field) in fields.iter().enumerate() {
        let (member, default) = match &field.ident {
            Some(ident) => (Member::Named(ident.clone()), ident.unraw().to_string()),
            None => (Member::from(i), i.to_string()),
        };
        let name = member_name(&field.attrs, &default)?;
        if out.iter().any(|other| other.name == name) {
            return Err(Error::new(field.span(), format!("two fields have the persistent name `{name}`")));
        }
        let variable = format_ident!("field_{i}", span = Span::mixed_site());
        out.push(Field { member, variable, name, ty: &field.ty });
    }
    Ok(out)
}

fn expand_struct(data: &DataStruct, cenote: &Path) -> Result<TokenStream> {
    let fields = read_fields(&data.fields)?;
    let pattern = take_apart(&quote!(Self), &fields);
    let check = check_types(&fields, cenote);
    let describe = fields.iter().map(|Field { member, name, ty, .. }| {
        let call = quote_spanned!(ty.span()=> #cenote::persist::LayoutBuilder::field::<#ty>);
        quote!(#call(layout, #name, ::core::mem::offset_of!(Self, #member));)
    });
    Ok(quote! {
        // Does not compile unless these are all the fields, and of these types.
        let _ = |value: &Self| {
            let #pattern = value;
            #check
        };
        let _ = &layout;
        #(#describe)*
    })
}

fn expand_enum(ident: &Ident, data: &DataEnum, repr: &Repr, cenote: &Path) -> Result<TokenStream> {
    let help = "`#[repr(u8)]` (or u16, u32, u64, i8, i16, i32, i64)";
    if data.variants.is_empty() {
        return Err(Error::new(ident.span(), "an enum without variants has no values to keep"));
    }
    if let Some(c) = &repr.c {
        let message = format!("the size of a C enum depends on the machine: use {help} alone");
        return Err(Error::new(c.span(), message));
    }
    let Some(integer) = &repr.integer else {
        let message = format!("a persistent enum needs {help}: only that fixes where the discriminant lies");
        return Err(Error::new(ident.span(), message));
    };
    let unsigned = match integer.to_string().as_str() {
        "u8" | "i8" => quote!(u8),
        "u16" | "i16" => quote!(u16),
        "u32" | "i32" => quote!(u32),
        "u64" | "i64" => quote!(u64),
        _ => return Err(Error::new(integer.span(), format!("a persistent enum needs {help}"))),
    };

    let (mut arms, mut consts, mut describe, mut names) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (i, variant) in data.variants.iter().enumerate() {
        let fields = read_fields(&variant.fields)?;
        let variant_ident = &variant.ident;
        let name = member_name(&variant.attrs, &variant_ident.unraw().to_string())?;
        if names.contains(&name) {
            return Err(Error::new(
                variant.span(),
                format!("two variants have the persistent name `{name}`"),
            ));
        }
        let pattern = take_apart(&quote!(Self::#variant_ident), &fields);
        let check = check_types(&fields, cenote);
        arms.push(quote!(#pattern => { #check }));

        // The language's rule: what is written, or else one more than the one before, or else 0.
        let tag = format_ident!("PERSIST_TAG_{i}", span = Span::mixed_site());
        let value = match (&variant.discriminant, i) {
            (Some((_, value)), _) => quote!(#value),
            (None, 0) => quote!(0),
            (None, _) => {
                let previous = format_ident!("PERSIST_TAG_{}", i - 1, span = Span::mixed_site());
                quote!(#previous + 1)
            }
        };
        consts.push(quote!(const #tag: #integer = #value;));
        let calls = fields.iter().map(|Field { name, ty, .. }| {
            let call = quote_spanned!(ty.span()=> #cenote::persist::VariantBuilder::field::<#ty>);
            quote!(#call(variant, #name);)
        });
        describe.push(quote! {
            layout.variant(#name, ::core::mem::size_of::<#integer>(), #tag as #unsigned as u64, |variant| {
                let _ = &variant;
                #(#calls)*
            });
        });
        names.push(name);
    }
    Ok(quote! {
        // Does not compile unless these are all the variants and fields, and of these types.
        let _ = |value: &Self| match value {
            #(#arms)*
        };
        #(#consts)*
        #(#describe)*
    })
}

/// A pattern that binds every field, and matches only if there are no others.
fn take_apart(path: &TokenStream, fields: &[Field<'_>]) -> TokenStream {
    let bindings = fields.iter().map(|Field { member, variable, .. }| quote!(#member: #variable));
    quote!(#path { #(#bindings),* })
}

/// Statements that compile only if the variables have the expected types.
fn check_types(fields: &[Field<'_>], cenote: &Path) -> TokenStream {
    let check = |Field { variable, ty, .. }: &Field<'_>| quote!(#cenote::persist::__same_type(#variable, ::core::marker::PhantomData::<#ty>););
    fields.iter().map(check).collect()
}
