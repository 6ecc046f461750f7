//! Functions and arguments that cannot work under the attribute, and what to write instead.

use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    FnArg, GenericArgument, Ident, Pat, PathArguments, Signature, Token, Type, TypeReference,
};

use crate::options::Options;
use crate::values::Fenced;

/// Arguments that are an open transaction, or may be inside of one.
pub(crate) fn check_arguments(signature: &Signature) -> syn::Result<()> {
    for argument in &signature.inputs {
        let FnArg::Typed(argument) = argument else {
            continue;
        };
        if let Some(what) = transaction(&argument.ty) {
            let message = format!(
                "this argument is {what}, and the caller would commit it after this function has released the \
                 lock: the next holder would read the old data. Take the pool as an argument, then begin, work \
                 and commit inside of the function. (If it is no transaction of a database, give its type \
                 another name by `type Other = ..`.)"
            );
            return Err(syn::Error::new(argument.ty.span(), message));
        }
    }
    Ok(())
}

/// By the name of its type. A type without generics and not behind `&mut` counts as a type of the program
/// itself, such as the account of a bank.
fn transaction(ty: &Type) -> Option<&'static str> {
    let (inner, is_mut) = match ty {
        Type::Reference(TypeReference {
            elem, mutability, ..
        }) => (&**elem, mutability.is_some()),
        other => (other, false),
    };
    let Type::Path(path) = inner else {
        return None;
    };
    let last = path.path.segments.last()?;
    let name = last.ident.to_string();
    if name == "Option"
        && let PathArguments::AngleBracketed(inside) = &last.arguments
        && let Some(GenericArgument::Type(inside)) = inside.args.first()
    {
        return transaction(inside);
    }
    let is_generic = !last.arguments.is_none();
    let is_transaction =
        name.ends_with("Transaction") && (is_mut || is_generic || name == "DatabaseTransaction");
    // A connection that many share is in no transaction of one of them.
    let is_connection = is_mut && name.ends_with("Connection") && !name.starts_with("Multiplexed");
    if is_transaction {
        Some("a transaction")
    } else {
        is_connection.then_some("a connection, which may be in a transaction")
    }
}

/// Names in the key, and names that the attribute binds.
pub(crate) fn check_names(options: &Options, signature: &Signature) -> syn::Result<()> {
    let names = names(&signature.inputs);
    for key in options.locks.members().iter().map(|member| &member.key) {
        for root in key.roots() {
            check_root(root, signature, &names)?;
        }
    }
    let token = options
        .fenced
        .as_ref()
        .and_then(|Fenced { token }| token.as_ref());
    for (option, bound) in [("fenced", token), ("guard", options.guard.as_ref())] {
        if let Some(bound) = bound.filter(|bound| names.contains(bound)) {
            let message = format!(
                "`{bound}` is an argument already; choose another name for `{option} = ..`"
            );
            return Err(syn::Error::new(bound.span(), message));
        }
    }
    Ok(())
}

fn check_root(root: &Ident, signature: &Signature, names: &[Ident]) -> syn::Result<()> {
    let text = root.to_string();
    let has_self = signature.receiver().is_some();
    if text == "self" && !has_self {
        let message = format!("the key names `self`, and `{}` has none", signature.ident);
        return Err(syn::Error::new(root.span(), message));
    }
    let is_constant = text
        .chars()
        .all(|sign| sign.is_uppercase() || sign == '_' || sign.is_ascii_digit());
    if text == "self" || is_constant || names.iter().any(|name| *name == text) {
        return Ok(());
    }
    let mut known: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    if has_self {
        known.push("`self`".to_owned());
    }
    let known = if known.is_empty() {
        "it has none".to_owned()
    } else {
        format!("they are {}", known.join(", "))
    };
    let message = format!(
        "the key names `{text}`, which is no argument of `{}`; {known}",
        signature.ident
    );
    Err(syn::Error::new(root.span(), message))
}

/// All names that the arguments bind, also inside of patterns.
fn names(inputs: &Punctuated<FnArg, Token![,]>) -> Vec<Ident> {
    let mut found = Vec::new();
    for input in inputs {
        if let FnArg::Typed(argument) = input {
            bound(&argument.pat, &mut found);
        }
    }
    found
}

fn bound(pattern: &Pat, found: &mut Vec<Ident>) {
    match pattern {
        Pat::Ident(name) => {
            found.push(name.ident.clone());
            if let Some((_, inner)) = &name.subpat {
                bound(inner, found);
            }
        }
        Pat::Paren(inner) => bound(&inner.pat, found),
        Pat::Reference(inner) => bound(&inner.pat, found),
        Pat::Type(inner) => bound(&inner.pat, found),
        Pat::Tuple(all) => all.elems.iter().for_each(|one| bound(one, found)),
        Pat::Slice(all) => all.elems.iter().for_each(|one| bound(one, found)),
        Pat::TupleStruct(all) => all.elems.iter().for_each(|one| bound(one, found)),
        Pat::Struct(all) => all.fields.iter().for_each(|field| bound(&field.pat, found)),
        _ => (),
    }
}
