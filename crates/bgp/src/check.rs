//! The rules of RFC 7606 for each attribute.
