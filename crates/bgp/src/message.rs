//! The five messages, their header and their errors (RFC 4271 sections 4.1 and 6.1).

use crate::notification::{code, header, route_refresh};
use crate::{EncodeError, Notification, Open, RefreshKind, RouteRefresh, SessionParams, Update};

/// Octets of a header.
pub(crate) const HEADER_LEN: usize = 19;

wayleave_core::numbered! {
    /// The type of a message.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
    pub enum MessageType {
        Open = 1,
        Update = 2,
        Notification = 3,
        Keepalive = 4,
        RouteRefresh = 5,
    }
}

/// Why octets cannot be decoded as a message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    /// The message is not whole yet: more octets must come from the transport. No error of the peer.
    #[error("message is incomplete: {need} octets needed")]
    Incomplete {
        /// Octets of the header, or of the whole message once its header is there.
        need: usize,
    },
    /// The peer erred so that the session must end with this NOTIFICATION.
    #[error("{0}")]
    Peer(Notification),
}

impl MessageError {
    /// The NOTIFICATION to send before the session ends; `None` if only more octets are needed.
    #[must_use]
    pub fn notification(&self) -> Option<&Notification> {
        match self {
            MessageError::Incomplete { .. } => None,
            MessageError::Peer(notification) => Some(notification),
        }
    }
}

impl From<Notification> for MessageError {
    fn from(notification: Notification) -> Self {
        MessageError::Peer(notification)
    }
}

/// A message whose header is right and whose octets are all there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    pub kind: MessageType,
    /// The whole message, header included.
    pub octets: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The message without its header.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        &self.octets[HEADER_LEN..]
    }
}

/// Takes the first message off a stream and hands back the rest (RFC 4271 section 6.1; the bounds of RFC 8654).
/// What is wrong with a header is known as soon as its 19 octets are there.
#[inline]
pub fn frame<'a>(octets: &'a [u8], params: &SessionParams) -> Result<(Frame<'a>, &'a [u8]), MessageError> {
    let Some((head, _)) = octets.split_first_chunk::<HEADER_LEN>() else {
        return Err(MessageError::Incomplete { need: HEADER_LEN });
    };
    if head[..16] != [0xff; 16] {
        return Err(Notification::new(code::MESSAGE_HEADER, header::NOT_SYNCHRONIZED).into());
    }
    let length = usize::from(u16::from_be_bytes([head[16], head[17]]));
    let bad_length = || Notification::with_data(code::MESSAGE_HEADER, header::BAD_LENGTH, &head[16..18]);
    if length < HEADER_LEN {
        return Err(bad_length().into());
    }
    let Some(kind) = MessageType::from_octet(head[18]) else {
        // A length beyond every bound is reported before an unknown type: the stream cannot be trusted.
        return Err(match length > params.max_message_len() {
            true => bad_length().into(),
            false => Notification::with_data(code::MESSAGE_HEADER, header::BAD_TYPE, &head[18..19]).into(),
        });
    };
    if !length_fits(kind, length, params) {
        return Err(bad_length().into());
    }
    match octets.split_at_checked(length) {
        Some((octets, rest)) => Ok((Frame { kind, octets }, rest)),
        None => Err(MessageError::Incomplete { need: length }),
    }
}

#[inline]
fn length_fits(kind: MessageType, length: usize, params: &SessionParams) -> bool {
    match kind {
        MessageType::Open => (29..=4_096).contains(&length),
        MessageType::Update => (23..=params.max_message_len()).contains(&length),
        MessageType::Notification => (21..=params.max_message_len()).contains(&length),
        MessageType::Keepalive => length == HEADER_LEN,
        // A wrong length here has an error code of its own (RFC 7313 section 5).
        MessageType::RouteRefresh => length <= params.max_message_len(),
    }
}

/// A BGP message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    Open(Open),
    Update(Update),
    Notification(Notification),
    Keepalive,
    RouteRefresh(RouteRefresh),
}

