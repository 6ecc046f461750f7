//! What has been read of an attribute so far.

use proc_macro2::Span;
use syn::{Expr, Ident, Path};

use crate::locks::{Kind, Member};
use crate::values::{Busy, Fenced, Group, Permits, Replicated, Time};

/// The arguments, each as it was written.
#[derive(Default)]
pub(crate) struct Read {
    pub(crate) seen: Vec<String>,
    pub(crate) key: Option<Member>,
    pub(crate) all: Option<Vec<Member>>,
    pub(crate) each: Option<(Kind, Expr)>,
    pub(crate) redlock: Option<(Ident, Expr)>,
    pub(crate) replicated: Option<Replicated>,
    pub(crate) kind: Option<(Kind, Ident)>,
    pub(crate) client: Option<Expr>,
    pub(crate) wait: Option<Time>,
    pub(crate) never: Option<Span>,
    pub(crate) busy: Option<Busy>,
    pub(crate) spans: Vec<(Ident, Time)>,
    pub(crate) owner: Option<Expr>,
    pub(crate) fenced: Option<Fenced>,
    pub(crate) guard: Option<Ident>,
    pub(crate) group: Option<Group>,
    pub(crate) permits: Option<(Ident, Permits)>,
    pub(crate) krate: Option<Path>,
}
