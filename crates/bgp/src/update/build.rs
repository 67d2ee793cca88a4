//! UPDATE messages from routes, split so that none is too long.

use wayleave_core::Afi;

use crate::check::is_foreign;
use crate::message::{HEADER_LEN, MessageType, put_header, put_length};
use crate::{
    AsPath, AttributeCode, AttributeFlags, Attributes, Ipv6NextHop, Nlri, RawAttribute, SessionParams, Update, as4,
};

/// Octets of an UPDATE without a route: the header and two lengths.
const EMPTY_LEN: usize = HEADER_LEN + 4;
/// Octets of a multiprotocol attribute before its contents: flags, code, a length of two octets.
const ATTRIBUTE_HEADER_LEN: usize = 4;

/// Why routes cannot be sent to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError {
    /// The attributes leave no room for one prefix, or the parts of one message exceed its limit.
    #[error("a message of {need} octets exceeds the session's limit of {most}")]
    TooLong {
        need: usize,
        /// The session's limit.
        most: usize,
    },
    /// The routes have no next hop of their family.
    #[error("the routes have no next hop of their family, {0}")]
    NoNextHop(Afi),
    /// Prefixes are announced without attributes.
    #[error("routes are announced without attributes")]
    NoAttributes,
    /// The route is a long-lived stale one, and the peer's OPEN does not say that it knows such.
    #[error("the route is a long-lived stale one, which goes only to peers that know RFC 9494")]
    Stale,
    /// The family was not agreed on this session.
    #[error("the session did not agree on the family {0} unicast")]
    Family(Afi),
}

/// Collects routes that share attributes, and withdrawals, for one peer.
#[derive(Clone, Debug, Default)]
pub struct UpdateBuilder {
    withdrawn: Vec<Nlri>,
    announced: Vec<Nlri>,
    attributes: Option<Attributes>,
}

impl UpdateBuilder {
    /// Without routes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Withdraws a route.
    pub fn withdraw(&mut self, nlri: impl Into<Nlri>) -> &mut Self {
        self.withdrawn.push(nlri.into());
        self
    }

    /// Announces a route with the attributes of [`UpdateBuilder::attributes`].
    pub fn announce(&mut self, nlri: impl Into<Nlri>) -> &mut Self {
        self.announced.push(nlri.into());
        self
    }

    /// The attributes of all announced routes.
    pub fn attributes(&mut self, attributes: Attributes) -> &mut Self {
        self.attributes = Some(attributes);
        self
    }

    /// The messages in the order to send them.
    pub fn encode(&self, params: &SessionParams) -> Result<Vec<Vec<u8>>, EncodeError> {
        encode_updates(self.attributes.as_ref(), &self.announced, &self.withdrawn, params)
    }
}

/// The messages, header included, that withdraw `withdrawn` and announce `announced` with `attributes`, in the order to
/// send them: IPv4 in the classical fields, IPv6 in MP_REACH_NLRI and MP_UNREACH_NLRI, none longer than the session
/// allows, AS numbers as wide as the session's. What only internal peers may get (LOCAL_PREF, ORIGINATOR_ID,
/// CLUSTER_LIST) is left out towards others.
pub fn encode_updates(
    attributes: Option<&Attributes>,
    announced: &[Nlri],
    withdrawn: &[Nlri],
    params: &SessionParams,
) -> Result<Vec<Vec<u8>>, EncodeError> {
    let mut messages = Vec::new();
    for afi in [Afi::Ipv4, Afi::Ipv6] {
        let withdrawn = of_family(withdrawn, afi);
        let empty = Parts::new(afi, None, params)?;
        for withdrawn in empty.split(&withdrawn, empty.len_withdrawing())? {
            messages.push(Parts { withdrawn, ..empty.clone() }.encode());
        }
    }
    for afi in [Afi::Ipv4, Afi::Ipv6] {
        let announced = of_family(announced, afi);
        if announced.is_empty() {
            continue;
        }
        let parts = Parts::new(afi, Some(attributes.ok_or(EncodeError::NoAttributes)?), params)?;
        for announced in parts.split(&announced, parts.len_announcing())? {
            messages.push(Parts { announced, ..parts.clone() }.encode());
        }
    }
    Ok(messages)
}

/// The message that marks the end of the initial routes of `afi` unicast (RFC 4724 section 2).
#[must_use]
pub fn end_of_rib(afi: Afi) -> Vec<u8> {
    let mut out = Vec::with_capacity(EMPTY_LEN + 6);
    let message = put_header(MessageType::Update, &mut out);
    match afi {
        Afi::Ipv4 => out.extend_from_slice(&[0; 4]),
        Afi::Ipv6 => {
            out.extend_from_slice(&[0, 0, 0, 6]);
            let [a, b] = afi.code().to_be_bytes();
            let value = &[a, b, 1];
            let flags = AttributeFlags::OPTIONAL_NON_TRANSITIVE;
            RawAttribute { flags, code: AttributeCode::MP_UNREACH_NLRI, value }.encode(&mut out);
        }
    }
    message.finish(&mut out);
    out
}

