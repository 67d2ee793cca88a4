//! A key server with an API, an operator with tokens, and requests by HTTPS.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use serde_json::Value;
use wayleave_control::capability::InvitationLine;
use wayleave_runtime::api_tls::{KeyPin, client_config};

use crate::common::{Folder, free, text};
use crate::overlay::harness::Running;

pub(super) const WAYPOINT: &str = "198.51.100.1";

pub(super) struct World {
    pub(super) folder: Folder,
    pub(super) running: Running,
    /// Where questions come, and requests.
    pub(super) listen: String,
    pub(super) api: String,
    /// Tokens to do everything, and to read.
    pub(super) full: String,
    pub(super) read: String,
    pub(super) pin: KeyPin,
}

/// A connection from an address of this machine.
pub(super) fn connect_from(source: [u8; 4], to: &str) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind((source, 0).into()).expect("an address of the loopback interface");
        let stream = socket.connect(to.parse().expect("an address")).await.expect("it listens");
        let stream = stream.into_std().expect("a socket");
        stream.set_nonblocking(false).expect("set");
        stream
    })
}

/// A connection on which the server has to show this key.
pub(super) fn secured(stream: TcpStream, pin: KeyPin) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let config = client_config(pin).expect("a configuration");
    Ok(StreamOwned::new(ClientConnection::new(Arc::clone(&config), name).expect("a client"), stream))
}

/// How many of these the other side has closed.
pub(super) fn closed(all: &mut [TcpStream]) -> usize {
    let is_closed = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).expect("set");
        let read = stream.read(&mut [0; 4096]);
        match read {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    };
    all.iter_mut().map(is_closed).filter(|closed| *closed).count()
}

/// An answer of the API.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Whether it is a problem of this kind.
    pub(super) fn is(&self, kind: &str) -> bool {
        self.head.contains("application/problem+json") && self.json()["type"] == format!("urn:wayleave:problem:{kind}")
    }
}

impl World {
    pub(super) fn new(name: &str) -> Self {
        Self::with(name, "")
    }

    /// With more lines in front of the status section.
    pub(super) fn with(name: &str, more: &str) -> Self {
        Self::on(name, &[], more)
    }

    /// `init`: more arguments of `cap init`.
    pub(super) fn on(name: &str, init: &[&str], more: &str) -> Self {
        let folder = Folder::new(&format!("key-api-{name}"));
        let [listen, status, api] = [free(), free(), free()];
        folder.ok(&["keys", "forwarding", "router.key", "--format", "platypus"]);
        let zone = ["cap", "init", "server", "--zone", "keys.example.net", "--name-server", "ns1.example.net"];
        folder.ok(&[&zone[..], &["--listen", &listen, "--status", &status, "--api", &api], init].concat());
        folder.ok(&["keys", "node", "server/identity.key", "--kind", "identity"]);
        let token = |name: &str| {
            let made = folder.ok(&["keys", "token", name, "--json"]);
            let made: Value = serde_json::from_str(&made).expect("JSON");
            let text = fs::read_to_string(folder.0.join(name)).expect("there");
            (text.trim().to_owned(), made["hash"].as_str().expect("a hash").to_owned())
        };
        let (full, of_full) = token("full.token");
        let (read, of_read) = token("read.token");
        let section = format!(
            "[[key.api.token]]\nname = \"operator\"\nhash = \"{of_full}\"\naccess = \"operate\"\n\
             [[key.api.token]]\nname = \"billing\"\nhash = \"{of_read}\"\n\
             [[key.waypoint]]\naddress = \"{WAYPOINT}\"\nkey = \"../router.key\"\nkind = \"pop\"\nname = \"fra\"\n\
             {more}\n[status]"
        );
        let path = folder.0.join("server/key.toml");
        let config = fs::read_to_string(&path).expect("there").replace("[status]", &section);
        fs::write(&path, config).expect("written");
        folder.ok(&["check", "server/key.toml"]);
        let running = Running::start("key", folder.0.join("server"), "key", &status);
        let mut world = Self { folder, running, listen, api, full, read, pin: KeyPin([0; 32]) };
        let line: InvitationLine = world.invite("probe", &["--principal", "1"]).1.parse().expect("an invitation");
        world.pin = KeyPin(line.pin);
        let id = line.id.to_string();
        world.folder.ok(&["cap", "invitations", "--withdraw", &id, "--config", "server/key.toml"]);
        crate::common::eventually("the server follows", || world.running.count("number") == 2);
        world
    }

    /// An invitation by the operator's command, in a file of this name; file and line.
    pub(super) fn invite(&self, file: &str, more: &[&str]) -> (PathBuf, String) {
        let base = ["cap", "invite", "--name", "customer", "--waypoint", WAYPOINT, "--config", "server/key.toml"];
        let line = self.folder.ok(&[&base, more].concat());
        self.folder.write(file, &line);
        (self.folder.0.join(file), line.trim().to_owned())
    }

    pub(super) fn list(&self, more: &[&str]) -> Value {
        let list = self.folder.ok(&[&["cap", "list", "--config", "server/key.toml", "--json"], more].concat());
        serde_json::from_str(&list).expect("JSON")
    }

    /// A value of the status page's `api`.
    pub(super) fn counted(&self, what: &str) -> u64 {
        self.running.counted("api", what)
    }

    /// A count of the status page's `connections`.
    pub(super) fn connections(&self, to: &str, what: &str) -> u64 {
        self.running.status("connections")[to][what].as_u64().expect("a number")
    }

    pub(super) fn connect(&self) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        self.connect_to(Some(self.pin))
    }

    /// A connection to whoever answers, by the pin that the server logged last if none is given.
    pub(super) fn connect_to(&self, pin: Option<KeyPin>) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let pin = pin.unwrap_or_else(|| {
            let log = self.running.log();
            let last = log.rsplit("pin=").next().and_then(|rest| rest.split_whitespace().next()).expect("a pin");
            last.parse().expect("a pin")
        });
        secured(TcpStream::connect(&self.api)?, pin)
    }

    /// A connection from this address of the loopback interface.
    pub(super) fn connect_as(&self, source: [u8; 4]) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        secured(connect_from(source, &self.api), self.pin)
    }

    /// Sends octets as they are, and gives all that comes.
    pub(super) fn raw(&self, octets: &[u8]) -> io::Result<String> {
        let mut stream = self.connect()?;
        stream.write_all(octets)?;
        stream.flush()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(text(&answer))
    }

    /// A request with more lines in its head.
    pub(super) fn request(&self, method: &str, path: &str, head: &str, body: &str) -> io::Result<Answer> {
        let length = body.len();
        let request = format!("{method} {path} HTTP/1.0\r\nHost: a\r\nContent-Length: {length}\r\n{head}\r\n{body}");
        let answer = self.raw(request.as_bytes())?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Answer { status, head: head.to_lowercase(), body: body.to_owned() })
    }

    /// A request of the operator's, or of somebody's.
    pub(super) fn call(&self, token: Option<&str>, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let head = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
        let body = body.map_or_else(String::new, Value::to_string);
        self.request(method, path, &head, &body).unwrap_or_else(|error| panic!("{error}: {}", self.running.log()))
    }

    /// A request of the operator's that must succeed.
    pub(super) fn done(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let answer = self.call(Some(&self.full), method, path, body);
        assert!((200..300).contains(&answer.status), "{method} {path}: {answer:?}");
        answer.json()
    }
}
