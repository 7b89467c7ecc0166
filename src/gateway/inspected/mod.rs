//! Clients whose TLS ends here: each request judged on its head, passed on in
//! its canonical form, and its response sent back as it comes.

mod exchange;
pub(crate) mod inspection;
pub(crate) mod judge;
mod response;
