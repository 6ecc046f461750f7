//! What is written in the attribute.
//!
//! Every error points at the word that is wrong and says what to write.

use std::fmt::Display;
use std::time::Duration;

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Expr, Ident, Lit, LitStr, Path, Token, parenthesized};

use crate::duration;
use crate::key::Key;

const ALL: &str = "`client`, `wait`, `try`, `busy`, `lease`, `fixed_lease`, `at_least`, `max_hold`, `owner`, \
                   `fenced`, `guard`, `fair`, `read`, `write`, `all(..)` and `crate`";

/// What `lockset` accepts as a lease.
const LEASES: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(50)..=Duration::from_secs(365 * 24 * 60 * 60);

/// The attribute as it was written.
pub(crate) struct Options {
    pub(crate) locks: Locks,
    pub(crate) client: Option<Expr>,
    pub(crate) wait: Wait,
    pub(crate) busy: Busy,
    /// `lease`, `fixed_lease`, `at_least` and `max_hold`, by the methods of handles.
    pub(crate) spans: Vec<(Ident, Time)>,
    pub(crate) owner: Option<Expr>,
    pub(crate) fenced: Option<Fenced>,
    pub(crate) guard: Option<Ident>,
    pub(crate) krate: Option<Path>,
}

pub(crate) enum Locks {
    One(Member),
    All(Vec<Member>),
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

/// How long the function waits for the lock.
#[expect(
    clippy::large_enum_variant,
    reason = "one for each attribute, and short-lived"
)]
pub(crate) enum Wait {
    Forever,
    Never,
    For(Time),
}

/// What the function returns if the lock is held.
#[expect(
    clippy::large_enum_variant,
    reason = "one for each attribute, and short-lived"
)]
pub(crate) enum Busy {
    Error,
    Skip,
    Value(Expr),
}

#[expect(
    clippy::large_enum_variant,
    reason = "one for each attribute, and short-lived"
)]
pub(crate) enum Time {
    Fixed(Duration),
    Given(Expr),
}

/// `fenced`, or `fenced = token`.
pub(crate) struct Fenced {
    pub(crate) token: Option<Ident>,
}

impl Locks {
    pub(crate) fn members(&self) -> &[Member] {
        match self {
            Self::One(member) => std::slice::from_ref(member),
            Self::All(members) => members,
        }
    }
}

/// While it is read.
#[derive(Default)]
struct Read {
    seen: Vec<String>,
    key: Option<Member>,
    all: Option<Vec<Member>>,
    kind: Option<(Kind, Ident)>,
    client: Option<Expr>,
    wait: Option<Time>,
    never: Option<Span>,
    busy: Option<Busy>,
    spans: Vec<(Ident, Time)>,
    owner: Option<Expr>,
    fenced: Option<Fenced>,
    guard: Option<Ident>,
    krate: Option<Path>,
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut read = Read::default();
        let whole = input.span();
        while !input.is_empty() {
            read.one(input)?;
            if input.is_empty() {
                break;
            }
            if !input.peek(Token![,]) {
                return Err(input.error("expected `,` between two options"));
            }
            input.parse::<Token![,]>()?;
        }
        read.finish(whole)
    }
}

impl Read {
    fn one(&mut self, input: ParseStream<'_>) -> syn::Result<()> {
        if input.peek(LitStr) {
            let key = Member {
                kind: Kind::Reentrant,
                key: Key::parse(&input.parse()?)?,
            };
            return self.key(key);
        }
        let name = Ident::parse_any(input).map_err(|error| {
            fail(
                error.span(),
                format!("expected the key of the lock or an option; the options are {ALL}"),
            )
        })?;
        if let Some(kind) = Kind::named(&name) {
            if input.peek(LitStr) {
                let key = Key::parse(&input.parse()?)?;
                return self.key(Member { kind, key });
            }
            if let Some((_, before)) = &self.kind {
                return Err(fail(
                    name.span(),
                    format!("`{before}` and `{name}`; a lock is of one kind"),
                ));
            }
            self.kind = Some((kind, name));
            return Ok(());
        }
        let word = name.to_string();
        if self.seen.contains(&word) {
            return Err(fail(name.span(), format!("`{word}` is there twice")));
        }
        self.seen.push(word.clone());
        match word.as_str() {
            "try" => self.never = Some(name.span()),
            "all" => self.all = Some(members(&name, input)?),
            "fenced" if !input.peek(Token![=]) => self.fenced = Some(Fenced { token: None }),
            _ => return self.value(&name, input),
        }
        Ok(())
    }

