//! Registration over a Unix socket: a user of this machine brings capabilities, and its own packets are stamped with them for as
//! long as the connection is open.
//!
//! The system says who is at the other end (`SO_PEERCRED`); nothing in the message is trusted for it. One line of JSON each way:
//! the request, and what became of it.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use wayleave_control::capability::{Credential, LookupFailure, PREFIX};
use wayleave_core::{Prefix, UnixTime};
use wayleave_dataplane::stamper::Route;
use wayleave_packet::platypus::header::offsets::MAX_CAPABILITIES;
use zeroize::Zeroizing;

use crate::failure::{Failure, Outcome};
use crate::key_files::capability::Capabilities;
use crate::roles::stamping::carriage;

/// Octets of a request: eight files of the greatest length.
const MAX_REQUEST: u64 = 4 << 20;
/// Destinations of one request.
const MAX_DESTINATIONS: usize = 64;
/// Registrations of one user at a time.
pub const MAX_OF_USER: usize = 16;
/// Connections of one user at a time: some more, so that who has too many registrations is told so.
const MAX_CONNECTIONS: usize = MAX_OF_USER + 8;
/// Connections at a time of all who may not register.
const MAX_STRANGERS: usize = 16;
/// Registrations of all users at a time, those that wait for secrets included.
pub const MAX_REGISTRATIONS: usize = 256;
/// How long a connection may take for its request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What a user asks for.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub version: u32,
    /// Final destinations.
    pub to: Vec<Prefix>,
    /// For each waypoint, in order, the content of a file of capabilities or the line of one.
    pub capabilities: Vec<Zeroizing<String>>,
    /// The route's MTU.
    pub mtu: u16,
    /// Whether packets are sent in UDP; left out if not, as an earlier stamper knows it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub udp: bool,
}

/// What became of it; an error says what to change.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    pub version: u32,
    pub error: Option<String>,
}

/// What is said last, to whoever still listens once it has said that it is done: an earlier stamper says nothing.
#[derive(Serialize, Deserialize)]
pub struct Ending {
    pub version: u32,
    /// Whether a packet, of whomever, was stamped while it was registered.
    pub stamped: bool,
}

/// A request that was read.
pub struct Registration {
    pub user: u32,
    pub to: Vec<Prefix>,
    pub capabilities: Vec<RegisteredCapability>,
    pub mtu: u16,
    pub udp: bool,
}

/// What pays at one waypoint.
pub struct RegisteredCapability {
    pub capabilities: Capabilities,
    /// The line, if the user brought that: the secrets are looked up.
    pub line: Option<Credential>,
    /// Why there is no secret, if there is none.
    pub failure: Option<LookupFailure>,
}

impl RegisteredCapability {
    fn read(text: &str, name: &str) -> Result<Self, Failure> {
        if !text.trim_start().starts_with(PREFIX) {
            return Ok(Self { capabilities: Capabilities::parse(text, name)?, line: None, failure: None });
        }
        let line: Credential = text.trim().parse().map_err(|error| Failure::new(format!("{name}: {error}")))?;
        Ok(Self { capabilities: Capabilities::of_line(&line, &[]), line: Some(line), failure: None })
    }
}

impl Registration {
    /// The route of its packets, with the keys that waypoints accept at `now`.
    pub fn route(&self, now: UnixTime) -> Route {
        Route {
            hops: self.capabilities.iter().map(|held| held.capabilities.hop_or_first(now)).collect(),
            sealed: false,
            carriage: carriage(self.udp),
            mtu: self.mtu.into(),
            only_from: None,
        }
    }

    fn read(line: &[u8], user: u32) -> Result<Self, Failure> {
        // The parser's message would quote what it read, which is secret.
        let request: Request = serde_json::from_slice(line).map_err(|_| Failure::new("the request is malformed"))?;
        let Request { version, to, capabilities, mtu, udp } = request;
        if version != 1 {
            return Err(Failure::new(format!("the request has version {version}, expected 1")));
        }
        if to.is_empty() || to.len() > MAX_DESTINATIONS {
            return Err(Failure::new(format!("expected 1 to {MAX_DESTINATIONS} destinations")));
        }
        if capabilities.is_empty() || capabilities.len() > MAX_CAPABILITIES {
            return Err(Failure::new(format!("expected 1 to {MAX_CAPABILITIES} files or lines of capabilities")));
        }
        if mtu < 576 {
            return Err(Failure::new("an MTU below 576, expected that of the path"));
        }
        let name = |index: usize| format!("file {} of the request", index + 1);
        let capabilities = capabilities.iter().enumerate();
        let capabilities = capabilities.map(|(index, text)| RegisteredCapability::read(text, &name(index)));
        Ok(Self { user, to, capabilities: capabilities.collect::<Result<_, _>>()?, mtu, udp })
    }
}

