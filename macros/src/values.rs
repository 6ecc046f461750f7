//! The values of options: spans of time, what to do if the lock is held, names for the body.

use std::time::Duration;

use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Expr, Ident, Lit, LitStr, Path, Token};

use crate::duration;
use crate::words::{example, fail};

/// What `lockset` accepts as a lease.
const LEASES: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(50)..=Duration::from_secs(365 * 24 * 60 * 60);

/// The value that the function returns if the lock is held.
#[allow(
    clippy::large_enum_variant,
    reason = "one for each attribute, and short-lived; how large depends on features of others"
)]
pub(crate) enum Busy {
    Error,
    Skip,
    Value(Expr),
}

#[allow(
    clippy::large_enum_variant,
    reason = "one for each attribute, and short-lived; how large depends on features of others"
)]
pub(crate) enum Time {
    Fixed(Duration),
    Given(Expr),
}

/// `fenced`, or `fenced = token`.
pub(crate) struct Fenced {
    pub(crate) token: Option<Ident>,
}

/// `replicated(1, "500ms")`: how many replicas have to confirm a grant, and for how long it waits for them.
pub(crate) struct Replicated {
    pub(crate) count: Expr,
    pub(crate) within: Time,
}

impl Replicated {
    pub(crate) fn parse(name: &Ident, input: ParseStream<'_>) -> syn::Result<Self> {
        const HOW: &str = "write `replicated(1, \"500ms\")`";
        let missing = |span| {
            fail(
                span,
                format!("`replicated` needs a number and a time; {HOW}"),
            )
        };
        if !input.peek(syn::token::Paren) {
            return Err(missing(name.span()));
        }
        let inside;
        syn::parenthesized!(inside in input);
        let count: Expr = inside.parse().map_err(|_| missing(name.span()))?;
        if let Expr::Lit(literal) = &count
            && let Lit::Int(number) = &literal.lit
            && number.base10_digits() == "0"
        {
            return Err(fail(
                count.span(),
                "0 replicas confirm nothing; leave `replicated` out",
            ));
        }
        if !inside.peek(Token![,]) {
            return Err(missing(name.span()));
        }
        inside.parse::<Token![,]>()?;
        let within = inside.parse()?;
        inside.parse::<Option<Token![,]>>()?;
        if !inside.is_empty() {
            return Err(inside.error(HOW));
        }
        Ok(Self { count, within })
    }
}

/// `permits = 3`, or an expression: how many a semaphore has.
pub(crate) struct Permits(pub(crate) Expr);

/// `group = "orders"`, or a constant.
pub(crate) struct Group(pub(crate) Expr);

impl Parse for Busy {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let ahead = input.fork();
        if let Ok(word) = ahead.call(Ident::parse_any)
            && (ahead.is_empty() || ahead.peek(Token![,]))
        {
            let keyword = match word.to_string().as_str() {
                "error" => Some(Self::Error),
                "skip" => Some(Self::Skip),
                _ => None,
            };
            if let Some(keyword) = keyword {
                Ident::parse_any(input)?;
                return Ok(keyword);
            }
        }
        input.parse().map(Self::Value)
    }
}

impl Parse for Group {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let name: Expr = input.parse()?;
        let why = match &name {
            Expr::Path(_) => return Ok(Self(name)),
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => match text.value() {
                    text if text.is_empty() => "an empty name is no group; leave it out",
                    text if text.contains(['{', '}']) => {
                        "a group is one of few names, and the same for each call; a part of the key is none"
                    }
                    _ => return Ok(Self(name)),
                },
                _ => "a group is a text: write `group = \"orders\"`",
            },
            _ => "a group is a text or a constant: write `group = \"orders\"`",
        };
        Err(fail(name.span(), why))
    }
}

impl Parse for Permits {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let given: Expr = input.parse()?;
        let Expr::Lit(literal) = &given else {
            return Ok(Self(given));
        };
        let why = match &literal.lit {
            Lit::Int(number) => match number.base10_parse::<i32>() {
                Ok(1..) => return Ok(Self(given)),
                Ok(_) => "a semaphore needs at least one permit",
                Err(_) => "a semaphore has at most 2147483647 permits",
            },
            _ => "a number of permits is like `permits = 3`",
        };
        Err(fail(given.span(), why))
    }
}

impl Parse for Time {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let given: Expr = input.parse()?;
        let Expr::Lit(literal) = &given else {
            return Ok(Self::Given(given));
        };
        let span = literal.span();
        match &literal.lit {
            Lit::Str(text) => duration::parse(&text.value())
                .map(Self::Fixed)
                .map_err(|why| fail(span, why)),
            Lit::Int(number) if !number.suffix().is_empty() => Err(fail(
                span,
                format!("a span of time is a text: write \"{number}\""),
            )),
            other => {
                let other = quote::quote!(#other);
                Err(fail(
                    span,
                    format!("{other} is no span of time; write it with its unit, like \"5s\""),
                ))
            }
        }
    }
}

/// The name of a variable that the body sees.
pub(crate) fn local(option: &Ident, input: ParseStream<'_>) -> syn::Result<Ident> {
    input.parse().map_err(|error: syn::Error| {
        fail(
            error.span(),
            format!(
                "`{option}` names a variable for the body: `{option} = {}`",
                example(&option.to_string())
            ),
        )
    })
}

pub(crate) fn path(input: ParseStream<'_>) -> syn::Result<Path> {
    if input.peek(LitStr) {
        return input.parse::<LitStr>()?.parse();
    }
    input.call(Path::parse_mod_style)
}

pub(crate) fn unusable(option: &str, span: Duration) -> Option<String> {
    let is_lease = option.ends_with("lease");
    if is_lease && !LEASES.contains(&span) {
        return Some(format!(
            "a lease is from \"50ms\" to \"365d\", and this is {span:?}"
        ));
    }
    span.is_zero().then(|| {
        format!("`{option}` of no time; leave it out, or write it like `{option} = \"14m\"`")
    })
}
