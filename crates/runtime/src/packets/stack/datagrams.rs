//! Sockets of the stack for datagrams (UDP): whoever has one sends from a port of its own to any address, and is told from where others answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;

use smoltcp::iface::SocketHandle;
use smoltcp::socket::udp::{self, PacketMetadata, RecvError};

use super::{ConnectError, Connections, Shared, Stack, locked};

/// Sockets that are open at a time.
pub const MOST_SOCKETS: usize = 256;
/// What waits in each direction of a socket, at most.
const BUFFER: usize = 64 << 10;
const MOST_DATAGRAMS: usize = 64;
/// Octets of headers in front of a datagram, by family.
const HEADERS: [usize; 2] = [20 + 8, 40 + 8];

/// Why a datagram was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendError {
    /// The stack has no address of this family.
    NoAddress,
    /// The path takes none of this length, and nobody cuts it.
    TooLong,
    /// As many as may wait do.
    NoRoom,
}

/// A socket, which ends with this value.
pub struct DatagramSocket {
    shared: Arc<Shared>,
    handle: SocketHandle,
    port: u16,
}

impl Stack {
    /// Opens a socket at a port that nobody else has.
    ///
    /// # Errors
    /// There are as many as there may be.
    pub fn open_datagrams(&self) -> Result<DatagramSocket, ConnectError> {
        let mut state = locked(&self.0.state);
        if state.datagram_sockets >= MOST_SOCKETS {
            return Err(ConnectError::Busy);
        }
        let port = state.free_port().ok_or(ConnectError::Busy)?;
        let buffer = || udp::PacketBuffer::new(vec![PacketMetadata::EMPTY; MOST_DATAGRAMS], vec![0; BUFFER]);
        let mut socket = udp::Socket::new(buffer(), buffer());
        socket.bind(port).map_err(|_| ConnectError::Busy)?;
        let handle = state.sockets.add(socket);
        state.ports.insert(port);
        state.datagram_sockets += 1;
        Ok(DatagramSocket { shared: Arc::clone(&self.0), handle, port })
    }
}

impl DatagramSocket {
    /// Sends a datagram from the stack's address of the family.
    ///
    /// # Errors
    /// Why it was dropped.
    pub fn send(&self, to: SocketAddr, octets: &[u8]) -> Result<(), SendError> {
        let mut state = locked(&self.shared.state);
        if !state.addresses.iter().any(|address| address.is_ipv4() == to.is_ipv4()) {
            return Err(SendError::NoAddress);
        }
        let mtu = state.device.mtus.get(&to.ip()).map_or(state.device.mtu, |(mtu, _)| *mtu);
        if HEADERS[usize::from(to.is_ipv6())] + octets.len() > mtu {
            return Err(SendError::TooLong);
        }
        let socket = state.datagrams(self.handle);
        socket.send_slice(octets, to).map_err(|_| SendError::NoRoom)?;
        drop(state);
        self.shared.wake.notify_one();
        Ok(())
    }

    /// The next datagram that has come, from where, and its length; one that is longer than `octets` is lost.
    pub async fn receive(&self, octets: &mut [u8]) -> (SocketAddr, usize) {
        std::future::poll_fn(|context| {
            let mut state = locked(&self.shared.state);
            let socket = state.datagrams(self.handle);
            loop {
                match socket.recv_slice(octets) {
                    Ok((length, from)) => {
                        let from = SocketAddr::new(from.endpoint.addr.into(), from.endpoint.port);
                        return Poll::Ready((from, length));
                    }
                    Err(RecvError::Truncated) => {}
                    Err(RecvError::Exhausted) => {
                        socket.register_recv_waker(context.waker());
                        return Poll::Pending;
                    }
                }
            }
        })
        .await
    }
}

impl Drop for DatagramSocket {
    fn drop(&mut self) {
        let mut state = locked(&self.shared.state);
        state.sockets.remove(self.handle);
        state.ports.remove(&self.port);
        state.datagram_sockets -= 1;
    }
}

impl Connections {
    fn datagrams(&mut self, handle: SocketHandle) -> &mut udp::Socket<'static> {
        self.sockets.get_mut(handle)
    }
}
