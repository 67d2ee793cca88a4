//! A relay between two BGP speakers that records all octets of a link.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::netns::NetworkNamespace;

/// How long a connection to the far end may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the tap checks whether it is to stop.
const POLL: Duration = Duration::from_millis(20);

/// Octets of one connection in one direction.
pub type Recording = Arc<Mutex<Vec<u8>>>;

/// A relay that listens at one address and forwards every connection to another.
#[derive(Debug)]
pub struct Tap {
    recordings: Arc<Mutex<Vec<Recording>>>,
    ends: Arc<AtomicBool>,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Tap {
    /// Listens at `listen` in `namespace` and connects to `to` from there.
    pub fn start(namespace: &NetworkNamespace, listen: SocketAddr, to: SocketAddr) -> io::Result<Self> {
        let (recordings, ends) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let listener = namespace.within(|| TcpListener::bind(listen))??;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (all, ended, namespace) = (Arc::clone(&recordings), Arc::clone(&ends), namespace.clone());
        std::thread::spawn(move || namespace.within(move || accept(&listener, to, &all, &ended)));
        Ok(Self { recordings, ends, address })
    }

    /// The recorded octets, one entry for each direction of each connection.
    #[must_use]
    pub fn recorded(&self) -> Vec<Vec<u8>> {
        let all = self.recordings.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|one| one.lock().unwrap_or_else(PoisonError::into_inner).clone()).collect()
    }

    /// Octets recorded.
    #[must_use]
    pub fn octets(&self) -> usize {
        self.recorded().iter().map(Vec::len).sum()
    }

    /// How often `needle` occurs.
    #[must_use]
    pub fn count(&self, needle: &[u8]) -> usize {
        self.recorded()
            .iter()
            .map(|octets| octets.windows(needle.len()).filter(|window| *window == needle).count())
            .sum()
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

fn accept(listener: &TcpListener, to: SocketAddr, recordings: &Mutex<Vec<Recording>>, ends: &Arc<AtomicBool>) {
    while !ends.load(Ordering::Relaxed) {
        let Ok((near, _)) = listener.accept() else {
            std::thread::sleep(POLL);
            continue;
        };
        let Ok(far) = TcpStream::connect_timeout(&to, CONNECT_TIMEOUT) else { continue };
        let pairs = [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))];
        for (from, to) in pairs {
            let (Ok(from), Ok(to)) = (from, to) else { continue };
            let recording = Recording::default();
            recordings.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&recording));
            let ends = Arc::clone(ends);
            std::thread::spawn(move || relay(from, to, &recording, &ends));
        }
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, recording: &Mutex<Vec<u8>>, ends: &AtomicBool) {
    let mut buffer = vec![0; 64 << 10];
    let set = from.set_nonblocking(false).and_then(|()| from.set_read_timeout(Some(POLL)));
    while set.is_ok() && !ends.load(Ordering::Relaxed) {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                recording.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..count]);
                if to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
