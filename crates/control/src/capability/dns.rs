//! Numbers and lengths of DNS messages, of a question's and an answer's parts (RFC 1035, RFC 6891, RFC 7830, RFC 7873).

/// Octets of a datagram to who does not say more (RFC 1035 section 4.2.1).
pub(super) const PLAIN_UDP: usize = 512;
/// Octets of a header.
pub(super) const HEADER: usize = 12;
/// Octets of a question's or a record's type and class.
pub(super) const TYPE_AND_CLASS: usize = 4;
/// Numbers of types and of the class.
pub(super) const TXT_TYPE: u8 = 16;
pub(super) const OPT_TYPE: u8 = 41;
pub(super) const IN_CLASS: u8 = 1;
/// Octets of an OPT record without options (RFC 6891 section 6.1.2).
pub(super) const OPT: usize = 11;
/// Octets of an option without data.
pub(super) const OPTION: usize = 4;
/// Number of the cookie option.
pub(super) const COOKIE: u16 = 10;
/// Octets of a cookie option: code, length, both parts.
pub(super) const COOKIE_OPTION: usize = 2 + 2 + 8 + 16;
/// Number of the padding option (RFC 7830).
pub(super) const PADDING: u16 = 12;
