//! A relying party's cache that says what a test wants.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A cache of a few items, which answers every query with all of them (RFC 8210).
pub struct Cache {
    pub address: String,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    serial: u32,
    items: Vec<u8>,
    clients: Vec<TcpStream>,
    is_gone: bool,
    /// It hangs up at once.
    is_refusing: bool,
}

/// A PDU of version 1: type, session or flags, and what follows the length.
pub fn pdu(kind: u8, session: u16, body: &[u8]) -> Vec<u8> {
    let mut out = vec![1, kind];
    out.extend(session.to_be_bytes());
    out.extend(u32::try_from(8 + body.len()).expect("short").to_be_bytes());
    out.extend(body);
    out
}

/// That `asn` may originate 192.0.2.0/24.
pub fn origin(asn: u32) -> Vec<u8> {
    pdu(4, 0, &[&[1, 24, 24, 0, 192, 0, 2, 0][..], &asn.to_be_bytes()].concat())
}

impl Cache {
    pub fn start(items: Vec<u8>) -> Self {
        Self::over(None, items)
    }

    /// Over TLS where there is a configuration for it.
    pub fn over(tls: Option<Arc<ServerConfig>>, items: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let inner = Arc::new(Mutex::new(Inner { serial: 1, items, ..Inner::default() }));
        let of_thread = Arc::clone(&inner);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), inner, tls) = (client, Arc::clone(&of_thread), tls.clone()) else { return };
                if lock(&inner).is_gone {
                    return;
                }
                if lock(&inner).is_refusing {
                    continue;
                }
                lock(&inner).clients.push(client.try_clone().expect("a socket"));
                thread::spawn(move || match tls {
                    Some(tls) => {
                        let session = ServerConnection::new(tls).expect("a session");
                        serve(StreamOwned::new(session, client), &inner);
                    }
                    None => serve(client, &inner),
                });
            }
        });
        Self { address, inner }
    }

    /// Says something else from now on, and tells everybody.
    pub fn change(&self, items: Vec<u8>) {
        let mut inner = lock(&self.inner);
        inner.serial += 1;
        inner.items = items;
        let notify = pdu(0, 7, &inner.serial.to_be_bytes());
        inner.clients.retain_mut(|client| client.write_all(&notify).is_ok());
    }

    /// From now on it hangs up on everybody, or serves again.
    pub fn refuse(&self, is_refusing: bool) {
        let mut inner = lock(&self.inner);
        inner.is_refusing = is_refusing;
        if is_refusing {
            inner.clients.drain(..).for_each(|client| drop(client.shutdown(std::net::Shutdown::Both)));
        }
    }

    pub fn stop(&self) {
        let mut inner = lock(&self.inner);
        inner.is_gone = true;
        inner.clients.drain(..).for_each(|client| drop(client.shutdown(std::net::Shutdown::Both)));
    }
}

fn lock(inner: &Mutex<Inner>) -> std::sync::MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(mut client: impl Read + Write, inner: &Mutex<Inner>) {
    let mut head = [0; 8];
    while client.read_exact(&mut head).is_ok() {
        let length = u32::from_be_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let mut rest = vec![0; length.saturating_sub(8)];
        if client.read_exact(&mut rest).is_err() {
            return;
        }
        let answer = match head[1] {
            // A reset query.
            2 => {
                let inner = lock(inner);
                let end = [inner.serial, 3600, 600, 7200].map(u32::to_be_bytes).concat();
                [pdu(3, 7, &[]), inner.items.clone(), pdu(7, 7, &end)].concat()
            }
            // A serial query: start with a full answer.
            1 => pdu(8, 0, &[]),
            _ => return,
        };
        if client.write_all(&answer).is_err() {
            return;
        }
    }
}
