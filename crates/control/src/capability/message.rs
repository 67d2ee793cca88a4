//! DNS messages as a client of a key server sends and reads them (RFC 1035, RFC 6891, RFC 7830).

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{DNSClass, Name, RData, RecordType};

use super::answer::SEALED;
use super::dns::{OPTION, PADDING};
use super::zone::Zone;

/// Octets of a datagram that we send and receive.
pub const MAX_UDP: u16 = 1232;
/// What is asked for.
pub(super) const QUESTION_TYPE: RecordType = RecordType::TXT;
/// Questions are padded to multiples of this (RFC 8467 section 4.1).
const BLOCK: usize = 128;
/// Octets of a TXT record with an answer in one string, its name compressed.
pub(super) const ANSWER_RECORD: usize = 2 + 10 + 1 + SEALED;
/// Records of an answer that are looked at.
const MAX_RECORDS: usize = 8;

/// A question's name: labels in front of the zone.
pub(super) fn name(labels: &[String], zone: &Zone) -> Name {
    let all = labels.iter().map(String::as_bytes).chain(zone.labels().map(str::as_bytes));
    // Labels are short, and `MAX_ZONE` leaves room for the longest request.
    Name::from_labels(all).unwrap_or_else(|_| Name::root())
}

/// A question, as long as its answer at least, so that a server needs no cookie to answer by UDP (RFC 7873).
pub(super) fn question(id: u16, name: &Name) -> Vec<u8> {
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name.clone(), QUESTION_TYPE));
    let mut edns = Edns::new();
    edns.set_max_payload(MAX_UDP);
    message.set_edns(edns.clone());
    let bare = message.to_vec().map_or(0, |octets| octets.len());
    let whole = (bare + OPTION).max(bare + ANSWER_RECORD).next_multiple_of(BLOCK);
    edns.options_mut().insert(EdnsOption::Unknown(PADDING, vec![0; whole - bare - OPTION]));
    message.set_edns(edns);
    message.to_vec().unwrap_or_default()
}

/// What a server or resolver says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// TXT records of the name: the content of each, and the TTL of the first.
    Texts { ttl: u32, texts: Vec<Vec<u8>> },
    /// Ask again by TCP.
    Truncated,
    /// The name does not exist, or has no TXT record.
    Nothing,
    /// Another response code (RFC 1035 section 4.1.1).
    Failed(u16),
}

/// Why octets are no reply to the question: somebody else sent them, or the server erred. They change nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplyError {
    #[error("malformed DNS message")]
    Malformed,
    #[error("the DNS message is not a response to a query")]
    NotResponse,
    #[error("the response has another message ID")]
    Id,
    #[error("the response answers another question")]
    Question,
}

impl Reply {
    /// Reads a reply to the question for `name` with this `id`.
    pub(super) fn read(octets: &[u8], id: u16, name: &Name) -> Result<Self, ReplyError> {
        let message = Message::from_vec(octets).map_err(|_| ReplyError::Malformed)?;
        if message.metadata.message_type != MessageType::Response || message.metadata.op_code != OpCode::Query {
            return Err(ReplyError::NotResponse);
        }
        if message.metadata.id != id {
            return Err(ReplyError::Id);
        }
        let code = message.metadata.response_code;
        match &message.queries[..] {
            // A server that refuses may leave the question out.
            [] if code != ResponseCode::NoError && code != ResponseCode::NXDomain => {}
            [query]
                if *query.name() == *name
                    && query.query_type() == QUESTION_TYPE
                    && query.query_class() == DNSClass::IN => {}
            _ => return Err(ReplyError::Question),
        }
        if message.metadata.truncation {
            return Ok(Self::Truncated);
        }
        match code {
            ResponseCode::NoError | ResponseCode::NXDomain => {}
            code => return Ok(Self::Failed(u16::from(code))),
        }
        let mut first = None;
        let mut texts = Vec::new();
        let records = message.answers.iter().filter(|record| record.name == *name && record.dns_class == DNSClass::IN);
        for record in records.take(MAX_RECORDS) {
            if let RData::TXT(text) = &record.data {
                first.get_or_insert(record.ttl);
                texts.push(text.txt_data.concat());
            }
        }
        Ok(first.map_or(Self::Nothing, |ttl| Self::Texts { ttl, texts }))
    }
}
