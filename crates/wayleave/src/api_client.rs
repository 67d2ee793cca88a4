//! Requests to the API of a key server whose key is pinned.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use serde_json::Value;
use wayleave_control::capability::ApiUrl;
use wayleave_runtime::api_tls::{KeyPin, client_config, other_server};
use zeroize::Zeroizing;

use crate::failure::{Failure, Outcome};

/// How long a server may be silent.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Octets of an answer, at most.
const MAX_OCTETS: u64 = 64 << 20;

/// A server, and what it is asked with.
pub struct ApiTarget {
    pub url: ApiUrl,
    pub pin: KeyPin,
    pub token: Option<Zeroizing<String>>,
    /// Why something is changed.
    pub reason: Option<String>,
}

/// What a server says.
pub struct ApiReply {
    pub status: u16,
    pub body: Zeroizing<Vec<u8>>,
}

impl ApiTarget {
    /// Makes a request, and gives the answer's JSON.
    ///
    /// # Errors
    /// No answer, another server, or the problem that the server names.
    pub fn json(&self, method: &str, path: &str, body: Option<&Value>) -> Outcome<Value> {
        self.read(&self.ask(method, path, body)?)
    }

    /// The JSON of an answer.
    ///
    /// # Errors
    /// The problem that the server names.
    pub fn read(&self, reply: &ApiReply) -> Outcome<Value> {
        let value: Option<Value> = serde_json::from_slice(&reply.body).ok();
        match value {
            Some(value) if (200..300).contains(&reply.status) => Ok(value),
            Some(problem) if problem["detail"].is_string() => {
                let detail = problem["detail"].as_str().unwrap_or_default();
                let failure = Failure::new(format!("{} refuses: {detail} (HTTP {})", self.url, reply.status));
                Err(problem["help"].as_str().map_or(failure.clone(), |help| failure.help(help)).into())
            }
            _ => Err(Failure::new(format!("{} answers with HTTP {} and no JSON", self.url, reply.status)).into()),
        }
    }

    /// Makes a request.
    ///
    /// # Errors
    /// No answer, or another server.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Outcome<ApiReply> {
        self.exchange(method, path, body).map_err(|error| {
            let failure = match other_server(&error) {
                Some(other) => Failure::new(format!("{}: {other}; nothing was sent to it", self.url)).help(
                    "ask the provider whether its key was replaced; if it was not, somebody stands between you and the server",
                ),
                None => Failure::new(format!("no answer from {}: {error}", self.url))
                    .help("is the key server running, with [key.api]? Repeat the command: what was done is not done twice"),
            };
            failure.into()
        })
    }

    fn exchange(&self, method: &str, path: &str, body: Option<&Value>) -> io::Result<ApiReply> {
        let (host, port) = (self.url.host(), self.url.port());
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        let mut connected = None;
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, TIMEOUT) {
                Ok(stream) => {
                    connected = Some(stream);
                    break;
                }
                Err(error) => last = error,
            }
        }
        let stream = connected.ok_or(last)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let config = client_config(self.pin).map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::clone(&config), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, stream);
        let body = Zeroizing::new(body.map_or_else(String::new, Value::to_string));
        let authority = self.url.authority();
        // HTTP/1.0, so that an answer ends with its connection and is in one piece.
        let mut request = Zeroizing::new(format!(
            "{method} {path} HTTP/1.0\r\nHost: {authority}\r\nAccept: application/json\r\nContent-Length: {}\r\n",
            body.len()
        ));
        if !body.is_empty() {
            request.push_str("Content-Type: application/json\r\n");
        }
        if let Some(token) = &self.token {
            request.push_str("Authorization: Bearer ");
            request.push_str(token);
            request.push_str("\r\n");
        }
        if let Some(reason) = self.reason.as_ref().filter(|_| method != "GET") {
            request.push_str(&format!("Wayleave-Reason: {reason}\r\n"));
        }
        request.push_str("\r\n");
        request.push_str(&body);
        stream.write_all(request.as_bytes())?;
        stream.flush()?;
        let mut answer = Zeroizing::new(Vec::new());
        stream.take(MAX_OCTETS).read_to_end(&mut answer)?;
        read(&answer).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is no whole HTTP response"))
    }
}

/// Status and body of a response whose connection has ended.
fn read(answer: &[u8]) -> Option<ApiReply> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let body = &answer[end + 4..];
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    let length =
        lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length: Option<usize> = length.and_then(|(_, value)| value.trim().parse().ok());
    let is_whole = length.is_none_or(|length| length == body.len());
    is_whole.then(|| ApiReply { status, body: Zeroizing::new(body.to_vec()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_was_cut_is_none() {
        let whole = b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        let reply = read(whole).expect("an answer");
        assert_eq!((reply.status, reply.body.as_slice()), (200, &b"{}"[..]));
        for cut in 0..whole.len() {
            assert!(read(&whole[..cut]).is_none(), "{cut}");
        }
        for bad in [&b"HTTP/2 200\r\n\r\n"[..], b"HTTP/1.1 abc\r\n\r\n", b"\xff\xff\r\n\r\n", b"SSH-2.0\r\n\r\n"] {
            assert!(read(bad).is_none());
        }
    }
}
