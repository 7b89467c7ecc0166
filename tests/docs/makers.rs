//! src/ -> what makes an error of a text: functions, and the names of parameters and fields.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Expr, FnArg, Pat, ReturnType, Type};

/// Errors that are called otherwise. The first is made of a text, the second has some.
const ERRORS: [&str; 3] = ["Denial", "Refusal", "Obstacle"];

/// What a parameter or a field is called that is the message of an error, or a part of it.
const MESSAGES: [&str; 5] = ["detail", "message", "problem", "reason", "why"];

/// What makes an error of a text, and of which of its arguments: `Type::function`, `.method`, and
/// in one file `function`.
#[derive(Debug, Default)]
pub(crate) struct Makers {
    pub(crate) of: BTreeMap<String, BTreeSet<usize>>,
    /// Functions that are none. Those of the same name are known in their own files only.
    pub(crate) others: BTreeSet<String>,
}

impl Makers {
    fn add<'a>(&mut self, name: String, parameters: impl Iterator<Item = &'a Pat>) {
        let is_one = |pat: &Pat| matches!(pat, Pat::Ident(pat) if is_message(&pat.ident));
        let positions = parameters.enumerate().filter(|(_, pat)| is_one(pat));
        let positions: BTreeSet<_> = positions.map(|(at, _)| at).collect();
        if positions.is_empty() {
            self.others.insert(name);
        } else {
            self.of.entry(name).or_default().extend(positions);
        }
    }
}

impl<'ast> Visit<'ast> for Makers {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let parameters = item.sig.inputs.iter().filter_map(typed);
        let parameters = parameters.filter(|_| makes_an_error(&item.sig.output));
        self.add(item.sig.ident.to_string(), parameters);
        visit::visit_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        for part in &item.items {
            let syn::ImplItem::Fn(function) = part else {
                continue;
            };
            let of = match function.sig.receiver() {
                Some(_) => String::new(),
                None => type_name(&item.self_ty).unwrap_or_default() + ":",
            };
            let separator = if of.is_empty() { "." } else { ":" };
            if makes_an_error(&function.sig.output) {
                let parameters = function.sig.inputs.iter().filter_map(typed);
                self.add(format!("{of}{separator}{}", function.sig.ident), parameters);
            }
        }
        visit::visit_item_impl(self, item);
    }

    /// `let refused = |why| Err(…)`
    fn visit_local(&mut self, local: &'ast syn::Local) {
        if let (Pat::Ident(pat), Some(init)) = (&local.pat, &local.init)
            && let Expr::Closure(closure) = &*init.expr
        {
            let inputs = closure.inputs.iter().map(|input| match input {
                Pat::Type(typed) => &*typed.pat,
                other => other,
            });
            self.add(pat.ident.to_string(), inputs);
        }
        visit::visit_local(self, local);
    }
}

pub(crate) fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let inner = attribute.parse_args::<syn::Path>();
        attribute.path().is_ident("cfg") && inner.is_ok_and(|path| path.is_ident("test"))
    })
}

pub(crate) fn is_message(name: &syn::Ident) -> bool {
    MESSAGES.contains(&name.to_string().as_str())
}

/// `fn …refusal(…) -> Option<String>`, or `-> Result<Option<String>, SomeError>`: why something
/// is refused, if it is.
pub(crate) fn is_refusal(signature: &syn::Signature) -> bool {
    let is_option = |inner: &Type| type_name(inner).is_some_and(|name| name == "Option");
    let is_result = match &signature.output {
        ReturnType::Type(_, output) => arguments_of(output).first().copied().is_some_and(is_option),
        ReturnType::Default => false,
    };
    let name = signature.ident.to_string();
    name.ends_with("refusal") || is_result && makes_an_error(&signature.output)
}

fn typed(argument: &FnArg) -> Option<&Pat> {
    match argument {
        FnArg::Typed(typed) => Some(&typed.pat),
        FnArg::Receiver(_) => None,
    }
}

/// `-> SomeError`, or `-> Result<…, SomeError>`
fn makes_an_error(output: &ReturnType) -> bool {
    let is_error = |of: &Type| {
        let name = type_name(of);
        name.is_some_and(|name| name.ends_with("Error") || ERRORS.contains(&name.as_str()))
    };
    match output {
        ReturnType::Type(_, output) => {
            is_error(output) || arguments_of(output).into_iter().any(is_error)
        }
        ReturnType::Default => false,
    }
}

/// The types in `Type<…>`.
fn arguments_of(of: &Type) -> Vec<&Type> {
    let Type::Path(path) = of else {
        return Vec::new();
    };
    match path.path.segments.last().map(|part| &part.arguments) {
        Some(syn::PathArguments::AngleBracketed(inner)) => inner
            .args
            .iter()
            .filter_map(|argument| match argument {
                syn::GenericArgument::Type(of) => Some(of),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}

pub(crate) fn type_name(of: &Type) -> Option<String> {
    match of {
        Type::Path(path) => last(&path.path),
        _ => None,
    }
}

pub(crate) fn path_of(expression: &Expr) -> Option<Vec<String>> {
    match expression {
        Expr::Path(path) => {
            let names = path.path.segments.iter();
            Some(names.map(|part| part.ident.to_string()).collect())
        }
        _ => None,
    }
}

pub(crate) fn last(path: &syn::Path) -> Option<String> {
    path.segments.last().map(|part| part.ident.to_string())
}
