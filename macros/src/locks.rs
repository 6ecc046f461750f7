//! The locks that an attribute names, and their kinds.

use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::{Expr, Ident, LitStr, Token, parenthesized};

use crate::key::Key;
use crate::words::fail;

pub(crate) enum Locks {
    One(Member),
    All(Vec<Member>),
    /// A list of names, all of one kind.
    Each(Kind, Box<Expr>),
    /// On the servers of a `Redlock`.
    Redlock(Member, Box<Expr>),
    /// A semaphore, and how many permits it has.
    Permits(Member, Box<Expr>),
}

pub(crate) struct Member {
    pub(crate) kind: Kind,
    pub(crate) key: Key,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Reentrant,
    Fair,
    Read,
    Write,
}

impl Locks {
    pub(crate) fn members(&self) -> &[Member] {
        match self {
            Self::One(member) | Self::Permits(member, _) | Self::Redlock(member, _) => {
                std::slice::from_ref(member)
            }
            Self::All(members) => members,
            // Its names are no keys of the attribute.
            Self::Each(..) => &[],
        }
    }
}

impl Kind {
    pub(crate) fn named(name: &Ident) -> Option<Self> {
        match name.to_string().as_str() {
            "fair" => Some(Self::Fair),
            "read" => Some(Self::Read),
            "write" => Some(Self::Write),
            _ => None,
        }
    }
}

/// `all("order:{id}", read "prices")`
pub(crate) fn members(name: &Ident, input: ParseStream<'_>) -> syn::Result<Vec<Member>> {
    const HOW: &str = "write `all(\"order:{id}\", read \"prices\")`";
    if !input.peek(syn::token::Paren) {
        return Err(fail(name.span(), format!("`all` needs its keys; {HOW}")));
    }
    let inside;
    parenthesized!(inside in input);
    let mut members = Vec::new();
    while !inside.is_empty() {
        members.push(member(&inside, HOW)?);
        if !inside.is_empty() && !inside.peek(Token![,]) {
            return Err(inside.error("expected `,` between two keys"));
        }
        inside.parse::<Option<Token![,]>>()?;
    }
    if members.is_empty() {
        return Err(fail(name.span(), format!("`all` of no locks; {HOW}")));
    }
    Ok(members)
}

/// `each(&names)`, or `each(fair &names)`
pub(crate) fn each(name: &Ident, input: ParseStream<'_>) -> syn::Result<(Kind, Expr)> {
    const HOW: &str = "write `each(&names)`, or `each(read &names)`";
    if !input.peek(syn::token::Paren) {
        return Err(fail(
            name.span(),
            format!("`each` needs a list of names; {HOW}"),
        ));
    }
    let inside;
    parenthesized!(inside in input);
    let ahead = inside.fork();
    let kind = ahead.call(Ident::parse_any).ok();
    let kind = kind.and_then(|word| Kind::named(&word));
    // A word alone is the list.
    let kind = kind.filter(|_| !ahead.is_empty() && !ahead.peek(Token![.]));
    if kind.is_some() {
        Ident::parse_any(&inside)?;
    }
    if inside.is_empty() {
        return Err(fail(name.span(), format!("`each` of no list; {HOW}")));
    }
    let names = inside.parse()?;
    if !inside.is_empty() {
        return Err(inside.error(format!("one list of names is expected; {HOW}")));
    }
    Ok((kind.unwrap_or(Kind::Reentrant), names))
}

fn member(input: ParseStream<'_>, how: &str) -> syn::Result<Member> {
    let expected = |error: syn::Error| fail(error.span(), format!("expected a key; {how}"));
    let kind = if input.peek(LitStr) {
        Kind::Reentrant
    } else {
        let word = Ident::parse_any(input).map_err(expected)?;
        Kind::named(&word).ok_or_else(|| {
            let message = format!("`{word}` is no kind; the kinds are `fair`, `read` and `write`");
            fail(word.span(), message)
        })?
    };
    let key = Key::parse(&input.parse().map_err(expected)?)?;
    Ok(Member { kind, key })
}
