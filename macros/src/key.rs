//! The key: a format string over arguments and `self`.
//!
//! `{order.id}` becomes an argument of `format!`, which takes no field access by itself. Invariant: every
//! value has a name, so a key never depends on an order of arguments.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::{Index, LitStr};

/// The name of a lock, to be made when the function is called.
pub(crate) struct Key {
    /// For `format!`, with `{0}`, `{1}` for the values.
    format: String,
    values: Vec<Value>,
    span: Span,
}

/// `order.lines.0.sku()`
struct Value {
    root: Ident,
    steps: Vec<Step>,
}

enum Step {
    Field(Ident),
    Index(Index),
    Method(Ident),
}

impl Key {
    pub(crate) fn parse(literal: &LitStr) -> syn::Result<Self> {
        let span = literal.span();
        let fail = |message: String| syn::Error::new(span, message);
        let text = literal.value();
        if text.is_empty() {
            return Err(fail(
                "the key is empty; write the name of the lock, like \"order:{id}\"".to_owned(),
            ));
        }
        let (mut format, mut values) = (String::new(), Vec::new());
        let mut rest = text.as_str();
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            format.push_str(before);
            if from.starts_with("{{") || from.starts_with("}}") {
                format.push_str(&from[..2]);
                rest = &from[2..];
                continue;
            }
            let Some(inside) = from.strip_prefix('{') else {
                return Err(fail(format!(
                    "a `}}` without its `{{` in the key {text:?}; write `}}}}` for a brace in the name"
                )));
            };
            let Some(end) = inside.find('}') else {
                return Err(fail(format!(
                    "a `{{` without its `}}` in the key {text:?}; write `{{{{` for a brace in the name"
                )));
            };
            let (value, spec) = placeholder(&inside[..end], span).map_err(fail)?;
            format.push_str(&format!("{{{}{spec}}}", values.len()));
            values.push(value);
            rest = &inside[end + 1..];
        }
        format.push_str(rest);
        Ok(Self {
            format,
            values,
            span,
        })
    }

    /// Where it was written.
    pub(crate) fn span(&self) -> Span {
        self.span
    }

    /// The first names of the values: arguments, `self`, or constants.
    pub(crate) fn roots(&self) -> impl Iterator<Item = &Ident> {
        self.values.iter().map(|value| &value.root)
    }

    /// An expression for the name: a text, or a `format!`.
    pub(crate) fn tokens(&self, private: &TokenStream) -> TokenStream {
        let ours = Span::mixed_site().located_at(self.span);
        if self.values.is_empty() {
            let name = self.format.replace("{{", "{").replace("}}", "}");
            return LitStr::new(&name, ours).to_token_stream();
        }
        let (format, values) = (LitStr::new(&self.format, ours), &self.values);
        quote_spanned!(ours=> #private::format!(#format, #(#values),*))
    }
}

/// The text between two braces: a value, and the rest of its format with the colon.
fn placeholder(inside: &str, span: Span) -> Result<(Value, &str), String> {
    let (path, spec) = inside.split_at(inside.find(':').unwrap_or(inside.len()));
    let path = path.trim();
    if path.is_empty() {
        return Err(format!(
            "`{{{inside}}}` names nothing; write the argument or field that belongs there, like `{{id{spec}}}`"
        ));
    }
    if spec.contains('$') || spec.contains(".*") {
        return Err(format!(
            "`{{{inside}}}` takes a width or precision from an argument; write it as a number, like `{{{path}:>8}}`"
        ));
    }
    let mut parts = path.split('.');
    let first = parts.next().unwrap_or_default();
    let root = match first {
        "self" => Ident::new("self", span),
        other => name(other, span).ok_or_else(|| no_expression(inside))?,
    };
    let steps = parts.map(|part| step(part, span).ok_or_else(|| no_expression(inside)));
    let steps = steps.collect::<Result<_, _>>()?;
    Ok((Value { root, steps }, spec))
}