impl Message {
    /// Takes the first message off a stream and hands back the rest. An error other than
    /// [`MessageError::Incomplete`] carries the NOTIFICATION to send.
    pub fn decode<'a>(octets: &'a [u8], params: &SessionParams) -> Result<(Self, &'a [u8]), MessageError> {
        let (frame, rest) = frame(octets, params)?;
        let body = frame.body();
        let message = match frame.kind {
            MessageType::Open => Message::Open(Open::decode(body)?),
            MessageType::Update => Message::Update(Update::decode(body, params)?),
            MessageType::Notification => Message::Notification(Notification::decode(body)?),
            MessageType::Keepalive => Message::Keepalive,
            MessageType::RouteRefresh => Message::RouteRefresh(decode_refresh(&frame)?),
        };
        Ok((message, rest))
    }

    #[must_use]
    pub fn kind(&self) -> MessageType {
        match self {
            Message::Open(_) => MessageType::Open,
            Message::Update(_) => MessageType::Update,
            Message::Notification(_) => MessageType::Notification,
            Message::Keepalive => MessageType::Keepalive,
            Message::RouteRefresh(_) => MessageType::RouteRefresh,
        }
    }

    /// The message in wire form. An UPDATE that does not fit one message fails; [`crate::encode_updates`] splits. The
    /// data of a NOTIFICATION is cut to what fits.
    pub fn encode(&self, params: &SessionParams) -> Result<Vec<u8>, EncodeError> {
        if let Message::Update(update) = self {
            return update.encode(params);
        }
        let mut out = Vec::with_capacity(64);
        let message = put_header(self.kind(), &mut out);
        match self {
            Message::Open(open) => open.encode_body(&mut out),
            Message::Notification(notification) => {
                let capacity = params.max_message_len() - HEADER_LEN - 2;
                let data = &notification.data[..notification.data.len().min(capacity)];
                out.extend_from_slice(&[notification.code, notification.subcode]);
                out.extend_from_slice(data);
            }
            Message::RouteRefresh(refresh) => {
                let [a, b] = refresh.afi.to_be_bytes();
                out.extend_from_slice(&[a, b, refresh.kind.octet(), refresh.safi]);
            }
            Message::Keepalive | Message::Update(_) => {}
        }
        message.finish(&mut out);
        Ok(out)
    }
}

fn decode_refresh(frame: &Frame<'_>) -> Result<RouteRefresh, Notification> {
    match *frame.body() {
        [a, b, kind, safi] => {
            Ok(RouteRefresh { afi: u16::from_be_bytes([a, b]), safi, kind: RefreshKind::from_octet(kind) })
        }
        _ => Err(Notification::with_data(code::ROUTE_REFRESH, route_refresh::INVALID_LENGTH, frame.octets)),
    }
}

/// A length field that is filled in once its contents are written.
#[must_use]
pub(crate) struct Length {
    /// Position of the field.
    at: usize,
    /// Position from which it counts.
    from: usize,
}

impl Length {
    /// Fills the field in. What it counts is at most 65,535 octets: callers split before.
    #[inline]
    pub(crate) fn finish(self, out: &mut [u8]) {
        let length = u16::try_from(out.len() - self.from).expect("sections are bounded by the message");
        out[self.at..self.at + 2].copy_from_slice(&length.to_be_bytes());
    }
}

/// Leaves room for a length of what follows.
#[inline]
pub(crate) fn put_length(out: &mut Vec<u8>) -> Length {
    let at = out.len();
    out.extend_from_slice(&[0, 0]);
    Length { at, from: at + 2 }
}

/// Begins a message; its length counts the header too.
#[inline]
pub(crate) fn put_header(kind: MessageType, out: &mut Vec<u8>) -> Length {
    let from = out.len();
    let mut header = [0xff; HEADER_LEN];
    (header[16], header[17], header[18]) = (0, 0, kind.octet());
    out.extend_from_slice(&header);
    Length { at: from + 16, from }
}
