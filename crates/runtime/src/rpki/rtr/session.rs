//! One connection with an RTR cache: the queries, and the checks of each PDU's version, session and order (RFC 8210).
//!
//! The PDUs are the `rpki` crate's. Its client compares neither the session of an answer with that of the query nor the
//! order of PDUs with the query's state, so that the conversation is ours.

use std::io;
use std::time::Duration;

use rpki::rtr::client::{PayloadError, PayloadUpdate as _};
use rpki::rtr::payload::{Action, Timing};
use rpki::rtr::pdu;
use rpki::rtr::state::{Serial, State};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::time::{Instant, timeout, timeout_at};

use wayleave_core::Asn;

use super::{ANSWER, FIRST_ANSWER, PendingUpdate};

/// Octets of a PDU of variable length, at most (RFC 8210 gives no limit, its successor this one).
const MAX_PDU: u32 = 65_535;
/// Characters of a cache's diagnostic text that are shown: our own limit.
const MAX_TEXT: usize = 200;
/// Notifications that may precede one answer: our own limit, many times what a cache may send in its time (section 5.2).
const MAX_NOTIFICATIONS: usize = 64;

/// What is known of a cache: the base of its next incremental update. A session belongs to one version (RFC 8210 section 5.1).
#[derive(Clone, Copy, Debug)]
pub(super) struct Base {
    pub(super) version: u8,
    state: State,
}

impl Base {
    /// The cache's serial number of it.
    pub(super) fn serial(self) -> u32 {
        self.state.serial().0
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error("{0}")]
    Connection(#[from] io::Error),
    #[error("it closed the connection without an answer to a query of version {0}")]
    NoAnswer(u8),
    #[error("it did not answer in time")]
    TimedOut,
    #[error("it refuses version {requested} (Error Report code 4, of version {offered})")]
    Version { requested: u8, offered: u8 },
    #[error("it reports error {code} ({}){text}", code_name(*.code))]
    Reported {
        code: u16,
        /// Its diagnostic text, with what joins it to the sentence; may be empty.
        text: String,
    },
    /// RFC 8210 section 5.1: data of two sessions must not be mixed.
    #[error("its {pdu} is of session {found}, and session {expected} was due (RFC 8210 section 5.1)")]
    Session { pdu: &'static str, expected: u16, found: u16 },
    #[error("its End of Data has serial {found}, which is older than {expected}, the one in the query")]
    OldSerial { expected: u32, found: u32 },
    #[error("it sent {found} where {expected} was due")]
    Order { found: &'static str, expected: &'static str },
    #[error("it sent a PDU of version {found}, version {agreed} was agreed on")]
    UnexpectedVersion { agreed: u8, found: u8 },
    #[error("it sent a malformed PDU: {0}")]
    Malformed(String),
    #[error("{}", payload_fault(*.0))]
    Payload(PayloadError),
    #[error("it sent {0} notifications and no answer")]
    Notifications(usize),
}

impl SessionError {
    /// Whether the next connection may ask for the changes since the last update; after any other error it starts from the
    /// beginning.
    pub(super) fn keeps_base(&self) -> bool {
        matches!(self, Self::Connection(_) | Self::NoAnswer(_) | Self::TimedOut)
    }

    /// Whether all data of the cache must go (RFC 8210 section 5.1).
    pub(super) fn flushes(&self) -> bool {
        matches!(self, Self::Session { .. })
    }

    /// The code of the Error Report that the cache gets (RFC 8210 section 12); `None` where it gets none.
    fn code(&self) -> Option<pdu::ErrorCode> {
        match self {
            // Reports are not answered by reports (section 5.11).
            Self::Connection(_) | Self::NoAnswer(_) | Self::TimedOut | Self::Version { .. } | Self::Reported { .. } => {
                None
            }
            Self::Session { .. } | Self::OldSerial { .. } | Self::Malformed(_) => Some(pdu::ErrorCode::CORRUPT_DATA),
            Self::Order { .. } | Self::Notifications(_) => Some(pdu::ErrorCode::INVALID_REQUEST),
            Self::UnexpectedVersion { .. } => Some(pdu::ErrorCode::UNEXPECTED_PROTOCOL_VERSION),
            Self::Payload(PayloadError::UnknownWithdraw) => Some(pdu::ErrorCode::WITHDRAWAL_OF_UNKNOWN_RECORD),
            Self::Payload(PayloadError::DuplicateAnnounce) => Some(pdu::ErrorCode::DUPLICATE_ANNOUNCEMENT_RECEIVED),
            Self::Payload(PayloadError::Corrupt) => Some(pdu::ErrorCode::CORRUPT_DATA),
            Self::Payload(PayloadError::Internal) => Some(pdu::ErrorCode::INTERNAL_ERROR),
        }
    }
}

fn payload_fault(error: PayloadError) -> &'static str {
    match error {
        PayloadError::UnknownWithdraw => "it withdrew an item that it had not announced",
        PayloadError::DuplicateAnnounce => "it announced an item twice",
        PayloadError::Corrupt => {
            "it sent an item that cannot be (a prefix or length out of range, a key that is too long, or an ASPA record without a provider)"
        }
        PayloadError::Internal => "it sends more items than are kept",
    }
}

/// The names of RFC 8210 section 12.
fn code_name(code: u16) -> &'static str {
    match pdu::ErrorCode(code) {
        pdu::ErrorCode::CORRUPT_DATA => "Corrupt Data",
        pdu::ErrorCode::INTERNAL_ERROR => "Internal Error",
        pdu::ErrorCode::NO_DATA_AVAILABLE => "No Data Available",
        pdu::ErrorCode::INVALID_REQUEST => "Invalid Request",
        pdu::ErrorCode::UNSUPPORTED_PROTOCOL_VERSION => "Unsupported Protocol Version",
        pdu::ErrorCode::UNSUPPORTED_PDU_TYPE => "Unsupported PDU Type",
        pdu::ErrorCode::WITHDRAWAL_OF_UNKNOWN_RECORD => "Withdrawal of Unknown Record",
        pdu::ErrorCode::DUPLICATE_ANNOUNCEMENT_RECEIVED => "Duplicate Announcement Received",
        pdu::ErrorCode::UNEXPECTED_PROTOCOL_VERSION => "Unexpected Protocol Version",
        _ => "unknown code",
    }
}

