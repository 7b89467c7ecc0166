//! A blocking client of the socket API.