    /// What is written as `name = value`.
    fn value(&mut self, name: &Ident, input: ParseStream<'_>) -> syn::Result<()> {
        let word = name.to_string();
        if let Some(instead) = instead_of(&word) {
            return Err(fail(
                name.span(),
                format!("`{word}` is no option; {instead}"),
            ));
        }
        let known = [
            "client",
            "wait",
            "busy",
            "lease",
            "fixed_lease",
            "at_least",
            "max_hold",
            "owner",
            "fenced",
            "guard",
            "crate",
        ];
        if !known.contains(&word.as_str()) {
            return Err(fail(
                name.span(),
                format!("`{word}` is no option; the options are {ALL}"),
            ));
        }
        if !input.peek(Token![=]) {
            return Err(fail(
                name.span(),
                format!("`{word}` needs a value: `{word} = {}`", example(&word)),
            ));
        }
        input.parse::<Token![=]>()?;
        match word.as_str() {
            "client" => self.client = Some(input.parse()?),
            "owner" => self.owner = Some(input.parse()?),
            "busy" => self.busy = Some(input.parse()?),
            "wait" => {
                let time = input.parse()?;
                if matches!(time, Time::Fixed(Duration::ZERO)) {
                    return Err(fail(
                        name.span(),
                        "`wait` of no time; write `try` to ask once",
                    ));
                }
                self.wait = Some(time);
            }
            "fenced" => {
                let token = Some(local(name, input)?);
                self.fenced = Some(Fenced { token });
            }
            "guard" => self.guard = Some(local(name, input)?),
            "crate" => self.krate = Some(path(input)?),
            _ => {
                let time: Time = input.parse()?;
                if let Time::Fixed(span) = time
                    && let Some(why) = unusable(&word, span)
                {
                    return Err(fail(name.span(), why));
                }
                self.spans.push((name.clone(), time));
            }
        }
        Ok(())
    }

    fn key(&mut self, member: Member) -> syn::Result<()> {
        if self.key.is_some() {
            return Err(fail(
                member.key.span(),
                "a second key; for several locks write `all(\"order:{id}\", read \"prices\")`",
            ));
        }
        self.key = Some(member);
        Ok(())
    }

    fn finish(self, whole: Span) -> syn::Result<Options> {
        self.agree()?;
        let locks = match (self.key, self.all) {
            (Some(mut key), None) => {
                if let Some((kind, name)) = self.kind {
                    if key.kind != Kind::Reentrant {
                        return Err(fail(
                            name.span(),
                            "the kind is there twice; write it once, before the key",
                        ));
                    }
                    key.kind = kind;
                }
                Locks::One(key)
            }
            (None, Some(members)) => match self.kind {
                Some((_, name)) => {
                    return Err(fail(
                        name.span(),
                        format!(
                            "with `all(..)` each lock has its own kind; write `all({name} \"order:{{id}}\")`"
                        ),
                    ));
                }
                None => Locks::All(members),
            },
            (Some(key), Some(_)) => {
                return Err(fail(
                    key.key.span(),
                    "a key beside `all(..)`; write all keys inside of `all(..)`",
                ));
            }
            (None, None) => {
                return Err(fail(
                    whole,
                    "the key is missing; write the name of the lock first: `#[locked(\"order:{id}\")]`",
                ));
            }
        };
        let wait = match (self.wait, self.never, &self.busy) {
            (Some(time), _, _) => Wait::For(time),
            // Who says what happens when it is held, and not how long to wait, does not wait.
            (None, Some(_), _) | (None, None, Some(_)) => Wait::Never,
            (None, None, None) => Wait::Forever,
        };
        Ok(Options {
            locks,
            client: self.client,
            wait,
            busy: self.busy.unwrap_or(Busy::Error),
            spans: self.spans,
            owner: self.owner,
            fenced: self.fenced,
            guard: self.guard,
            krate: self.krate,
        })
    }

