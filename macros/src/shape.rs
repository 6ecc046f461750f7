//! Where the body stands: in an async function, or in a future that a function returns.
//!
//! The second is what `async_trait` leaves, and what `-> impl Future` and `-> BoxFuture` are written as.

use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Block, Expr, ExprAsync, GenericArgument, ItemFn, PathArguments, ReturnType, Stmt, Type,
    TypeParamBound, TypePath,
};

/// The block that runs under the lock, and what it returns.
pub(crate) struct Body<'a> {
    pub(crate) block: &'a mut Block,
    /// Without `impl Trait`, which has no name.
    pub(crate) output: Type,
}

impl<'a> Body<'a> {
    pub(crate) fn of(function: &'a mut ItemFn) -> syn::Result<Self> {
        let name = &function.sig.ident;
        if function.sig.asyncness.is_some() {
            let ReturnType::Type(_, output) = &function.sig.output else {
                return Err(syn::Error::new(name.span(), no_result(name)));
            };
            let output = named(output)?;
            return Ok(Self {
                block: &mut function.block,
                output,
            });
        }
        let not_async = syn::Error::new(
            function.sig.fn_token.span(),
            format!(
                "`{name}` is not async, and a lock is awaited; write `async fn {name}`. (Below an attribute \
                 that makes it so, like `#[tokio::main]`: write `#[locked(..)]` above that.)"
            ),
        );
        let output = match &function.sig.output {
            ReturnType::Type(_, ty) => future_output(ty).map(named),
            ReturnType::Default => None,
        };
        let Some(output) = output else {
            return Err(not_async);
        };
        let block = last_async(&mut function.block).ok_or(not_async)?;
        Ok(Self {
            block,
            output: output?,
        })
    }
}

fn no_result(name: &syn::Ident) -> String {
    format!(
        "`{name}` returns nothing, and acquiring a lock can fail; write `-> Result<(), E>`, where `E` is made \
         from `lockset::Error`"
    )
}

/// The type as it can be written inside of the body.
fn named(output: &Type) -> syn::Result<Type> {
    struct Unnamed;
    impl VisitMut for Unnamed {
        fn visit_type_mut(&mut self, ty: &mut Type) {
            if let Type::ImplTrait(hidden) = ty {
                let underscore = syn::Token![_](hidden.span());
                *ty = Type::Infer(syn::TypeInfer {
                    attrs: Vec::new(),
                    underscore_token: underscore,
                });
            } else {
                visit_mut::visit_type_mut(self, ty);
            }
        }
    }
    if matches!(output, Type::ImplTrait(_)) {
        return Err(syn::Error::new(
            output.span(),
            "`impl Trait` may hide that nothing fails, and acquiring a lock can; write `Result<impl Trait, E>`",
        ));
    }
    let mut output = output.clone();
    Unnamed.visit_type_mut(&mut output);
    Ok(output)
}

/// `T` of `impl Future<Output = T>`, `Pin<Box<dyn Future<Output = T>>>` and `BoxFuture<'_, T>`.
fn future_output(ty: &Type) -> Option<&Type> {
    let bounds = match ty {
        Type::ImplTrait(ty) => &ty.bounds,
        Type::TraitObject(ty) => &ty.bounds,
        Type::Path(path) => return inside(path),
        _ => return None,
    };
    bounds.iter().find_map(|bound| {
        let TypeParamBound::Trait(bound) = bound else {
            return None;
        };
        let last = bound.path.segments.last()?;
        let PathArguments::AngleBracketed(arguments) = &last.arguments else {
            return None;
        };
        let mut outputs = arguments.args.iter();
        outputs.find_map(|argument| match argument {
            GenericArgument::AssocType(output) if output.ident == "Output" => Some(&output.ty),
            _ => None,
        })
    })
}

fn inside(path: &TypePath) -> Option<&Type> {
    let last = path.path.segments.last()?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    let mut types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    let first = types.next()?;
    match last.ident.to_string().as_str() {
        "BoxFuture" | "LocalBoxFuture" => Some(first),
        "Pin" | "Box" => future_output(first),
        _ => None,
    }
}

/// The async block at the end of a function: `async move { .. }` or `Box::pin(async move { .. })`.
fn last_async(block: &mut Block) -> Option<&mut Block> {
    let Some(Stmt::Expr(last, None)) = block.stmts.last_mut() else {
        return None;
    };
    match last {
        Expr::Async(ExprAsync { block, .. }) => Some(block),
        Expr::Call(call) if call.args.len() == 1 => match call.args.first_mut() {
            Some(Expr::Async(ExprAsync { block, .. })) => Some(block),
            _ => None,
        },
        _ => None,
    }
}
