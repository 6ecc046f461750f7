//! The attribute `#[locked]` of [lockset](https://docs.rs/lockset): a function whose body runs under a lock.
//!
//! Use it as `lockset::locked`, with the feature `macros` of lockset. Its documentation is there too.
//!
//! ```text
//! options.rs  what is written in the attribute; read.rs: so far; agree.rs: does it go together
//! words.rs    the words of options, and what to write instead of others
//! locks.rs    which locks; key.rs: "order:{order.id}"; values.rs: other values; duration.rs: "1m 30s"
//! refused.rs  functions and arguments that cannot work, and what to write
//! shape.rs    where the body stands: in an async function, or in a future that it returns
//! client.rs   which client is asked
//! expand.rs   the function that is made from all that
//! ```
//!
//! Invariant: the generated code names nothing but `::lockset::__private`, and no local variable that the body
//! could see, except those that the attribute binds.

mod agree;
mod client;
mod duration;
mod expand;
mod key;
mod locks;
mod options;
mod read;
mod refused;
mod shape;
#[cfg(test)]
mod tests;
mod values;
mod words;

use proc_macro::TokenStream;

/// The macro is in the crate `lockset-macros`; the library has its documentation.
#[proc_macro_attribute]
pub fn locked(options: TokenStream, item: TokenStream) -> TokenStream {
    expand::locked(options.into(), item.into()).into()
}
