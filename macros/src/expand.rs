//! The function that is made: the lock, the body under it, the release, the return.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Block, Expr, ItemFn, Signature, Stmt, TraitItemFn, Type, parse_quote_spanned};

use crate::locks::{Kind, Locks, Member};
use crate::options::{Options, Wait};
use crate::shape::Body;
use crate::values::{Busy, Fenced, Group, Replicated, Time};
use crate::{client, refused};

/// The function with its lock; or what is wrong, and the item as it was, so that nothing else is reported.
pub(crate) fn locked(options: TokenStream, item: TokenStream) -> TokenStream {
    try_locked(options, item.clone()).unwrap_or_else(|error| {
        let error = error.into_compile_error();
        quote!(#error #item)
    })
}

pub(crate) fn try_locked(options: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let mut function = function(item)?;
    let options: Options = syn::parse2(options)?;
    refused::check_arguments(&function.sig)?;
    refused::check_names(&options, &function.sig)?;
    let signature = function.sig.clone();
    let body = Body::of(&mut function)?;
    let expansion = Expansion::new(&options, &signature, body.output.clone())?;
    expansion.wrap(body.block);
    Ok(function.into_token_stream())
}

fn function(item: TokenStream) -> syn::Result<ItemFn> {
    syn::parse2(item.clone()).map_err(|error| match syn::parse2::<TraitItemFn>(item) {
        Ok(declared) => syn::Error::new(
            declared.sig.ident.span(),
            "this method has no body to run under the lock; write `#[locked(..)]` in each `impl`",
        ),
        Err(_) => syn::Error::new(
            error.span(),
            "`#[locked(..)]` goes on an async function or method with a body",
        ),
    })
}

struct Expansion<'a> {
    options: &'a Options,
    /// The path to what the library has for us.
    private: TokenStream,
    client: TokenStream,
    output: Type,
    /// The generated code has the span of the function's return type, because most errors of the compiler are
    /// about it.
    at: Span,
}

