//! src/ -> the texts in it, and which of them are the messages of errors.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// What implements `Display` and is no error.
const NO_ERRORS: [&str; 11] = [
    "Authority",
    "Host",
    "HostPattern",
    "Id",
    "PathInside",
    "PathPattern",
    "Registry",
    "RuleOrigin",
    "SessionId",
    "Target",
    "Url",
];

/// Calls that make an error of the text in their arguments, or in what these are called.
const MAKERS: [&[&str]; 7] = [
    &["ApiError", "bad_request"],
    &["ApiError", "new"],
    &["CtlError", "Ended"],
    &["Error", "Usage"],
    &["InstallError", "Program"],
    &["RpcError", "invalid_params"],
    &["RpcError", "invalid_request"],
];

/// The texts of the program, tests apart. Format strings have `…` for what is put in.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    pub(crate) errors: BTreeSet<String>,
    pub(crate) all: BTreeSet<String>,
    is_error: bool,
    /// Names in the file at hand that are given to a maker.
    names: BTreeSet<String>,
}

impl Texts {
    pub(crate) fn of_the_program() -> &'static Texts {
        static TEXTS: OnceLock<Texts> = OnceLock::new();
        TEXTS.get_or_init(|| {
            let mut texts = Texts::default();
            for path in super::files_below(&super::root().join("src"), "rs") {
                texts.add(&std::fs::read_to_string(path).unwrap());
            }
            texts
        })
    }

    fn add(&mut self, file: &str) {
        let file = syn::parse_file(file).unwrap();
        let mut names = Names::default();
        names.visit_file(&file);
        self.names = names.0;
        self.visit_file(&file);
    }

    fn push(&mut self, text: &str) {
        let text = super::messages::pattern(text);
        if self.is_error && text.chars().filter(|c| c.is_alphabetic()).count() > 2 {
            self.errors.insert(text.clone());
        }
        self.all.insert(text);
    }

    fn push_tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.push_tokens(group.stream()),
                TokenTree::Literal(literal) => {
                    if let syn::Lit::Str(text) = syn::Lit::new(literal) {
                        self.push(&text.value());
                    }
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }

    fn as_error(&mut self, is_error: bool, visit: impl FnOnce(&mut Texts)) {
        let before = self.is_error;
        self.is_error |= is_error;
        visit(self);
        self.is_error = before;
    }
}

impl<'ast> Visit<'ast> for Texts {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let is_test = item.attrs.iter().any(|attribute| {
            attribute.path().is_ident("cfg")
                && attribute
                    .parse_args::<syn::Path>()
                    .is_ok_and(|path| path.is_ident("test"))
        });
        if !is_test {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let of_trait = item.trait_.as_ref().and_then(|(path, _)| last(path));
        let is_error = of_trait.is_some_and(|name| name == "Display")
            && matches!(&*item.self_ty, syn::Type::Path(path)
                if last(&path.path).is_some_and(|name| !NO_ERRORS.contains(&name.as_str())));
        self.as_error(is_error, |texts| visit::visit_item_impl(texts, item));
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        self.as_error(is_maker(call), |texts| visit::visit_expr_call(texts, call));
    }

    /// A hint is no message.
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.visit_expr(&call.receiver);
        let before = self.is_error;
        self.is_error &= call.method != "with_hint";
        for argument in &call.args {
            self.visit_expr(argument);
        }
        self.is_error = before;
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        let is_error = matches!(&local.pat, syn::Pat::Ident(pat)
            if self.names.contains(&pat.ident.to_string()));
        self.as_error(is_error, |texts| visit::visit_local(texts, local));
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        let is_error = self.names.contains(&item.ident.to_string());
        self.as_error(is_error, |texts| visit::visit_item_const(texts, item));
    }

    fn visit_lit_str(&mut self, text: &'ast syn::LitStr) {
        self.push(&text.value());
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.push_tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}

#[derive(Default)]
struct Names(BTreeSet<String>);

impl<'ast> Visit<'ast> for Names {
    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        let names = call.args.iter().filter_map(|argument| match argument {
            syn::Expr::Path(path) => path.path.get_ident().map(ToString::to_string),
            _ => None,
        });
        if is_maker(call) {
            self.0.extend(names);
        }
        visit::visit_expr_call(self, call);
    }
}

fn is_maker(call: &syn::ExprCall) -> bool {
    let syn::Expr::Path(path) = &*call.func else {
        return false;
    };
    let names = path.path.segments.iter();
    let names: Vec<_> = names.map(|part| part.ident.to_string()).collect();
    MAKERS.iter().any(|maker| {
        let maker: Vec<_> = maker.iter().map(|name| (*name).to_owned()).collect();
        names.ends_with(&maker)
    })
}

fn last(path: &syn::Path) -> Option<String> {
    path.segments.last().map(|part| part.ident.to_string())
}

#[test]
fn messages_are_found_and_hints_and_tests_are_not() {
    let mut texts = Texts::default();
    texts.add(
        r#"
        impl fmt::Display for NewError {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "cannot dance: {}", self.0)
            }
        }
        impl fmt::Display for Host {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the host")
            }
        }
        const OFF: &str = "it is off";
        fn refuse(what: &str) -> ApiError {
            let message = format!("{what:?} is refused");
            let other = "something else";
            if what == other {
                return ApiError::bad_request(OFF);
            }
            ApiError::new(ErrorKind::Refused, message).with_hint("try again")
        }
        fn usage() -> Error {
            ApiError::bad_request("no words").with_hint("use words");
            Error::Usage(format!("unknown word {}", "x"))
        }
        #[cfg(test)]
        mod tests {
            const X: NewError = ApiError::bad_request("of a test");
        }
        "#,
    );
    let expected = [
        "cannot dance: …",
        "it is off",
        "no words",
        "unknown word …",
        "… is refused",
    ];
    assert_eq!(Vec::from_iter(&texts.errors), expected);
    assert!(texts.all.contains("use words") && !texts.all.contains("of a test"));
}