fn no_expression(inside: &str) -> String {
    format!(
        "`{{{inside}}}` is no argument, field or method without arguments; compute it before, and pass it as \
         an argument"
    )
}

fn step(part: &str, span: Span) -> Option<Step> {
    if let Some(method) = part.strip_suffix("()") {
        return name(method, span).map(Step::Method);
    }
    if part.starts_with(|sign: char| sign.is_ascii_digit()) {
        let index = part.parse().ok()?;
        return Some(Step::Index(Index { index, span }));
    }
    name(part, span).map(Step::Field)
}

/// A name, also a raw one, but no keyword.
fn name(text: &str, span: Span) -> Option<Ident> {
    let parsed: Ident = syn::parse_str(text).ok()?;
    // Parsed from a text of its own, so it points nowhere yet.
    Some(match text.strip_prefix("r#") {
        Some(raw) => Ident::new_raw(raw, span),
        None => Ident::new(&parsed.unraw().to_string(), span),
    })
}

impl ToTokens for Value {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let (root, steps) = (&self.root, &self.steps);
        tokens.extend(quote!(#root #(.#steps)*));
    }
}

impl ToTokens for Step {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        match self {
            Self::Field(name) => name.to_tokens(tokens),
            Self::Index(index) => index.to_tokens(tokens),
            Self::Method(name) => tokens.extend(quote!(#name())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> syn::Result<Key> {
        Key::parse(&LitStr::new(text, Span::call_site()))
    }

    fn shown(text: &str) -> String {
        let tokens = parse(text).unwrap().tokens(&quote!(p));
        tokens.to_string().replace(' ', "")
    }

    #[test]
    fn values_are_named_and_braces_are_escaped() {
        for (key, expected) in [
            ("nightly", r#""nightly""#),
            ("order:{id}", r#"p::format!("order:{0}",id)"#),
            ("o:{order.id}", r#"p::format!("o:{0}",order.id)"#),
            ("{a.b.0}:{a.b.1}", r#"p::format!("{0}:{1}",a.b.0,a.b.1)"#),
            ("{x:?}", r#"p::format!("{0:?}",x)"#),
            ("{ x :>08}", r#"p::format!("{0:>08}",x)"#),
            ("{x:*>4}", r#"p::format!("{0:*>4}",x)"#),
            ("{self.shop}", r#"p::format!("{0}",self.shop)"#),
            ("{self}", r#"p::format!("{0}",self)"#),
            ("{order.id()}", r#"p::format!("{0}",order.id())"#),
            ("{r#type.r#in}", r#"p::format!("{0}",r#type.r#in)"#),
            ("{{a}}:b", r#""{a}:b""#),
            ("{{{id}}}:b", r#"p::format!("{{{0}}}:b",id)"#),
            ("ключ:{имя}", r#"p::format!("ключ:{0}",имя)"#),
        ] {
            assert_eq!(shown(key), expected, "{key:?}");
        }
    }

    #[test]
    fn a_bad_key_says_what_to_write() {
        for (key, part) in [
            ("", "the key is empty"),
            ("order:{}", "`{}` names nothing"),
            ("order:{:?}", "like `{id:?}`"),
            ("order:{id", "a `{` without its `}`"),
            ("order:id}", "a `}` without its `{`"),
            ("{a}}", "a `}` without its `{`"),
            ("{0}", "`{0}` is no argument"),
            ("{a + b}", "`{a + b}` is no argument"),
            ("{f(x)}", "compute it before"),
            ("{a.}", "`{a.}` is no argument"),
            ("{a.b(1)}", "compute it before"),
            ("{a..b}", "is no argument"),
            ("{type}", "is no argument"),
            ("{a.99999999999}", "is no argument"),
            ("{x:width$}", "write it as a number, like `{x:>8}`"),
            ("{x:.*}", "write it as a number"),
        ] {
            let error = parse(key).err().unwrap().to_string();
            assert!(error.contains(part), "{key:?}: {error}");
        }
    }
}
