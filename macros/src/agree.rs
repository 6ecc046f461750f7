//! Whether what is written in an attribute goes together.

use syn::spanned::Spanned;
use syn::{Expr, Ident};

use crate::locks::{Kind, Locks, Member};
use crate::read::Read;
use crate::values::{Fenced, Time};
use crate::words::{beside_permits, fail};

impl Read {
    /// A lock on the servers of a `Redlock`.
    pub(crate) fn on_a_redlock(&mut self, name: &Ident, redlock: Expr) -> syn::Result<Locks> {
        let kind = self.kind.as_ref().map(|(kind, _)| *kind);
        let is_other = |member: &Member| member.kind != Kind::Reentrant;
        let beside = [
            ("client", self.client.is_some(), "it has clients of its own"),
            ("all(..)", self.all.is_some(), "it takes one lock at a time"),
            (
                "each(..)",
                self.each.is_some(),
                "it takes one lock at a time",
            ),
            ("permits", self.permits.is_some(), "it has no semaphores"),
            (
                "fair`, `read` or `write",
                kind.is_some() || self.key.as_ref().is_some_and(is_other),
                "its locks are of one kind",
            ),
        ];
        if let Some((word, _, why)) = beside.iter().find(|(_, is_there, _)| *is_there) {
            return Err(fail(
                name.span(),
                format!("`{word}` beside `redlock`: {why}; leave one of them out"),
            ));
        }
        match self.key.take() {
            Some(key) => Ok(Locks::Redlock(key, Box::new(redlock))),
            None => Err(fail(
                name.span(),
                "the key is missing; write the name of the lock first: `#[locked(\"order:{id}\", redlock = quorum)]`",
            )),
        }
    }

    /// The locks of a list of names.
    pub(crate) fn of_each(&self, kind: Kind, names: Expr) -> syn::Result<Locks> {
        let beside = if let Some(key) = &self.key {
            Some((
                key.key.span(),
                "a key beside `each(..)`; all names come from its list",
            ))
        } else if let Some((_, name)) = &self.kind {
            Some((
                name.span(),
                "write the kind before the list: `each(read &names)`",
            ))
        } else if let Some((name, _)) = &self.permits {
            Some((
                name.span(),
                "`each(..)` beside `permits`: a semaphore cannot be one of several locks",
            ))
        } else if self.all.is_some() {
            Some((names.span(), "`all(..)` and `each(..)`; write one of them"))
        } else {
            None
        };
        match beside {
            Some((at, why)) => Err(fail(at, why)),
            None => Ok(Locks::Each(kind, Box::new(names))),
        }
    }

    /// `sticky` is for locks whose waiters queue in their clients.
    pub(crate) fn agree_with_sticky(&self, locks: &Locks) -> syn::Result<()> {
        let Some((name, _)) = self.spans.iter().find(|(name, _)| name == "sticky") else {
            return Ok(());
        };
        let is_fixed = self.spans.iter().any(|(name, _)| name == "fixed_lease");
        let why = match locks {
            Locks::One(member) => match member.kind {
                Kind::Fair => "waiters of other processes come first",
                Kind::Read => "readers share the lock",
                Kind::Reentrant | Kind::Write if is_fixed => "a fixed lease is not renewed",
                Kind::Reentrant | Kind::Write => return Ok(()),
            },
            Locks::All(_) | Locks::Each(..) => "several locks are released together",
            Locks::Permits(..) => "a released permit is free at once",
            Locks::Redlock(..) => "each grant of a `Redlock` is a round at its servers",
        };
        Err(fail(
            name.span(),
            format!("`sticky` has no effect here: {why}; leave it out"),
        ))
    }

    /// Whether what is written goes together.
    pub(crate) fn agree(&self) -> syn::Result<()> {
        if let Some((name, _)) = &self.permits {
            self.agree_with_permits(name)?;
        }
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

    fn agree_with_permits(&self, name: &Ident) -> syn::Result<()> {
        let has = |word: &str| self.spans.iter().any(|(name, _)| name == word);
        let beside = [
            (
                "all(..)",
                self.all.is_some(),
                "a semaphore cannot be one of several locks",
            ),
            (
                "fenced",
                self.fenced.is_some(),
                "several callers hold permits at once, so no token orders them",
            ),
            (
                "owner",
                self.owner.is_some(),
                "permits have no owner, and each call takes its own",
            ),
            (
                "at_least",
                has("at_least"),
                "a released permit is free at once",
            ),
            (
                "replicated(..)",
                self.replicated.is_some(),
                "permits do not wait for replicas",
            ),
            (
                "max_hold",
                has("max_hold"),
                "a permit is renewed until the body ends; for a bound write `fixed_lease`",
            ),
        ];
        match beside.iter().find(|(_, is_there, _)| *is_there) {
            Some((word, _, why)) => Err(beside_permits(name, word, why)),
            None => Ok(()),
        }
    }
}
