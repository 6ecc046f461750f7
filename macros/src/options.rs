//! The arguments of the attribute.
//!
//! Every error points at the word that is wrong and says what to write.

use std::time::Duration;

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Expr, Ident, LitStr, Path, Token};

use crate::key::Key;
use crate::locks::{Kind, Locks, Member, each, members};
use crate::read::Read;
use crate::values::{Busy, Fenced, Group, Permits, Replicated, Time, local, path, unusable};
use crate::words::{ALL, beside_permits, example, fail, instead_of};

/// The options of the form `name = value`.
const WITH_A_VALUE: &[&str] = &[
    "client",
    "wait",
    "busy",
    "lease",
    "fixed_lease",
    "at_least",
    "max_hold",
    "sticky",
    "give_up_after",
    "redlock",
    "owner",
    "fenced",
    "guard",
    "group",
    "permits",
    "crate",
];

/// The attribute as it was written.
pub(crate) struct Options {
    pub(crate) locks: Locks,
    pub(crate) client: Option<Expr>,
    pub(crate) wait: Wait,
    pub(crate) busy: Busy,
    /// `lease`, `sticky` and other spans, by the methods of handles.
    pub(crate) spans: Vec<(Ident, Time)>,
    pub(crate) replicated: Option<Replicated>,
    pub(crate) owner: Option<Expr>,
    pub(crate) fenced: Option<Fenced>,
    pub(crate) guard: Option<Ident>,
    pub(crate) group: Option<Group>,
    pub(crate) krate: Option<Path>,
}

/// How long the function waits for the lock.
#[allow(
    clippy::large_enum_variant,
    reason = "one for each attribute, and short-lived; how large depends on features of others"
)]
pub(crate) enum Wait {
    Forever,
    Never,
    For(Time),
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
            "each" => self.each = Some(each(&name, input)?),
            "replicated" => self.replicated = Some(Replicated::parse(&name, input)?),
            "fenced" if !input.peek(Token![=]) => self.fenced = Some(Fenced { token: None }),
            _ => return self.value(&name, input),
        }
        Ok(())
    }

    /// An argument of the form `name = value`.
    fn value(&mut self, name: &Ident, input: ParseStream<'_>) -> syn::Result<()> {
        let word = name.to_string();
        if let Some(instead) = instead_of(&word) {
            return Err(fail(
                name.span(),
                format!("`{word}` is no option; {instead}"),
            ));
        }
        if !WITH_A_VALUE.contains(&word.as_str()) {
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
            "redlock" => self.redlock = Some((name.clone(), input.parse()?)),
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
            "group" => self.group = Some(input.parse()?),
            "permits" => self.permits = Some((name.clone(), input.parse()?)),
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

    fn finish(mut self, whole: Span) -> syn::Result<Options> {
        self.agree()?;
        if let Some((name, redlock)) = self.redlock.take() {
            let locks = self.on_a_redlock(&name, redlock)?;
            return self.options(locks);
        }
        if let Some((kind, names)) = self.each.take() {
            let locks = self.of_each(kind, names)?;
            return self.options(locks);
        }
        let locks = match (self.key.take(), self.all.take()) {
            (Some(mut key), None) => {
                if let Some((kind, name)) = self.kind.take() {
                    if key.kind != Kind::Reentrant {
                        return Err(fail(
                            name.span(),
                            "the kind is there twice; write it once, before the key",
                        ));
                    }
                    key.kind = kind;
                }
                match self.permits.take() {
                    Some((name, _)) if matches!(key.kind, Kind::Read | Kind::Write) => {
                        return Err(beside_permits(
                            &name,
                            "read` or `write",
                            "a semaphore has no sides",
                        ));
                    }
                    Some((_, Permits(permits))) => Locks::Permits(key, Box::new(permits)),
                    None => Locks::One(key),
                }
            }
            (None, Some(members)) => match self.kind.take() {
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
        self.options(locks)
    }

    fn options(self, locks: Locks) -> syn::Result<Options> {
        self.agree_with_sticky(&locks)?;
        let wait = match (self.wait, self.never, &self.busy) {
            (Some(time), _, _) => Wait::For(time),
            // `busy` without `wait` does not wait.
            (None, Some(_), _) | (None, None, Some(_)) => Wait::Never,
            (None, None, None) => Wait::Forever,
        };
        Ok(Options {
            locks,
            client: self.client,
            wait,
            busy: self.busy.unwrap_or(Busy::Error),
            spans: self.spans,
            replicated: self.replicated,
            owner: self.owner,
            fenced: self.fenced,
            guard: self.guard,
            group: self.group,
            krate: self.krate,
        })
    }
}
