//! Connections of the stack as streams.

use std::io::{self, Read as _};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{RecvError, State};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{BUFFER, Shared, locked};

/// An open connection. One that is dropped before both ends have said all is reset.
pub struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) handle: SocketHandle,
    pub(super) port: u16,
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = locked(&self.shared.state);
        if let Some(rest) = state.rest.get_mut(&self.handle) {
            let length = rest.read(out.initialize_unfilled())?;
            out.advance(length);
            self.shared.received.fetch_add(length as u64, Relaxed);
            return Poll::Ready(Ok(()));
        }
        let socket = state.socket(self.handle);
        let before = socket.recv_queue();
        match socket.recv_slice(out.initialize_unfilled()) {
            Ok(0) => {
                socket.register_recv_waker(context.waker());
                Poll::Pending
            }
            Ok(length) => {
                out.advance(length);
                self.shared.received.fetch_add(length as u64, Relaxed);
                // The far end is told of a window that has become much larger.
                if before >= BUFFER / 4 {
                    self.shared.wake.notify_one();
                }
                Poll::Ready(Ok(()))
            }
            Err(RecvError::Finished) => Poll::Ready(Ok(())),
            Err(RecvError::InvalidState) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = locked(&self.shared.state);
        let socket = state.socket(self.handle);
        let Ok(length) = socket.send_slice(octets) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        if length == 0 && !octets.is_empty() {
            socket.register_send_waker(context.waker());
            return Poll::Pending;
        }
        self.shared.sent.fetch_add(length as u64, Relaxed);
        self.shared.wake.notify_one();
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Sends a FIN behind what was written.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        locked(&self.shared.state).socket(self.handle).close();
        self.shared.wake.notify_one();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = locked(&self.shared.state);
        let socket = state.socket(self.handle);
        let is_said = matches!(socket.state(), State::Closing | State::LastAck | State::TimeWait | State::Closed);
        if !is_said || socket.can_recv() {
            socket.abort();
        }
        state.open -= 1;
        state.closing.push_back((self.handle, self.port, self.shared.clock.now().instant));
        drop(state);
        self.shared.wake.notify_one();
    }
}
