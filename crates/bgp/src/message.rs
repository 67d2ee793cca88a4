//! The five messages, their header and their errors (RFC 4271 sections 4.1 and 6.1).

use crate::notification::{code, header};
use crate::{Notification, Open, RouteRefresh, SessionParams, Update};

/// Octets of a header.
pub(crate) const HEADER_LEN: usize = 19;

/// The type of a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum MessageType {
    /// 1.
    Open,
    /// 2.
    Update,
    /// 3.
    Notification,
    /// 4.
    Keepalive,
    /// 5 (RFC 2918).
    RouteRefresh,
}

impl MessageType {
    /// The octet on the wire.
    #[must_use]
    pub fn octet(self) -> u8 {
        match self {
            MessageType::Open => 1,
            MessageType::Update => 2,
            MessageType::Notification => 3,
            MessageType::Keepalive => 4,
            MessageType::RouteRefresh => 5,
        }
    }

    /// From the octet on the wire.
    #[must_use]
    pub fn from_octet(octet: u8) -> Option<Self> {
        match octet {
            1 => Some(MessageType::Open),
            2 => Some(MessageType::Update),
            3 => Some(MessageType::Notification),
            4 => Some(MessageType::Keepalive),
            5 => Some(MessageType::RouteRefresh),
            _ => None,
        }
    }
}

/// Octets that are no message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    /// The message is not whole yet: more octets must come from the transport. Nobody erred.
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
    /// What to send before the session ends; `None` if only more octets are needed.
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
    /// The type.
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
        // A length beyond every bound is told before the type: the stream cannot be trusted.
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
        // A wrong length here is told by its own error code (RFC 7313 section 5).
        MessageType::RouteRefresh => length <= params.max_message_len(),
    }
}

/// A BGP message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Type 1.
    Open(Open),
    /// Type 2.
    Update(Update),
    /// Type 3.
    Notification(Notification),
    /// Type 4.
    Keepalive,
    /// Type 5.
    RouteRefresh(RouteRefresh),
}

impl Message {
    /// Takes the first message off a stream and hands back the rest. An error other than
    /// [`MessageError::Incomplete`] carries the NOTIFICATION to send.
    pub fn decode<'a>(octets: &'a [u8], params: &SessionParams) -> Result<(Self, &'a [u8]), MessageError> {
        let (_frame, _rest) = frame(octets, params)?;
        todo!()
    }

    /// The type.
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

    /// The message in wire form. An UPDATE that does not fit one message fails; see [`crate::encode_updates`].
    pub fn encode(&self, _params: &SessionParams) -> Result<Vec<u8>, crate::EncodeError> {
        todo!()
    }
}
