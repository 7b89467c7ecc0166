//! src/ -> the texts in it, and which of them are the messages of errors.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Expr, Pat};

use super::makers::{Makers, is_for_tests, is_message, is_refusal, last, path_of, type_name};

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

/// A line of a reflog.
const NO_MESSAGE: &str = "branch: made by umwelt-ctl wt add";

/// The texts of the program, tests apart. Format strings have `…` for what is put in.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    pub(crate) errors: BTreeSet<String>,
    pub(crate) all: BTreeSet<String>,
    makers: Makers,
    is_display: bool,
    is_refusal: bool,
    /// Names in the file at hand whose value is the message of an error.
    names: BTreeSet<String>,
}

impl Texts {
    pub(crate) fn of_the_program() -> &'static Texts {
        static TEXTS: OnceLock<Texts> = OnceLock::new();
        TEXTS.get_or_init(|| {
            let files = super::files_below(&super::root().join("src"), "rs").into_iter();
            let files = files.filter(|path| !path.ends_with("tests.rs"));
            let texts: Vec<_> = files
                .map(|path| std::fs::read_to_string(path).unwrap())
                .collect();
            Texts::of(&texts)
        })
    }

    fn of(files: &[String]) -> Texts {
        let files: Vec<_> = files
            .iter()
            .map(|text| syn::parse_file(text).unwrap())
            .collect();
        let mut texts = Texts::default();
        for file in &files {
            texts.makers.visit_file(file);
        }
        let mut shared = std::mem::take(&mut texts.makers);
        shared.of.retain(|name, _| !shared.others.contains(name));
        for file in &files {
            texts.names.clear();
            texts.makers.of.clone_from(&shared.of);
            texts.makers.visit_file(file);
            // The first time for the names that stand for messages.
            texts.visit_file(file);
            texts.visit_file(file);
        }
        texts
    }

    fn push(&mut self, text: &str, is_error: bool) {
        let text = super::messages::pattern(text);
        let is_word = |word: &&str| word.contains(char::is_alphabetic);
        let is_error = is_error && text != NO_MESSAGE;
        if is_error && text.split(' ').filter(is_word).count() > 1 {
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
                        self.push(&text.value(), self.is_display);
                    }
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }

    /// The texts that such an expression can be.
    fn message(&mut self, expression: &Expr) {
        match expression {
            Expr::Lit(literal) => {
                if let syn::Lit::Str(text) = &literal.lit {
                    self.push(&text.value(), true);
                }
            }
            Expr::Macro(call) => self.format(&call.mac),
            Expr::MethodCall(call) => self.message(&call.receiver),
            Expr::Reference(reference) => self.message(&reference.expr),
            Expr::Closure(closure) => self.message(&closure.body),
            Expr::Block(block) => self.last(&block.block),
            Expr::If(choice) => {
                self.last(&choice.then_branch);
                if let Some((_, other)) = &choice.else_branch {
                    self.message(other);
                }
            }
            Expr::Match(choice) => choice.arms.iter().for_each(|arm| self.message(&arm.body)),
            Expr::Call(call) if path_of(&call.func).is_some_and(|path| path == ["Some"]) => {
                call.args.iter().for_each(|argument| self.message(argument));
            }
            Expr::Path(path) => self
                .names
                .extend(path.path.get_ident().map(ToString::to_string)),
            _ => {}
        }
    }

    fn last(&mut self, block: &syn::Block) {
        if let Some(syn::Stmt::Expr(expression, None)) = block.stmts.last() {
            self.message(expression);
        }
    }

    /// The format string of a macro.
    fn format(&mut self, call: &syn::Macro) {
        let first = call.tokens.clone().into_iter().next();
        if let Some(TokenTree::Literal(literal)) = first
            && let syn::Lit::Str(text) = syn::Lit::new(literal)
        {
            self.push(&text.value(), true);
        }
    }

    fn arguments<'a>(&mut self, arguments: impl Iterator<Item = &'a Expr>, name: &str) {
        let Some(positions) = self.makers.of.get(name).cloned() else {
            return;
        };
        for (at, argument) in arguments.enumerate() {
            if positions.contains(&at) {
                self.message(argument);
            }
        }
    }
}

