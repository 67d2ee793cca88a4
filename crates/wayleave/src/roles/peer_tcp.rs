//! TCP of one BGP peer, for every role: where the peer is, which address may connect, and its connections.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::sync::mpsc;
use wayleave_bgp::peer::TcpRequest;
use wayleave_bgp::session::{self, ConnectionId};
use wayleave_runtime::bgp_tcp::{Sockets, TcpEvent, TcpOptions};

/// Where a peer is.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Listen for it here.
    pub listen: Option<SocketAddr>,
    /// Connect to it there.
    pub connect: Option<SocketAddr>,
    /// Only this address may connect.
    pub only: Option<IpAddr>,
    pub options: TcpOptions,
}

/// What a TCP event is to the driver of a peer.
pub enum TcpInput {
    /// An input of the session.
    Session(session::Input),
    /// For the session too: an attempt to connect failed for this reason.
    ConnectFailed(session::Input, io::Error),
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
    /// Listens if the endpoint says so. `events` takes what happens to the connections, for [`PeerTcp::translate`].
    pub async fn open(endpoint: Endpoint, events: mpsc::Sender<TcpEvent>) -> io::Result<Self> {
        let mut sockets = Sockets::new(events, endpoint.options);
        let address = match endpoint.listen {
            Some(address) => Some(sockets.listen(address).await?),
            None => None,
        };
        Ok(Self { endpoint, sockets, address })
    }

    pub fn translate(&self, event: TcpEvent) -> TcpInput {
        TcpInput::Session(match event {
            TcpEvent::Accepted { connection, address } => {
                let ip = address.ip().to_canonical();
                if self.endpoint.only.is_some_and(|only| only != ip) {
                    self.sockets.close(connection);
                    return TcpInput::Refused(ip);
                }
                session::Input::Connected { connection: ConnectionId(connection), outgoing: false }
            }
            TcpEvent::Connected { connection, .. } => {
                session::Input::Connected { connection: ConnectionId(connection), outgoing: true }
            }
            TcpEvent::ConnectFailed { attempt, error } => {
                return TcpInput::ConnectFailed(session::Input::ConnectFailed { attempt }, error);
            }
            TcpEvent::Bytes { connection, bytes } => {
                session::Input::Bytes { connection: ConnectionId(connection), bytes }
            }
            TcpEvent::Closed { connection } => session::Input::Closed { connection: ConnectionId(connection) },
            TcpEvent::Writable { connection } => session::Input::Writable { connection: ConnectionId(connection) },
        })
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