impl Update {
    /// One message, header included, with all of it: withdrawals, announcements, or the mark of an end of RIB. Fails if
    /// it does not fit; [`encode_updates`] splits.
    pub fn encode(&self, params: &SessionParams) -> Result<Vec<u8>, EncodeError> {
        if let Some(afi) = self.end_of_rib {
            return Ok(end_of_rib(afi));
        }
        let (announced4, announced6) = (of_family(&self.announced, Afi::Ipv4), of_family(&self.announced, Afi::Ipv6));
        let attributes = self.attributes.as_ref().filter(|_| !self.announced.is_empty());
        if attributes.is_none() && !self.announced.is_empty() {
            return Err(EncodeError::NoAttributes);
        }
        let family4 = Parts::new(Afi::Ipv4, attributes.filter(|_| !announced4.is_empty()), params)?;
        let mut family6 = Parts::new(Afi::Ipv6, attributes.filter(|_| !announced6.is_empty()), params)?;
        // The classical fields' attributes hold NEXT_HOP too.
        if !announced4.is_empty() {
            family6.attributes.clone_from(&family4.attributes);
        }
        family6.withdrawn = of_family(&self.withdrawn, Afi::Ipv6);
        family6.announced = announced6;
        let classical = Classical { withdrawn: of_family(&self.withdrawn, Afi::Ipv4), announced: announced4 };
        let need = family6.len() + classical.len(family6.params);
        let most = params.max_message_len();
        if need > most {
            return Err(EncodeError::TooLong { need, most });
        }
        Ok(family6.encode_with(&classical))
    }
}

/// The prefixes of one family.
fn of_family(nlri: &[Nlri], afi: Afi) -> Vec<Nlri> {
    nlri.iter().copied().filter(|nlri| nlri.prefix.afi() == afi).collect()
}

/// The classical fields of a message.
#[derive(Default)]
struct Classical {
    withdrawn: Vec<Nlri>,
    announced: Vec<Nlri>,
}

impl Classical {
    fn len(&self, params: &SessionParams) -> usize {
        wire_len(&self.withdrawn, params.add_path_send.ipv4) + wire_len(&self.announced, params.add_path_send.ipv4)
    }
}

/// The parts of one message of one family.
#[derive(Clone)]
struct Parts<'a> {
    afi: Afi,
    params: &'a SessionParams,
    /// In wire form, without the multiprotocol ones.
    attributes: Vec<u8>,
    /// Of the announced IPv6 routes, 16 or 32 octets.
    next_hop: Vec<u8>,
    withdrawn: Vec<Nlri>,
    announced: Vec<Nlri>,
}

impl<'a> Parts<'a> {
    fn new(afi: Afi, attributes: Option<&Attributes>, params: &'a SessionParams) -> Result<Self, EncodeError> {
        let mut parts = Parts {
            afi,
            params,
            attributes: Vec::new(),
            next_hop: Vec::new(),
            withdrawn: Vec::new(),
            announced: Vec::new(),
        };
        let Some(attributes) = attributes else { return Ok(parts) };
        if attributes.next_hop(afi).is_none() {
            return Err(EncodeError::NoNextHop(afi));
        }
        parts.attributes = wire_attributes(attributes, afi, params);
        if afi == Afi::Ipv6 {
            parts.next_hop = attributes.ipv6_next_hop().as_ref().map(Ipv6NextHop::octets).unwrap_or_default();
        }
        Ok(parts)
    }

    fn add_path(&self) -> bool {
        self.params.add_path_send.has(self.afi)
    }

    /// Octets of a message that withdraws nothing yet.
    fn len_withdrawing(&self) -> usize {
        match self.afi {
            Afi::Ipv4 => EMPTY_LEN,
            Afi::Ipv6 => EMPTY_LEN + ATTRIBUTE_HEADER_LEN + 3,
        }
    }

    /// Octets of a message that announces nothing yet.
    fn len_announcing(&self) -> usize {
        let reach = match self.afi {
            Afi::Ipv4 => 0,
            Afi::Ipv6 => ATTRIBUTE_HEADER_LEN + 5 + self.next_hop.len(),
        };
        EMPTY_LEN + self.attributes.len() + reach
    }

    /// Octets of the whole message.
    fn len(&self) -> usize {
        let (withdrawn, announced) =
            (wire_len(&self.withdrawn, self.add_path()), wire_len(&self.announced, self.add_path()));
        let mut len = EMPTY_LEN + self.attributes.len();
        if withdrawn > 0 {
            len += self.len_withdrawing() - EMPTY_LEN + withdrawn;
        }
        if announced > 0 {
            len += self.len_announcing() - EMPTY_LEN - self.attributes.len() + announced;
        }
        len
    }