    /// Whether what is written goes together.
    fn agree(&self) -> syn::Result<()> {
        if let (true, Some(never)) = (self.wait.is_some(), self.never) {
            return Err(fail(
                never,
                "`try` asks once and `wait` waits; write one of them",
            ));
        }
        let span = |word: &str| self.spans.iter().find(|(name, _)| name == word);
        if let (Some(_), Some((name, _))) = (span("lease"), span("fixed_lease")) {
            return Err(fail(
                name.span(),
                "`lease` is renewed and `fixed_lease` is not; write one of them",
            ));
        }
        if let (Some((name, Time::Fixed(least))), Some((_, Time::Fixed(most)))) =
            (span("at_least"), span("max_hold"))
            && least > most
        {
            return Err(fail(
                name.span(),
                "`at_least` is longer than `max_hold`; a hold cannot be both",
            ));
        }
        if let (Some(guard), Some(Fenced { token: Some(token) })) = (&self.guard, &self.fenced)
            && guard == token
        {
            return Err(fail(
                guard.span(),
                format!("`{guard}` is the name of the token and of the guard; choose two"),
            ));
        }
        Ok(())
    }
}

impl Kind {
    fn named(name: &Ident) -> Option<Self> {
        match name.to_string().as_str() {
            "fair" => Some(Self::Fair),
            "read" => Some(Self::Read),
            "write" => Some(Self::Write),
            _ => None,
        }
    }
}

/// `all("order:{id}", read "prices")`
fn members(name: &Ident, input: ParseStream<'_>) -> syn::Result<Vec<Member>> {
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
fn local(option: &Ident, input: ParseStream<'_>) -> syn::Result<Ident> {
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

fn path(input: ParseStream<'_>) -> syn::Result<Path> {
    if input.peek(LitStr) {
        return input.parse::<LitStr>()?.parse();
    }
    input.call(Path::parse_mod_style)
}

fn unusable(option: &str, span: Duration) -> Option<String> {
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

fn example(option: &str) -> &'static str {
    match option {
        "client" => "self.locks",
        "busy" => "skip",
        "owner" => "&me",
        "fenced" => "token",
        "guard" => "g",
        "crate" => "path::to::lockset",
        "lease" | "fixed_lease" => "\"30s\"",
        "at_least" | "max_hold" => "\"14m\"",
        _ => "\"5s\"",
    }
}

/// Words of other libraries, and near misses.
fn instead_of(word: &str) -> Option<&'static str> {
    Some(match word {
        "key" | "keys" | "name" | "lock" => {
            "the key comes without a name: `#[locked(\"order:{id}\")]`, several as `all(..)`"
        }
        "skip" => "write `busy = skip`",
        "timeout" | "wait_time" | "blocking" => "write `wait = \"5s\"`, or `try` to ask once",
        "ttl" | "expire" | "lease_time" => {
            "write `lease = \"30s\"`, which is renewed, or `fixed_lease = \"30s\"`"
        }
        "token" => "write `fenced = token`",
        "at_most" => "write `max_hold = \"14m\"`",
        "locks" | "redis" | "connection" => "write `client = self.locks`",
        "kind" | "reentrant" => {
            "write `fair`, `read` or `write` before the key, or nothing for a reentrant lock"
        }
        _ => return None,
    })
}

fn fail(span: Span, message: impl Display) -> syn::Error {
    syn::Error::new(span, message)
}