/// The first version that has ASPA records.
const ASPA_VERSION: u8 = 2;

/// The ASPA record of a customer (draft-ietf-sidrops-8210bis, PDU type 11).
#[derive(PartialEq, Eq, Debug)]
struct Aspa {
    action: Action,
    customer: Asn,
    providers: Vec<Asn>,
}

impl Aspa {
    /// From what follows the header; the lowest bit of the flags says whether it is announced. A length that is no number of ASes is
    /// malformed.
    fn decode(header: pdu::Header, body: &[u8]) -> Result<Self, SessionError> {
        let (numbers, rest) = body.as_chunks::<4>();
        let mut asns = numbers.iter().map(|number| Asn(u32::from_be_bytes(*number)));
        let action = if header.session() & 0x0100 == 0 { Action::Withdraw } else { Action::Announce };
        match (asns.next(), rest) {
            (Some(customer), []) => Ok(Self { action, customer, providers: asns.collect() }),
            _ => Err(SessionError::Malformed(format!("an ASPA PDU of {} octets", header.length()))),
        }
    }
}

/// A PDU from the cache.
enum Received {
    Notify(State),
    Response {
        session: u16,
    },
    Item(pdu::Payload),
    Aspa(Aspa),
    /// An item of a kind that is not used.
    Unused,
    EndOfData(pdu::EndOfData),
    Reset,
    /// What only a router sends.
    Query,
}

impl Received {
    fn name(&self) -> &'static str {
        match self {
            Self::Notify(_) => "Serial Notify",
            Self::Response { .. } => "Cache Response",
            Self::Item(_) | Self::Aspa(_) | Self::Unused => "an item of data",
            Self::EndOfData(_) => "End of Data",
            Self::Reset => "Cache Reset",
            Self::Query => "a query",
        }
    }
}

/// A connection. Until the cache has answered, its version is the one that is asked for.
pub(super) struct Session<S> {
    socket: BufReader<S>,
    version: u8,
    is_agreed: bool,
    /// The header of the PDU that was read last, for the Error Report.
    header: pdu::Header,
    /// The newest state that the cache has notified and that is not here yet.
    notified: Option<State>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    pub(super) fn new(socket: S, version: u8) -> Self {
        let header = pdu::Header::default();
        Self { socket: BufReader::new(socket), version, is_agreed: false, header, notified: None }
    }

