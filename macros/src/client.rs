//! Which client is asked for the lock.

use proc_macro2::{Span, TokenStream};
use quote::quote_spanned;
use syn::spanned::Spanned;
use syn::{Expr, FnArg, Ident, Pat, Signature, Type};

/// An expression for a `&Client`: `client = EXPR`, otherwise an argument that is a client, otherwise `self` as
/// a client.
pub(crate) fn find(
    given: Option<&Expr>,
    signature: &Signature,
    private: &TokenStream,
) -> syn::Result<TokenStream> {
    if let Some(given) = given {
        let at = ours(given.span());
        return Ok(quote_spanned!(at=> #private::client(&#given)));
    }
    let mut arguments = signature.inputs.iter().filter_map(argument);
    if let Some((name, is_reference)) = arguments.next() {
        if let Some((other, _)) = arguments.next() {
            let message = format!(
                "`{name}` and `{other}` are clients; say which: `client = {name}` or `client = {other}`"
            );
            return Err(syn::Error::new(other.span(), message));
        }
        let at = ours(name.span());
        return Ok(if is_reference {
            quote_spanned!(at=> #private::client(#name))
        } else {
            quote_spanned!(at=> #private::client(&#name))
        });
    }
    let Some(receiver) = signature.receiver() else {
        return Err(syn::Error::new(signature.ident.span(), nobody(signature)));
    };
    let receiver = &receiver.self_token;
    let at = ours(receiver.span());
    Ok(quote_spanned!(at=> #private::client_of::<Self>(&#receiver)))
}

fn ours(span: Span) -> Span {
    Span::mixed_site().located_at(span)
}

fn nobody(signature: &Signature) -> String {
    format!(
        "no client for `{}`; write one of\n\
         - `client = EXPR` in the attribute, like `client = state.locks`\n\
         - an argument of type `&lockset::Client`\n\
         - a method with `self`, and `impl AsRef<lockset::Client>` for its type",
        signature.ident
    )
}

/// The name of an argument of type `Client` or `&Client`, and whether it is a reference.
fn argument(argument: &FnArg) -> Option<(&Ident, bool)> {
    let FnArg::Typed(argument) = argument else {
        return None;
    };
    let Pat::Ident(name) = &*argument.pat else {
        return None;
    };
    match &*argument.ty {
        Type::Reference(reference) => is_client(&reference.elem).then_some((&name.ident, true)),
        ty => is_client(ty).then_some((&name.ident, false)),
    }
}

fn is_client(ty: &Type) -> bool {
    let Type::Path(path) = ty else {
        return false;
    };
    let names: Vec<String> = path
        .path
        .segments
        .iter()
        .map(|s| s.ident.to_string())
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    matches!(names[..], ["Client"] | ["lockset", "Client"])
}
