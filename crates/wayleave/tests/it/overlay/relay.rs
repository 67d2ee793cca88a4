//! Somebody between nodes and a server: passes everything on, later.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// A relay in front of a server: by how many milliseconds it delays what it passes on, in each direction.
pub(crate) struct Relay(Arc<AtomicU64>);

impl Relay {
    /// Listens at one address, and connects to another for each connection.
    pub(crate) fn start(listen: &str, to: &str) -> Self {
        let delay = Arc::new(AtomicU64::new(0));
        let listener = TcpListener::bind(listen).expect("a free port");
        let (to, of_all) = (to.to_owned(), Arc::clone(&delay));
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(&to) else { continue };
                let (Ok(from_near), Ok(from_far)) = (near.try_clone(), far.try_clone()) else { continue };
                pass(from_near, far, &of_all);
                pass(from_far, near, &of_all);
            }
        });
        Self(delay)
    }

    /// Everything takes so much longer in each direction from now on.
    pub(crate) fn delay(&self, delay: Duration) {
        self.0.store(delay.as_millis() as u64, Ordering::Relaxed);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, delay: &Arc<AtomicU64>) {
    let (queue, waiting) = mpsc::channel::<(Instant, Vec<u8>)>();
    let delay = Arc::clone(delay);
    let _ = to.set_nodelay(true);
    std::thread::spawn(move || {
        let mut octets = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut octets) {
            let due = Instant::now() + Duration::from_millis(delay.load(Ordering::Relaxed));
            if queue.send((due, octets[..length].to_vec())).is_err() {
                return;
            }
        }
    });
    std::thread::spawn(move || {
        while let Ok((due, octets)) = waiting.recv() {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&octets).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