    /// Waits until `due`, or until the cache has something newer than `base`.
    pub(super) async fn wait(&mut self, base: Base, due: Instant) -> Result<(), SessionError> {
        let is_newer = |state: State| is_other(state, base.state);
        if self.notified.take().is_some_and(is_newer) {
            return Ok(());
        }
        for _ in 0..MAX_NOTIFICATIONS {
            // Nothing is taken out of the buffer here, so that a PDU is never read in part.
            match timeout_at(due, self.socket.fill_buf()).await {
                Err(_) => return Ok(()),
                Ok(Ok([])) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(error.into()),
            }
            match self.read_in_time(ANSWER).await? {
                Received::Notify(state) => {
                    check_session("Serial Notify", base.state.session(), state.session())?;
                    if is_newer(state) {
                        return Ok(());
                    }
                }
                other => return Err(SessionError::Order { found: other.name(), expected: "a Serial Notify" }),
            }
        }
        Err(SessionError::Notifications(MAX_NOTIFICATIONS))
    }

    /// Receives one update: the changes since `base`, or everything. `start` makes an empty one (`true`), or one that begins
    /// with what is in force.
    pub(super) async fn update(
        &mut self,
        base: Option<Base>,
        start: impl Fn(bool) -> PendingUpdate,
    ) -> Result<(PendingUpdate, Base, Option<Timing>), SessionError> {
        let mut base = base.filter(|base| base.version == self.version);
        if let Some(state) = base.map(|base| base.state) {
            self.send(pdu::SerialQuery::new(self.version, state).as_ref()).await?;
        } else {
            self.send(pdu::ResetQuery::new(self.version).as_ref()).await?;
        }
        let session = loop {
            match self.first_answer().await? {
                Received::Response { session } => break session,
                Received::Reset if base.is_some() => {
                    base = None;
                    self.send(pdu::ResetQuery::new(self.version).as_ref()).await?;
                }
                other => return Err(SessionError::Order { found: other.name(), expected: "a Cache Response" }),
            }
        };
        if let Some(Base { state, .. }) = base {
            check_session("Cache Response", state.session(), session)?;
        }
        // Nothing of it is in force before its End of Data has come and was checked: the caller gets all of it or nothing.
        let mut update = start(base.is_none());
        let end = self.items(&mut update).await?;
        check_session("End of Data", session, end.session())?;
        if let Some(Base { state, .. }) = base.filter(|base| end.serial() < base.state.serial()) {
            return Err(SessionError::OldSerial { expected: state.serial().0, found: end.serial().0 });
        }
        self.notified = self.notified.filter(|state| is_other(*state, end.state()));
        Ok((update, Base { version: self.version, state: end.state() }, end.timing()))
    }

    /// Adds the items of an answer to `update`, up to its end.
    async fn items(&mut self, update: &mut PendingUpdate) -> Result<pdu::EndOfData, SessionError> {
        let mut notifications = 0;
        loop {
            match self.read().await? {
                Received::Item(item) => {
                    let (action, payload) =
                        item.to_payload().map_err(|_| SessionError::Payload(PayloadError::Corrupt))?;
                    update.push_update(action, payload).map_err(SessionError::Payload)?;
                }
                Received::Aspa(Aspa { action, customer, providers }) => {
                    update.aspa(action, customer, &providers).map_err(SessionError::Payload)?;
                }
                Received::Unused => update.ignored += 1,
                Received::EndOfData(end) => return Ok(end),
                Received::Notify(state) => {
                    self.notified = Some(state);
                    notifications += 1;
                    if notifications > MAX_NOTIFICATIONS {
                        return Err(SessionError::Notifications(notifications));
                    }
                }
                other => {
                    return Err(SessionError::Order {
                        found: other.name(),
                        expected: "an item of data or End of Data",
                    });
                }
            }
        }
    }

    /// The first PDU of an answer. Notifications may cross the query.
    async fn first_answer(&mut self) -> Result<Received, SessionError> {
        for _ in 0..MAX_NOTIFICATIONS {
            match self.read_in_time(FIRST_ANSWER).await {
                Ok(Received::Notify(state)) => self.notified = Some(state),
                Ok(received) => {
                    self.is_agreed = true;
                    return Ok(received);
                }
                Err(error) if !self.is_agreed && has_closed(&error) => {
                    return Err(SessionError::NoAnswer(self.version));
                }
                Err(error) => return Err(error),
            }
        }
        Err(SessionError::Notifications(MAX_NOTIFICATIONS))
    }