    /// Runs of `nlri` that each fit a message which has `used` octets without them.
    fn split(&self, nlri: &[Nlri], used: usize) -> Result<Vec<Vec<Nlri>>, EncodeError> {
        if !nlri.is_empty() && !self.params.has_family(self.afi) {
            return Err(EncodeError::Family(self.afi));
        }
        let most = self.params.max_message_len();
        let mut runs: Vec<Vec<Nlri>> = Vec::new();
        let mut capacity = 0;
        for nlri in nlri {
            let len = nlri.wire_len(self.add_path());
            if used + len > most {
                return Err(EncodeError::TooLong { need: used + len, most });
            }
            match runs.last_mut().filter(|_| len <= capacity) {
                Some(run) => run.push(*nlri),
                None => {
                    runs.push(vec![*nlri]);
                    capacity = most - used;
                }
            }
            capacity -= len;
        }
        Ok(runs)
    }

    fn encode(mut self) -> Vec<u8> {
        let classical = match self.afi {
            Afi::Ipv6 => Classical::default(),
            Afi::Ipv4 => Classical {
                withdrawn: std::mem::take(&mut self.withdrawn),
                announced: std::mem::take(&mut self.announced),
            },
        };
        self.encode_with(&classical)
    }

    /// The message: the multiprotocol attributes come first (RFC 7606 section 5.1).
    fn encode_with(&self, classical: &Classical) -> Vec<u8> {
        let add_path4 = self.params.add_path_send.ipv4;
        let mut out = Vec::with_capacity(self.len() + classical.len(self.params));
        let message = put_header(MessageType::Update, &mut out);
        let section = put_length(&mut out);
        classical.withdrawn.iter().for_each(|nlri| nlri.encode(add_path4, &mut out));
        section.finish(&mut out);
        let section = put_length(&mut out);
        if !self.announced.is_empty() {
            self.put_multiprotocol(AttributeCode::MP_REACH_NLRI, &self.announced, &mut out);
        }
        if !self.withdrawn.is_empty() {
            self.put_multiprotocol(AttributeCode::MP_UNREACH_NLRI, &self.withdrawn, &mut out);
        }
        out.extend_from_slice(&self.attributes);
        section.finish(&mut out);
        classical.announced.iter().for_each(|nlri| nlri.encode(add_path4, &mut out));
        message.finish(&mut out);
        out
    }

    fn put_multiprotocol(&self, code: AttributeCode, nlri: &[Nlri], out: &mut Vec<u8>) {
        out.extend_from_slice(&[AttributeFlags::OPTIONAL | AttributeFlags::EXTENDED_LENGTH, code.0]);
        let value = put_length(out);
        out.extend_from_slice(&self.afi.code().to_be_bytes());
        out.push(1);
        if code == AttributeCode::MP_REACH_NLRI {
            out.push(self.next_hop.len() as u8);
            out.extend_from_slice(&self.next_hop);
            out.push(0);
        }
        nlri.iter().for_each(|nlri| nlri.encode(self.add_path(), out));
        value.finish(out);
    }
}

fn wire_len(nlri: &[Nlri], add_path: bool) -> usize {
    nlri.iter().map(|nlri| nlri.wire_len(add_path)).sum()
}

/// The attributes as this peer may get them.
fn wire_attributes(attributes: &Attributes, afi: Afi, params: &SessionParams) -> Vec<u8> {
    let mut out = Vec::with_capacity(attributes.as_octets().len());
    // AS4_PATH and AS4_AGGREGATOR, behind all others.
    let mut wide = Vec::new();
    for attribute in attributes.iter() {
        match attribute.code {
            AttributeCode::LOCAL_PREF | AttributeCode::ORIGINATOR_ID | AttributeCode::CLUSTER_LIST
                if is_foreign(params) => {}
            // IPv6 routes have theirs in MP_REACH_NLRI.
            AttributeCode::NEXT_HOP if afi == Afi::Ipv6 => {}
            AttributeCode::AS_PATH if !params.four_octet_as => {
                let (narrow, as4_path) = as4::narrow_path(AsPath::decode(attribute.value).unwrap_or(AsPath::EMPTY));
                RawAttribute { value: &narrow, ..attribute }.encode(&mut out);
                put_as4(AttributeCode::AS4_PATH, as4_path.as_deref(), &mut wide);
            }
            AttributeCode::AGGREGATOR if !params.four_octet_as => {
                let Some(aggregator) = attributes.aggregator() else { continue };
                let (narrow, as4_aggregator) = as4::narrow_aggregator(aggregator);
                RawAttribute { value: &narrow, ..attribute }.encode(&mut out);
                put_as4(AttributeCode::AS4_AGGREGATOR, as4_aggregator.as_ref().map(|value| &value[..]), &mut wide);
            }
            _ => attribute.encode(&mut out),
        }
    }
    out.extend_from_slice(&wide);
    out
}

fn put_as4(code: AttributeCode, value: Option<&[u8]>, out: &mut Vec<u8>) {
    if let Some(value) = value {
        RawAttribute { flags: AttributeFlags::OPTIONAL_TRANSITIVE, code, value }.encode(out);
    }
}
