//! A minimal HTTP client that reads status pages from inside a network namespace.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use crate::netns::NetworkNamespace;

const TIMEOUT: Duration = Duration::from_secs(5);
/// Limit on the length of a status page.
const MOST_BYTES: u64 = 64 << 20;

/// Reads `http://address/path` as JSON, from `place`.
pub fn get_json(namespace: &NetworkNamespace, address: SocketAddr, path: &str) -> io::Result<Value> {
    let body = get(namespace, address, path)?;
    serde_json::from_str(&body).map_err(io::Error::other)
}

/// Reads `http://address/path` as text, from `place`.
pub fn get(namespace: &NetworkNamespace, address: SocketAddr, path: &str) -> io::Result<String> {
    let answer = namespace.within(|| ask(address, path))??;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status != "200" {
        return Err(io::Error::other(format!("{path}: {status} {body}")));
    }
    Ok(body.to_owned())
}

fn ask(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    // With HTTP/1.0 the server sends no chunked encoding.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut answer)?;
    String::from_utf8(answer).map_err(io::Error::other)
}