/// What happens at the socket.
pub enum Registered {
    /// A user asks for this; the number stands for the connection.
    Begun(u64, Registration, oneshot::Sender<Result<(), String>>),
    /// The other end has nothing more to say; whether a packet was stamped meanwhile, if it was registered.
    Ended(u64, oneshot::Sender<bool>),
}

/// The socket, until it is dropped.
pub struct Socket {
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Socket {
    /// Listens at `path` for the users in `users`, and for root.
    pub fn listen(path: PathBuf, users: Vec<u32>, events: mpsc::Sender<Registered>) -> Outcome<Self> {
        let failed = |error: io::Error| {
            let failure = Failure::system(format!("cannot listen at {}", path.display()), &error);
            match error.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound | io::ErrorKind::ReadOnlyFilesystem => failure.help(
                    "`socket` in [host] has to lie in a folder in which the role may write: the unit wayleave-stamper@NAME makes \
                     /run/wayleave/NAME for it",
                ),
                _ => failure,
            }
        };
        remove_stale(&path).map_err(failed)?;
        let listener = UnixListener::bind(&path).map_err(failed)?;
        // Whoever may open it is told by the system, and the others are refused.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).map_err(failed)?;
        let task = tokio::spawn(accept(listener, users.into(), events));
        Ok(Self { path, task })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes a socket that an earlier process left; nothing else.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(data) if data.file_type().is_socket() => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

async fn accept(listener: UnixListener, users: Arc<[u32]>, events: mpsc::Sender<Registered>) {
    let numbers = AtomicU64::new(0);
    // Each user has places of its own, so that nobody keeps another out.
    let of_user = |user: &u32| (*user, Arc::new(Semaphore::new(MAX_CONNECTIONS)));
    let places: BTreeMap<u32, Arc<Semaphore>> = users.iter().chain([&0]).map(of_user).collect();
    let strangers = Arc::new(Semaphore::new(MAX_STRANGERS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, for instance.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(user) = stream.peer_cred().map(|peer| peer.uid()) else { continue };
        let own = places.get(&user);
        // Who has no place is not told why: that would need one.
        let Ok(place) = Arc::clone(own.unwrap_or(&strangers)).try_acquire_owned() else { continue };
        let (may, events) = (own.is_some(), events.clone());
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let _ = serve(stream, number, (user, may), &events).await;
            drop(place);
        });
    }
}

async fn serve(
    stream: UnixStream,
    number: u64,
    (user, may): (u32, bool),
    events: &mpsc::Sender<Registered>,
) -> io::Result<()> {
    let (reading, mut writing) = stream.into_split();
    let mut reading = BufReader::new(reading);
    let mut line = Zeroizing::new(Vec::new());
    let outcome = if !may {
        Err(format!("user {user} may not register: `users` in [host] names those who may"))
    } else {
        let mut limited = (&mut reading).take(MAX_REQUEST);
        tokio::time::timeout(TIMEOUT, limited.read_until(b'\n', &mut line)).await??;
        match Registration::read(&line, user) {
            Ok(registration) => {
                let (to, answer) = oneshot::channel();
                if events.send(Registered::Begun(number, registration, to)).await.is_err() {
                    return Ok(());
                }
                answer.await.unwrap_or_else(|_| Err("the stamper is stopping".to_owned()))
            }
            Err(failure) => Err(failure.to_string()),
        }
    };
    let is_registered = outcome.is_ok();
    let answer = serde_json::to_string(&Answer { version: 1, error: outcome.err() }).unwrap_or_default();
    let written = writing.write_all(format!("{answer}\n").as_bytes()).await;
    if is_registered {
        // Until the other end closes; it has nothing more to say.
        if written.is_ok() {
            let _ = reading.read(&mut [0; 1]).await;
        }
        let (to, stamped) = oneshot::channel();
        let _ = events.send(Registered::Ended(number, to)).await;
        if let Ok(stamped) = stamped.await {
            let ending = serde_json::to_string(&Ending { version: 1, stamped }).unwrap_or_default();
            let _ = writing.write_all(format!("{ending}\n").as_bytes()).await; // fails if the user has gone
        }
    } else {
        // What a refused user still sends is read and forgotten: closing over it would take the reason from it.
        let mut rest = reading.take(MAX_REQUEST);
        let _ = tokio::time::timeout(TIMEOUT, tokio::io::copy_buf(&mut rest, &mut tokio::io::sink())).await;
    }
    Ok(())
}
