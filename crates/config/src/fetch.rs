//! Reads the status pages of a running role.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::Value;
use wayleave_runtime::http::NO_SUCH_PAGE;

use crate::failure::{Failure, Failures, Outcome};
use crate::{Source, Text, status_of};
use clap::Args;
use std::path::PathBuf;

/// A running role.
#[derive(Args, Debug, Clone)]
pub struct Target {
    /// Its status pages, such as http://127.0.0.1:8481.
    #[arg(long, conflicts_with = "config")]
    pub url: Option<String>,
    /// Its configuration, whose `[status]` names the address. Default: wayleave.toml, if it is here.
    #[arg(long, short)]
    pub config: Option<PathBuf>,
}

/// What a URL begins with that names a socket of this machine which leads to a role's pages.
const SOCKET: &str = "unix:";
/// The configuration that is taken where none is given, as `check` takes it.
const CONFIGURATION: &str = "wayleave.toml";
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest page that is read.
const MAX_OCTETS: usize = 256 << 20;
/// Octets that are read at once.
const PART: usize = 1 << 16;

/// What an answer may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// To reach the role, and for each part of its answer; zero is refused.
    pub part: Duration,
    /// From the request to the end of the answer, where it has a limit.
    pub whole: Option<Duration>,
    /// Octets of the answer, its head included.
    pub octets: usize,
}

impl Limits {
    const USUAL: Self = Self { part: TIMEOUT, whole: None, octets: MAX_OCTETS };

    /// So much time for all of it.
    #[must_use]
    pub const fn within(whole: Duration) -> Self {
        Self { part: whole, whole: Some(whole), octets: MAX_OCTETS }
    }
}

/// Why a role has not said what it was asked for.
#[derive(Debug)]
pub enum NoAnswer {
    /// Its configuration has no status pages.
    NoPages(Failure),
    /// Nothing listens where they would be: the role does not run, or has others.
    NotListening(Failure),
    /// It may run, and does not answer as it should.
    Failed(Failures),
}

impl From<NoAnswer> for Failures {
    fn from(why: NoAnswer) -> Self {
        match why {
            NoAnswer::NoPages(failure) | NoAnswer::NotListening(failure) => failure.into(),
            NoAnswer::Failed(failures) => failures,
        }
    }
}

impl From<Failure> for NoAnswer {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure.into())
    }
}

/// Reads `path` of the role that `target` names.
pub fn json(target: &Target, path: &str) -> Outcome<Value> {
    json_within(target, path, Limits::USUAL)
}

/// The same within other limits.
pub fn json_within(target: &Target, path: &str, limits: Limits) -> Outcome<Value> {
    Ok(request(target, "GET", path, limits)?)
}

/// Whom to ask why, where a role does not say.
const WHO_SAYS_WHY: &str = "a member and an attesting proxy say why of a prefix (a party does not know), a gateway and a stamper of a destination; a router counts what it \
                            drops by reason (`show status`), and a holder asks the key server by `wayleave cap status`";

/// Has the role do what `path` stands for.
///
/// # Errors
/// Why it has not, as far as that says whether it runs.
pub fn order(target: &Target, path: &str) -> Result<Value, NoAnswer> {
    order_within(target, path, Limits::USUAL)
}

/// The same within other limits.
///
/// # Errors
/// As [`order`].
pub fn order_within(target: &Target, path: &str, limits: Limits) -> Result<Value, NoAnswer> {
    request(target, "POST", path, limits)
}

/// The same with one parameter of whatever text.
///
/// # Errors
/// As [`order`].
pub fn order_with(target: &Target, path: &str, name: &str, value: &str) -> Result<Value, NoAnswer> {
    let joint = if path.contains('?') { '&' } else { '?' };
    order(target, &format!("{path}{joint}{name}={}", percent_encoded(value)))
}