    async fn read_in_time(&mut self, limit: Duration) -> Result<Received, SessionError> {
        timeout(limit, self.read()).await.unwrap_or(Err(SessionError::TimedOut))
    }

    async fn read(&mut self) -> Result<Received, SessionError> {
        let header = pdu::Header::read(&mut self.socket).await?;
        self.header = header;
        self.check_version(header)?;
        let socket = &mut self.socket;
        let received = match header.pdu() {
            pdu::SerialNotify::PDU => {
                let serial = fixed(header, socket).await?;
                Received::Notify(State::from_parts(header.session(), Serial(u32::from_be_bytes(serial))))
            }
            pdu::CacheResponse::PDU => {
                let [] = fixed(header, socket).await?;
                Received::Response { session: header.session() }
            }
            pdu::CacheReset::PDU => {
                let [] = fixed(header, socket).await?;
                Received::Reset
            }
            pdu::Ipv4Prefix::PDU => Received::Item(pdu::Payload::V4(
                pdu::Ipv4Prefix::read_payload(header, socket).await.map_err(malformed)?,
            )),
            pdu::Ipv6Prefix::PDU => Received::Item(pdu::Payload::V6(
                pdu::Ipv6Prefix::read_payload(header, socket).await.map_err(malformed)?,
            )),
            pdu::RouterKey::PDU => Received::Item(pdu::Payload::RouterKey(
                pdu::RouterKey::read_payload(header, socket).await.map_err(malformed)?,
            )),
            // Decoded here: the crate refuses one without providers, which is a withdrawal. Older versions have none.
            pdu::Aspa::PDU => {
                let body = body(header, socket).await?;
                if header.version() < ASPA_VERSION {
                    Received::Unused
                } else {
                    Received::Aspa(Aspa::decode(header, &body)?)
                }
            }
            pdu::EndOfData::PDU => {
                Received::EndOfData(pdu::EndOfData::read_payload(header, socket).await.map_err(malformed)?)
            }
            pdu::Error::PDU => return Err(self.report(header).await),
            pdu::SerialQuery::PDU | pdu::ResetQuery::PDU => Received::Query,
            other => return Err(SessionError::Malformed(format!("type {other} is not of RFC 8210"))),
        };
        Ok(received)
    }

    /// An answer decides on the version, which stays (RFC 8210 section 7). Before it, notifications may have any version, and
    /// a cache refuses ours by a report of its own.
    fn check_version(&mut self, header: pdu::Header) -> Result<(), SessionError> {
        let (found, agreed) = (header.version(), self.version);
        match header.pdu() {
            pdu::Error::PDU => Ok(()),
            pdu::SerialNotify::PDU if !self.is_agreed => Ok(()),
            pdu::CacheResponse::PDU if !self.is_agreed && found < agreed => {
                self.version = found;
                Ok(())
            }
            _ if found == agreed => Ok(()),
            _ => Err(SessionError::UnexpectedVersion { agreed, found }),
        }
    }

    /// The error that an Error Report reports.
    async fn report(&mut self, header: pdu::Header) -> SessionError {
        let (code, requested, offered) = (header.session(), self.version, header.version());
        if code == pdu::ErrorCode::UNSUPPORTED_PROTOCOL_VERSION.0 && !self.is_agreed {
            return SessionError::Version { requested, offered };
        }
        let rest = header.length().clamp(8, MAX_PDU) as usize - 8;
        let mut octets = vec![0; rest];
        let read = timeout(FIRST_ANSWER, self.socket.read_exact(&mut octets)).await;
        let text = if matches!(read, Ok(Ok(_))) { diagnostic(&octets) } else { String::new() };
        SessionError::Reported { code, text }
    }

    async fn send(&mut self, octets: &[u8]) -> Result<(), SessionError> {
        let written = timeout(FIRST_ANSWER, async {
            self.socket.write_all(octets).await?;
            self.socket.flush().await
        });
        Ok(written.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?)
    }