impl<'ast> Visit<'ast> for Texts {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let of_trait = item.trait_.as_ref().and_then(|(path, _)| last(path));
        let name = type_name(&item.self_ty).unwrap_or_default();
        self.is_display = match of_trait {
            Some(of_trait) => of_trait == "Display" && !NO_ERRORS.contains(&name.as_str()),
            None => name == "Refusal",
        };
        visit::visit_item_impl(self, item);
        self.is_display = false;
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.is_refusal = is_refusal(&item.sig);
        visit::visit_item_fn(self, item);
        self.is_refusal = false;
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.is_refusal = is_refusal(&item.sig);
        visit::visit_impl_item_fn(self, item);
        self.is_refusal = false;
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        let path = path_of(&call.func).unwrap_or_default();
        let path: Vec<_> = path.iter().map(String::as_str).collect();
        match path.as_slice() {
            ["Some"] if self.is_refusal => {
                call.args.iter().for_each(|argument| self.message(argument))
            }
            ["Err"] => call.args.iter().for_each(|argument| self.message(argument)),
            [.., of, variant]
                if of.ends_with("Error") && variant.starts_with(char::is_uppercase) =>
            {
                call.args.iter().for_each(|argument| self.message(argument));
            }
            // Of std::io.
            ["io", "Error", "other" | "new"] => {
                call.args
                    .last()
                    .into_iter()
                    .for_each(|argument| self.message(argument));
            }
            [.., of, function] if of.starts_with(char::is_uppercase) => {
                self.arguments(call.args.iter(), &format!("{of}::{function}"));
            }
            [.., function] => self.arguments(call.args.iter(), function),
            [] => {}
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_struct(&mut self, expression: &'ast syn::ExprStruct) {
        for field in &expression.fields {
            if matches!(&field.member, syn::Member::Named(name) if is_message(name)) {
                self.message(&field.expr);
            }
        }
        visit::visit_expr_struct(self, expression);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let name = call.method.to_string();
        if ["map_err", "ok_or", "ok_or_else"].contains(&name.as_str()) {
            call.args.iter().for_each(|argument| self.message(argument));
        }
        self.arguments(call.args.iter(), &format!(".{name}"));
        visit::visit_expr_method_call(self, call);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if let (Pat::Ident(pat), Some(init)) = (&local.pat, &local.init)
            && (self.names.contains(&pat.ident.to_string()) || is_message(&pat.ident))
        {
            self.message(&init.expr);
        }
        visit::visit_local(self, local);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        if self.names.contains(&item.ident.to_string()) {
            self.message(&item.expr);
        }
        visit::visit_item_const(self, item);
    }

    fn visit_lit_str(&mut self, text: &'ast syn::LitStr) {
        self.push(&text.value(), self.is_display);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if last(&call.path).is_some_and(|name| name == "error" || name == "warn") {
            self.format(call);
        }
        self.push_tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}

#[test]
fn messages_are_found_and_hints_and_tests_are_not() {
    let file = r#"
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
        impl ApiError {
            fn new(kind: ErrorKind, message: impl Into<String>) -> ApiError {
                ApiError { kind, message: message.into() }
            }
            fn bad_request(message: &str) -> ApiError {
                ApiError::new(ErrorKind::BadRequest, message)
            }
        }
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
        fn reasons(text: &str) -> Result<u8, String> {
            let wrong = |why: &str| Err(format!("{text} is wrong: {why}"));
            if text.is_empty() {
                return wrong("it is empty");
            }
            log::warn!("not today: {}", "unless");
            text.parse().map_err(|_| "no number".to_owned())
        }
        fn refusal(path: &Path) -> Option<String> {
            is_root(path).then_some(())?;
            Some("it is the root".to_owned())
        }
        fn lost() -> Outcome {
            broken("set up the connection");
            Outcome::Lost { reason: "it has ended".to_owned() }
        }
        fn broken(what: &str) -> ApiError {
            ApiError::bad_request(format!("no way to {what}"))
        }
        #[cfg(test)]
        mod tests {
            const X: NewError = ApiError::bad_request("of a test");
        }
        "#;
    let texts = Texts::of(&[file.to_owned()]);
    let expected = [
        "cannot dance: …",
        "it has ended",
        "it is empty",
        "it is off",
        "it is the root",
        "no number",
        "no way to …",
        "no words",
        "not today: …",
        "unknown word …",
        "… is refused",
        "… is wrong: …",
    ];
    assert_eq!(Vec::from_iter(&texts.errors), expected);
    assert!(texts.all.contains("use words") && !texts.all.contains("of a test"));
}