/// The path of the page of one pair of parties, of a member's proxy with several; without a name that of all.
#[must_use]
pub fn of_pair(path: &str, pair: Option<&str>) -> String {
    let joint = if path.contains('?') { '&' } else { '?' };
    pair.map_or_else(|| path.to_owned(), |pair| format!("{path}{joint}pair={}", percent_encoded(pair)))
}

/// A text as a part of a URL (RFC 3986 section 2.1).
pub fn percent_encoded(text: &str) -> String {
    let octet = |octet: u8| match octet {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(octet).to_string(),
        octet => format!("%{octet:02X}"),
    };
    text.bytes().map(octet).collect()
}

fn request(target: &Target, method: &str, path: &str, limits: Limits) -> Result<Value, NoAnswer> {
    let host = host(target)?;
    let (status, body) =
        exchange(&host, method, path, limits).map_err(|error| unreachable(&address_of(&host, path), &error, limits))?;
    let value: Value = serde_json::from_str(&body).map_err(|error| {
        Failure::new(format!("what answers at {} is no role (HTTP {status}): {error}", address_of(&host, path)))
            .help("another program may listen there: compare `listen` of [status] with the role's log")
    })?;
    if status != 200 {
        let why = value["error"].as_str().unwrap_or("the role reports an error");
        if path.starts_with("/api/v1/session/") && (status, why) == (404, NO_SUCH_PAGE) {
            return Err(Failure::new("this role has no session with a router").help("ask a member's proxy").into());
        }
        if let (404, NO_SUCH_PAGE, Some(what)) = (status, why, path.strip_prefix("/api/v1/")) {
            let what = what.split('?').next().unwrap_or(what);
            let help = match what {
                "why" => WHO_SAYS_WHY,
                _ => "`wayleave help show` says which roles show what; all have `status` and `events`",
            };
            return Err(Failure::new(format!("this role does not show `{what}`")).help(help).into());
        }
        // What a role says is for people; a status alone is for whoever looks for the cause.
        let failure = match value["error"].is_string() && (400..500).contains(&status) {
            true => Failure::new(why),
            false => Failure::new(format!("{why} (HTTP {status})")),
        };
        return Err(failure.into());
    }
    Ok(value)
}

/// Where a page is, for people.
fn address_of(host: &str, path: &str) -> String {
    if host.starts_with(SOCKET) { format!("{host} {path}") } else { format!("http://{host}{path}") }
}

/// Why there is no answer, and what that says of the role.
fn unreachable(at: &str, error: &io::Error, limits: Limits) -> NoAnswer {
    let timeout = limits.whole.unwrap_or(limits.part);
    let failure = Failure::new(format!("no answer from {at}: {error}"));
    match error.kind() {
        io::ErrorKind::ConnectionRefused => NoAnswer::NotListening(failure.help("is the role running?")),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            Failure::new(format!("no answer from {at} within {} s", timeout.as_secs_f64()))
                .help("a role may be running that answers nobody, or a packet filter drops what is sent there")
                .into()
        }
        io::ErrorKind::FileTooLarge => {
            let most = limits.octets >> 20;
            Failure::new(format!("the answer from {at} is longer than {most} MiB")).help("ask for less of it").into()
        }
        io::ErrorKind::PermissionDenied => {
            failure.help("a packet filter or a sandbox refuses it: whether the role runs is not known").into()
        }
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            failure.help("something listens there that is no role, or that ended meanwhile").into()
        }
        _ => failure.help("is this the address of the role's status pages, and can it be reached from here?").into(),
    }
}

