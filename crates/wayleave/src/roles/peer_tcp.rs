//! TCP of one BGP peer, for every role: where the peer is, which address may connect, and its connections.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::sync::mpsc;
use wayleave_bgp::peer::TcpRequest;
use wayleave_bgp::session::{self, ConnectionId};
use wayleave_runtime::bgp_tcp::{Connections, Protection, Sockets, TcpEvent, TcpOptions};
use wayleave_runtime::starts::PeerName;

/// How long the peers may take at shutdown to read what is queued for them, the NOTIFICATION at its end. Those who read take
/// milliseconds.
pub const SHUTDOWN_TIME: Duration = Duration::from_secs(5);

/// Where a peer is.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Listen for it here.
    pub listen: Option<SocketAddr>,
    /// Connect to it there.
    pub connect: Option<SocketAddr>,
    pub options: TcpOptions,
}

/// What a TCP event is to the driver of a peer.
pub enum TcpInput {
    /// An input of the session.
    Session(session::Input),
    /// For the session too: an attempt to connect failed for this reason, in words.
    ConnectFailed(session::Input, String),
    /// The peer's session has nothing to do with it: another address had connected, and was disconnected.
    Refused(IpAddr),
}

/// The connections of one peer.
pub struct PeerTcp {
    endpoint: Endpoint,
    sockets: Sockets<TcpEvent>,
    /// Where it listens, if it does.
    pub address: Option<SocketAddr>,
}

impl PeerTcp {
    /// Listens if the endpoint says so. Fails if this system cannot protect the sessions as the endpoint says. `events` takes what happens to the connections, for [`PeerTcp::translate`].
    pub async fn open(endpoint: Endpoint, events: mpsc::Sender<TcpEvent>) -> io::Result<Self> {
        endpoint.options.protection.check()?;
        let mut sockets = Sockets::new(events, endpoint.options.clone());
        let address = match endpoint.listen {
            Some(address) => Some(sockets.listen(address).await?),
            None => None,
        };
        Ok(Self { endpoint, sockets, address })
    }

    pub fn translate(&self, event: TcpEvent) -> TcpInput {
        TcpInput::Session(match event {
            TcpEvent::Accepted { connection, .. } => {
                session::Input::Connected { connection: ConnectionId(connection), outgoing: false }
            }
            TcpEvent::Refused { address } => return TcpInput::Refused(address),
            TcpEvent::Connected { connection, .. } => {
                session::Input::Connected { connection: ConnectionId(connection), outgoing: true }
            }
            TcpEvent::ConnectFailed { attempt, error } => {
                let why = why_not_connected(&error, &self.endpoint.options.protection);
                return TcpInput::ConnectFailed(session::Input::ConnectFailed { attempt }, why);
            }
            TcpEvent::Bytes { connection, bytes } => {
                session::Input::Bytes { connection: ConnectionId(connection), bytes }
            }
            TcpEvent::Closed { connection } => session::Input::Closed { connection: ConnectionId(connection) },
            TcpEvent::Writable { connection } => session::Input::Writable { connection: ConnectionId(connection) },
        })
    }

    /// The peer, if this is its input.
    pub fn source(&self, event: &TcpEvent) -> Option<&PeerName> {
        self.endpoint.options.name.as_ref().filter(|_| matches!(event, TcpEvent::Bytes { .. }))
    }

    /// What protects the connections, in words.
    pub fn protection(&self) -> String {
        self.endpoint.options.protection.to_string()
    }

    /// What looks at the connections.
    pub fn connections(&self) -> Connections {
        self.sockets.connections()
    }

    /// Whether the peer connects, and this end only listens.
    pub fn is_passive(&self) -> bool {
        self.endpoint.connect.is_none()
    }

    /// Carries out a request; returns what the session must know of at once.
    pub fn perform(&mut self, request: TcpRequest) -> Option<session::Input> {
        match request {
            TcpRequest::Connect { attempt } => match self.endpoint.connect {
                Some(to) => self.sockets.connect(attempt, to),
                None => return Some(session::Input::ConnectFailed { attempt }),
            },
            TcpRequest::Send { connection, bytes } => {
                let accepts_more = self.sockets.send(connection.0, bytes);
                return (!accepts_more).then_some(session::Input::Blocked { connection });
            }
            TcpRequest::Close { connection } => self.sockets.close(connection.0),
        }
        None
    }
}

/// Why a connection was not opened. Kernels drop what does not fit a session's protection without an answer, and also the
/// answer of a host on which nothing listens: it has no password, and not the greatest TTL.
fn why_not_connected(error: &io::Error, protection: &Protection) -> String {
    let is_protected = protection.password.is_some() || protection.ttl_security.is_some();
    if error.kind() != io::ErrorKind::TimedOut || !is_protected {
        return error.to_string();
    }
    format!(
        "no answer in time; this session is protected ({protection}): the peer does not listen, or its protection differs; \
         `nstat -az 'TcpExtTCPMD5*' TcpExtTCPMinTTLDrop` counts what this host dropped"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_silence_of_a_protected_peer_is_explained_by_its_protection() {
        let protection =
            Protection { ttl_security: Some(wayleave_runtime::bgp_tcp::Hops::ONE), ..Protection::default() };
        let names_it = |kind: io::ErrorKind, protection: &Protection| {
            why_not_connected(&kind.into(), protection).contains("protected (TTL security (1 hop))")
        };
        assert!(names_it(io::ErrorKind::TimedOut, &protection));
        assert!(!names_it(io::ErrorKind::TimedOut, &Protection::default()));
        assert!(!names_it(io::ErrorKind::ConnectionRefused, &protection));
    }
}