impl<'a> Expansion<'a> {
    fn new(options: &'a Options, signature: &Signature, output: Type) -> syn::Result<Self> {
        let at = ours(output.span());
        let private = match &options.krate {
            Some(path) => quote!(#path::__private),
            None => quote_spanned!(at=> ::lockset::__private),
        };
        let client = match options.locks {
            Locks::Redlock(..) => TokenStream::new(),
            _ => client::find(options.client.as_ref(), signature, &private)?,
        };
        Ok(Self {
            options,
            private,
            client,
            output,
            at,
        })
    }

    /// Puts the block under the lock.
    fn wrap(&self, block: &mut Block) {
        let (private, output, at) = (&self.private, &self.output, self.at);
        // Never run. It says what a block returns, so that errors in the body point at it.
        let typed: Stmt = parse_quote_spanned! {at=>
            if let ::core::option::Option::Some(__lockset_never) = #private::returns::<#output>() {
                return __lockset_never;
            }
        };
        let mut inner = block.clone();
        inner.stmts.insert(0, typed.clone());
        let (lock, acquired, bound) = (self.lock(), self.acquired(), self.bound());
        let all: Block = parse_quote_spanned! {at=> {
            #typed
            let __lockset_lock = #lock;
            let __lockset_guard = #acquired;
            #bound
            let __lockset_done = __lockset_guard.run(async move #inner).await;
            #private::finish(__lockset_guard, __lockset_done).await
        }};
        block.stmts = all.stmts;
    }

    /// The handle, with its options.
    fn lock(&self) -> TokenStream {
        let (private, client, at) = (&self.private, &self.client, self.at);
        let handle = match &self.options.locks {
            Locks::One(member) => {
                let handle = handle(client, member, private);
                quote_spanned!(at=> #handle)
            }
            Locks::Permits(member, permits) => {
                let at = ours(member.key.span());
                let key = member.key.tokens(private);
                let fair = (member.kind == Kind::Fair).then(|| quote_spanned!(at=> .fair()));
                quote_spanned!(at=> #client.semaphore(#key).permits(#permits) #fair)
            }
            Locks::Redlock(member, redlock) => {
                let at = ours(member.key.span());
                let key = member.key.tokens(private);
                quote_spanned!(at=> #private::redlock(&#redlock).lock(#key))
            }
            Locks::Each(kind, names) => self.each(*kind, names),
            Locks::All(members) => {
                let client_once = quote_spanned!(at=> __lockset_client);
                let members = members.iter().map(|member| {
                    let handle = handle(&client_once, member, private);
                    quote_spanned!(at=> #private::Member::from(#handle))
                });
                quote_spanned! {at=>
                    match #private::all(match #client { __lockset_client => [#(#members),*] }) {
                        ::core::result::Result::Ok(__lockset_lock) => __lockset_lock,
                        ::core::result::Result::Err(__lockset_error) => {
                            return #private::failed(__lockset_error);
                        }
                    }
                }
            }
        };
        let spans = self.options.spans.iter().map(|(option, time)| {
            let (at, time) = (
                Span::mixed_site().located_at(option.span()),
                self.time(time),
            );
            let option = syn::Ident::new(&option.to_string(), at);
            quote_spanned!(at=> .#option(#time))
        });
        let replicated = self.options.replicated.as_ref();
        let replicated = replicated.map(|Replicated { count, within }| {
            let within = self.time(within);
            quote_spanned!(at=> .replicated(#count, #within))
        });
        let owner = self.options.owner.as_ref();
        let owner = owner.map(|owner| quote_spanned!(at=> .owner(#owner)));
        let fenced = self.options.fenced.as_ref();
        let fenced = fenced.map(|_| quote_spanned!(at=> .fenced()));
        let group = self.options.group.as_ref();
        let group = group.map(|Group(name)| quote_spanned!(at=> .group(#name)));
        quote_spanned!(at=> #handle #(#spans)* #replicated #owner #fenced #group)
    }

    /// The locks of a list of names.
    fn each(&self, kind: Kind, names: &Expr) -> TokenStream {
        let (private, client, at) = (&self.private, &self.client, self.at);
        let (client_once, name) = (
            quote_spanned!(at=> __lockset_client),
            quote_spanned!(at=> __lockset_name),
        );
        let handle = handle_of(&client_once, kind, &name, at);
        quote_spanned! {at=>
            match #private::each(#client, #names, |__lockset_client, __lockset_name| {
                #private::Member::from(#handle)
            }) {
                ::core::result::Result::Ok(__lockset_lock) => __lockset_lock,
                ::core::result::Result::Err(__lockset_error) => {
                    return #private::failed(__lockset_error);
                }
            }
        }
    }

    /// An expression for the guard, which returns if there is none.
    fn acquired(&self) -> TokenStream {
        let (private, at) = (&self.private, self.at);
        let failed = quote_spanned! {at=>
            ::core::result::Result::Err(__lockset_error) => return #private::failed(__lockset_error),
        };
        let [lock, try_lock, try_lock_for] = match &self.options.locks {
            Locks::Permits(..) => ["acquire", "try_acquire", "try_acquire_for"],
            _ => ["lock", "try_lock", "try_lock_for"],
        }
        .map(|verb| syn::Ident::new(verb, at));
        let asked = match &self.options.wait {
            Wait::Forever => {
                return quote_spanned! {at=>
                    match __lockset_lock.#lock().await {
                        ::core::result::Result::Ok(__lockset_guard) => __lockset_guard,
                        #failed
                    }
                };
            }
            Wait::Never => quote_spanned!(at=> __lockset_lock.#try_lock()),
            Wait::For(time) => {
                let time = self.time(time);
                quote_spanned!(at=> __lockset_lock.#try_lock_for(#time))
            }
        };
        let busy = self.busy();
        quote_spanned! {at=>
            match #asked.await {
                ::core::result::Result::Ok(::core::option::Option::Some(__lockset_guard)) => __lockset_guard,
                ::core::result::Result::Ok(::core::option::Option::None) => return #busy,
                #failed
            }
        }
    }

    /// The value that is returned if the lock is held.
    fn busy(&self) -> TokenStream {
        let (private, output, at) = (&self.private, &self.output, self.at);
        match &self.options.busy {
            Busy::Error => quote_spanned!(at=> #private::busy(&__lockset_lock).await),
            Busy::Skip => quote_spanned!(at=> #private::skipped()),
            Busy::Value(value) if is_whole(value) => value.to_token_stream(),
            Busy::Value(value @ Expr::Closure(_)) => {
                quote_spanned!(at=> #private::busy_with::<#output, _>(&__lockset_lock, #value).await)
            }
            Busy::Value(value) => quote_spanned!(at=> #private::busy_value::<#output, _>(#value)),
        }
    }

    /// The bindings of the guard in the body.
    fn bound(&self) -> TokenStream {
        let (private, at) = (&self.private, self.at);
        let token = match &self.options.fenced {
            Some(Fenced { token }) => token.as_ref(),
            None => None,
        };
        let token =
            token.map(|token| quote_spanned!(at=> let #token = #private::token(&__lockset_guard);));
        let guard = self.options.guard.as_ref();
        let guard = guard.map(|guard| quote_spanned!(at=> let #guard = &__lockset_guard;));
        quote!(#token #guard)
    }

    fn time(&self, time: &Time) -> TokenStream {
        let private = &self.private;
        match time {
            Time::Fixed(span) => {
                let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
                quote!(#private::millis(#millis))
            }
            Time::Given(given) => given.to_token_stream(),
        }
    }
}

fn handle(client: &TokenStream, member: &Member, private: &TokenStream) -> TokenStream {
    let at = ours(member.key.span());
    handle_of(client, member.kind, &member.key.tokens(private), at)
}

fn handle_of(client: &TokenStream, kind: Kind, key: &TokenStream, at: Span) -> TokenStream {
    match kind {
        Kind::Reentrant => quote_spanned!(at=> #client.lock(#key)),
        Kind::Fair => quote_spanned!(at=> #client.fair_lock(#key)),
        Kind::Read => quote_spanned!(at=> #client.rw_lock(#key).read_side()),
        Kind::Write => quote_spanned!(at=> #client.rw_lock(#key).write_side()),
    }
}

/// `Ok(..)` or `Err(..)`: what the function returns, not only its error.
fn is_whole(value: &Expr) -> bool {
    let Expr::Call(call) = value else {
        return false;
    };
    matches!(&*call.func, Expr::Path(path) if path.path.is_ident("Ok") || path.path.is_ident("Err"))
}

/// Points there, and is hidden from the body.
fn ours(span: Span) -> Span {
    Span::mixed_site().located_at(span)
}