    /// Sends the cache an Error Report, if it is due one, before the connection ends.
    pub(super) async fn end(mut self, error: &SessionError) {
        if let Some(code) = error.code() {
            let report = pdu::Error::new(self.version, code.0, self.header, error.to_string());
            let _ = self.send(report.as_ref()).await; // the connection ends in any case
            let _ = timeout(FIRST_ANSWER, self.socket.shutdown()).await;
        }
    }
}

/// The rest of a PDU of fixed length.
async fn fixed<const N: usize>(
    header: pdu::Header,
    socket: &mut (impl AsyncRead + Unpin),
) -> Result<[u8; N], SessionError> {
    if header.length() as usize != 8 + N {
        return Err(SessionError::Malformed(format!("a PDU of type {} with {} octets", header.pdu(), header.length())));
    }
    let mut rest = [0; N];
    socket.read_exact(&mut rest).await?;
    Ok(rest)
}

/// The rest of a PDU of any length.
async fn body(header: pdu::Header, socket: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, SessionError> {
    let length = header.length();
    if !(8..=MAX_PDU).contains(&length) {
        return Err(SessionError::Malformed(format!("a PDU of type {} with {length} octets", header.pdu())));
    }
    let mut rest = vec![0; length as usize - 8];
    socket.read_exact(&mut rest).await?;
    Ok(rest)
}

/// Whether the cache has hung up, or never says anything: what some do that know no version 2.
fn has_closed(error: &SessionError) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    match error {
        SessionError::Connection(error) => {
            matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
        }
        SessionError::TimedOut => true,
        _ => false,
    }
}

/// The `rpki` crate reports wrong lengths as errors of I/O.
fn malformed(error: io::Error) -> SessionError {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::QuotaExceeded => SessionError::Malformed(error.to_string()),
        _ => error.into(),
    }
}

fn check_session(pdu: &'static str, expected: u16, found: u16) -> Result<(), SessionError> {
    if expected == found { Ok(()) } else { Err(SessionError::Session { pdu, expected, found }) }
}

fn is_other(one: State, other: State) -> bool {
    (one.session(), one.serial().0) != (other.session(), other.serial().0)
}

/// The diagnostic text of an Error Report behind its header (RFC 8210 section 5.11), as the end of a sentence; empty if there is
/// none. Control characters are escaped.
fn diagnostic(octets: &[u8]) -> String {
    let counted = |octets: &[u8]| -> Option<(usize, Vec<u8>)> {
        let (length, rest) = octets.split_first_chunk::<4>()?;
        Some((u32::from_be_bytes(*length) as usize, rest.to_vec()))
    };
    let text = counted(octets)
        .and_then(|(length, rest)| counted(rest.get(length..)?))
        .and_then(|(length, rest)| Some(String::from_utf8_lossy(rest.get(..length)?).into_owned()));
    let text: String = text.unwrap_or_default().chars().take(MAX_TEXT).collect();
    let text = text.trim();
    if text.is_empty() { String::new() } else { format!(": \"{}\"", text.escape_debug()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aspa_record_is_read_with_any_number_of_providers_and_no_part_of_one() {
        let header = |flags: u16, octets: u32| pdu::Header::new(2, pdu::Aspa::PDU, flags, octets);
        let body = [1, 2, 3].map(u32::to_be_bytes).concat();
        let read = Aspa::decode(header(0x0100, 20), &body).expect("a record");
        assert_eq!(read, Aspa { action: Action::Announce, customer: Asn(1), providers: vec![Asn(2), Asn(3)] });
        let read = Aspa::decode(header(0, 12), &body[..4]).expect("a record");
        assert_eq!(read, Aspa { action: Action::Withdraw, customer: Asn(1), providers: Vec::new() });
        for end in (0..body.len()).filter(|end| *end % 4 != 0 || *end == 0) {
            assert!(Aspa::decode(header(0x0100, 8), &body[..end]).is_err(), "{end} octets");
        }
    }

    #[test]
    fn the_text_of_a_report_is_shown_escaped_and_a_cut_report_has_none() {
        let report = [&[0, 0, 0, 2, 9, 9, 0, 0, 0, 4][..], b"a\x1bbc"].concat();
        assert_eq!(diagnostic(&report), ": \"a\\u{1b}bc\"");
        for end in 0..report.len() {
            assert_eq!(diagnostic(&report[..end]), "", "{end} octets");
        }
        assert_eq!(diagnostic(&[0xff; 8]), "");
        assert_eq!(diagnostic(&[0; 8]), "");
    }
}