/// Host and port of the role's status pages.
fn host(target: &Target) -> Result<String, NoAnswer> {
    if let Some(url) = &target.url {
        let rest = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
        return Ok(rest.to_owned());
    }
    let usual = PathBuf::from(CONFIGURATION);
    let Some(config) = target.config.as_ref().or(Some(&usual).filter(|file| file.is_file())) else {
        return Err(Failure::usage("no role given").help(format!(
            "add --config FILE or --url http://ADDRESS:PORT; without either it is `{CONFIGURATION}` of this folder, which is not here"
        )).into());
    };
    let status = Source::read(config).map_err(Failures::from).and_then(|source| status_of(&source));
    let status = status.map_err(NoAnswer::Failed)?;
    let without = || {
        Failure::new(format!("{} has no [status] section, so that the role serves no status pages", config.display()))
            .help("add a section [status] with `listen = \"127.0.0.1:PORT\"`; `wayleave init ROLE` prints each role's usual port")
    };
    let Text(address) = status.ok_or_else(|| NoAnswer::NoPages(without()))?.listen.into_inner();
    Ok(address.to_string())
}

/// A stream whose next read or write ends after some time.
trait Stream: Read + Write {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

impl Stream for UnixStream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

fn exchange(host: &str, method: &str, path_of_page: &str, limits: Limits) -> io::Result<(u16, String)> {
    let end = limits.whole.map(|whole| Instant::now() + whole);
    if let Some(path) = host.strip_prefix(SOCKET) {
        return exchange_over(UnixStream::connect(path)?, "localhost", (method, path_of_page), limits, end);
    }
    let address = host.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
    let stream = TcpStream::connect_timeout(&address, limits.part)?;
    exchange_over(stream, host, (method, path_of_page), limits, end)
}

fn exchange_over(
    mut stream: impl Stream,
    host: &str,
    (method, path): (&str, &str),
    limits: Limits,
    end: Option<Instant>,
) -> io::Result<(u16, String)> {
    let left = || match end.map(|end| end.saturating_duration_since(Instant::now())) {
        Some(Duration::ZERO) => Err(io::Error::from(io::ErrorKind::TimedOut)),
        Some(left) => Ok(left.min(limits.part)),
        None => Ok(limits.part),
    };
    let length = if method == "GET" { "" } else { "Content-Length: 0\r\n" };
    // At once: whoever answers before it has read all of it may reset the connection.
    let head = format!("{method} {path} HTTP/1.0\r\nHost: {host}\r\n{length}Accept: application/json\r\n\r\n");
    stream.set_timeout(left()?)?;
    stream.write_all(head.as_bytes())?;
    let (mut answer, mut part) = (Vec::new(), vec![0; PART]);
    loop {
        stream.set_timeout(left()?)?;
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(length) if answer.len() + length > limits.octets => return Err(io::ErrorKind::FileTooLarge.into()),
            Ok(length) => answer.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let answer = String::from_utf8(answer).map_err(io::Error::other)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    let status = head.split_whitespace().nth(1).and_then(|word| word.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok((status, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A server that begins an answer and sends this again and again, with a pause after each.
    fn endless(part: &'static [u8], pause: Duration) -> Target {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("asked");
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n"); // who asked may have gone
            while stream.write_all(part).is_ok() {
                std::thread::sleep(pause);
            }
        });
        Target { url: Some(url), config: None }
    }

    #[test]
    fn an_answer_that_never_ends_is_given_up() {
        let limits = Limits { part: TIMEOUT, whole: Some(Duration::from_millis(300)), octets: 1 << 20 };
        let refused = |target: Target| json_within(&target, "/", limits).expect_err("no answer").0[0].to_string();
        let slow = refused(endless(b" ", Duration::from_millis(20)));
        assert!(slow.ends_with("within 0.3 s"), "{slow}");
        let limits = Limits { whole: None, ..limits };
        let long = json_within(&endless(&[b' '; 1 << 16], Duration::ZERO), "/", limits).expect_err("too long");
        assert!(long.0[0].to_string().ends_with("is longer than 1 MiB"), "{}", long.0[0]);
    }

    #[test]
    fn any_text_can_be_a_parameter() {
        assert_eq!(percent_encoded("back at 4 & more: 100%+ä\n"), "back%20at%204%20%26%20more%3A%20100%25%2B%C3%A4%0A");
    }
}
