//! stub
use std::fmt;
#[derive(Debug)]
pub(crate) enum VerifyError {
    Placeholder,
}
impl VerifyError {
    pub(crate) fn hint(&self) -> Option<String> {
        None
    }
    pub(crate) fn exit_code(&self) -> u8 {
        1
    }
}
impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("verify")
    }
}
