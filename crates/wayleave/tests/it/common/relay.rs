//! A relay between two processes that can be cut as a network partition cuts a link: nothing arrives, and nobody is told.
//!
//! Octets that were sent before a cut and during it arrive after it, as TCP's retransmissions do.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Limit on the time that a connection to the far end takes to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the relay looks whether it is cut, healed or to stop.
const POLL: Duration = Duration::from_millis(10);

/// State that all threads of a relay read.
#[derive(Debug, Default)]
struct State {
    cut: AtomicBool,
    ends: AtomicBool,
}

impl State {
    fn runs(&self) -> bool {
        !self.ends.load(Ordering::Relaxed)
    }

    /// Waits while the link is cut. False if the relay is to stop.
    fn waits_for_link(&self) -> bool {
        while self.cut.load(Ordering::Relaxed) && self.runs() {
            std::thread::sleep(POLL);
        }
        self.runs()
    }
}

/// A relay that listens on a free loopback port and forwards each connection to one address.
#[derive(Debug)]
pub struct Relay {
    state: Arc<State>,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Relay {
    /// Forwards to `to`, where nobody need listen yet.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start(to: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let (state, address) = (Arc::<State>::default(), listener.local_addr()?);
        let shared = Arc::clone(&state);
        std::thread::spawn(move || accept(&listener, to, &shared));
        Ok(Self { state, address })
    }

    /// Cuts the link (or joins it again): what is under way waits, and connections are accepted later.
    pub fn cut(&self, is_cut: bool) {
        self.state.cut.store(is_cut, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::Relaxed);
    }
}

fn accept(listener: &TcpListener, to: SocketAddr, state: &Arc<State>) {
    while state.waits_for_link() {
        let Ok((near, _)) = listener.accept() else {
            std::thread::sleep(POLL);
            continue;
        };
        let Ok(far) = TcpStream::connect_timeout(&to, CONNECT_TIMEOUT) else { continue };
        let pairs = [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))];
        for (from, to) in pairs {
            let (Ok(from), Ok(to)) = (from, to) else { continue };
            let state = Arc::clone(state);
            std::thread::spawn(move || forward(from, to, &state));
        }
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, state: &State) {
    let mut buffer = vec![0; 64 << 10];
    let set = from.set_nonblocking(false).and_then(|()| from.set_read_timeout(Some(POLL)));
    while set.is_ok() && state.waits_for_link() {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                // What was read in the moment of a cut waits too.
                if !state.waits_for_link() || to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_link_carries_nothing_and_a_joined_one_what_was_sent_meanwhile() {
        let far = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let relay = Relay::start(far.local_addr().expect("bound")).expect("a port");
        let mut near = TcpStream::connect(relay.address).expect("it listens");
        near.write_all(b"one").expect("sent");
        let (mut end, _) = far.accept().expect("a connection");
        let mut octets = [0; 3];
        end.read_exact(&mut octets).expect("it came");
        assert_eq!(&octets, b"one");
        relay.cut(true);
        near.write_all(b"two").expect("sent");
        end.set_read_timeout(Some(Duration::from_millis(100))).expect("set");
        assert!(end.read_exact(&mut octets).is_err());
        relay.cut(false);
        end.set_read_timeout(None).expect("set");
        end.read_exact(&mut octets).expect("it came");
        assert_eq!(&octets, b"two");
        drop(near);
        assert_eq!(end.read(&mut octets).expect("closed"), 0);
    }
}
