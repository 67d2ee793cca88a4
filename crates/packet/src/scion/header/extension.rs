//! Extension headers: hop-by-hop options and end-to-end options, each at most once and in this order.

use thiserror::Error;

use super::next_header;

/// Why the extension headers are malformed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ExtensionError {
    /// An extension header or an option ends after the packet or after its header.
    #[error("an extension header of {need} octets where {have} are left")]
    Truncated { need: usize, have: usize },
    /// A second header of the same kind, or hop-by-hop after end-to-end.
    #[error("extension headers in a wrong order")]
    Order,
}

/// One extension header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extension<'a> {
    options: &'a [u8],
}

impl<'a> Extension<'a> {
    /// The type and value of every option that is not padding.
    pub fn options(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        Options(self.options).map_while(Result::ok).filter(|(kind, _)| *kind > 1)
    }
}

/// All options. Padding of one octet has type 0, longer padding type 1.
struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = Result<(u8, &'a [u8]), ExtensionError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&kind, rest) = self.0.split_first()?;
        if kind == 0 {
            self.0 = rest;
            return Some(Ok((0, &[])));
        }
        let value = rest.split_first().and_then(|(&length, rest)| rest.split_at_checked(length.into()));
        let Some((value, rest)) = value else {
            let need = rest.first().map_or(1, |&length| 1 + usize::from(length));
            let error = ExtensionError::Truncated { need, have: rest.len() };
            self.0 = &[];
            return Some(Err(error));
        };
        self.0 = rest;
        Some(Ok((kind, value)))
    }
}

/// The extension headers of a packet, and what comes after them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extensions<'a> {
    pub hop_by_hop: Option<Extension<'a>>,
    pub end_to_end: Option<Extension<'a>>,
    /// The protocol of the rest.
    pub next_header: u8,
    /// What follows the extension headers.
    pub rest: &'a [u8],
}

impl<'a> Extensions<'a> {
    /// Decodes the extension headers at the front of `payload`, whose protocol is `next`. At most two are read, of 1,024
    /// octets each.
    ///
    /// # Errors
    /// If a header is malformed.
    pub fn decode(next: u8, payload: &'a [u8]) -> Result<Self, ExtensionError> {
        let mut all = Self { hop_by_hop: None, end_to_end: None, next_header: next, rest: payload };
        while matches!(all.next_header, next_header::HOP_BY_HOP | next_header::END_TO_END) {
            let have = all.rest.len();
            let &[next, length, ..] = all.rest else { return Err(ExtensionError::Truncated { need: 2, have }) };
            let need = 4 * (usize::from(length) + 1);
            let (header, rest) = all.rest.split_at_checked(need).ok_or(ExtensionError::Truncated { need, have })?;
            let options = &header[2..];
            if let Some(error) = Options(options).find_map(Result::err) {
                return Err(error);
            }
            let hop_by_hop = all.next_header == next_header::HOP_BY_HOP;
            if all.end_to_end.is_some() || (hop_by_hop && all.hop_by_hop.is_some()) {
                return Err(ExtensionError::Order);
            }
            let extension = if hop_by_hop { &mut all.hop_by_hop } else { &mut all.end_to_end };
            *extension = Some(Extension { options });
            (all.next_header, all.rest) = (next, rest);
        }
        Ok(all)
    }
}
