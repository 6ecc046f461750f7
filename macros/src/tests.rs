//! The attribute on token streams: what it refuses, and what it makes.
//!
//! The compiler's messages about the generated code are tested beside the library: `tests/attribute`.

mod expansions;
mod refused;

use proc_macro2::{TokenStream, TokenTree};

/// Splits `#[locked(..)] item` into what is in the parentheses and the item.
fn parts(source: &str) -> (TokenStream, TokenStream) {
    let whole: TokenStream = source.parse().expect("Rust");
    let mut tokens = whole.into_iter().skip_while(is_not_ours);
    let Some(TokenTree::Group(attribute)) = tokens.next() else {
        panic!("no #[locked] in {source}");
    };
    let options = attribute
        .stream()
        .into_iter()
        .find_map(|token| match token {
            TokenTree::Group(options) => Some(options.stream()),
            _ => None,
        });
    (options.unwrap_or_default(), tokens.collect())
}

fn is_not_ours(token: &TokenTree) -> bool {
    let TokenTree::Group(group) = token else {
        return true;
    };
    !group.to_string().starts_with("[locked")
}
