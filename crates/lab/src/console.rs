//! The product's console over processes in network namespaces: their status pages come to sockets in a folder, which it reads.

pub mod attacks;
pub mod experiments;
pub mod front;

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::netns::NetworkNamespace;

/// Where a console is unless somebody chooses.
pub const LISTEN: &str = "127.0.0.1:8470";
/// Octets that go on at once.
const PART: usize = 1 << 16;
/// Connections through one socket or port at a time; one more is closed.
const MAX_CONNECTIONS: usize = 64;
/// How long to reach the pages, and how long an answer may say nothing: a stream says something every 15 s.
const CONNECT: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(60);
/// Pause after a connection could not be taken, as where too many files are open.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a console may take for an answer, and its octets.
const ANSWER: Duration = Duration::from_secs(5);
const MAX_ANSWER: u64 = 16 << 20;
/// The longest path of a socket (unix(7)), its final zero left out.
const MAX_PATH: usize = 107;
/// Octets of what follows the name of a folder in the path of a socket: random digits, the longest name, and what is between them.
const MAX_IN_FOLDER: usize = 88;
/// Folders that a laboratory's processes have of their own.
const HIDDEN: [&str; 2] = ["/run", "/var/tmp"];

/// The configuration of a laboratory's console; `sources` are names and where their pages are, `token` is a file.
#[must_use]
pub fn configuration(sources: &[(String, String)], listen: SocketAddr, token: &Path) -> String {
    let text = |value: &str| toml::Value::from(value).to_string();
    let source = |(name, at): &(String, String)| format!("\n[[source]]\nname = {}\nat = {}\n", text(name), text(at));
    let all: String = sources.iter().map(source).collect();
    let token = text(&token.to_string_lossy());
    format!("[console]\nlab = true\ntoken = {token}\n{all}\n[status]\nlisten = \"{listen}\"\n")
}

/// Writes a new token to a file that only its owner can read.
///
/// # Errors
/// The file is there already, or cannot be written.
pub fn new_token(file: &Path) -> io::Result<String> {
    let token = random::<32>()?;
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?.write_all(token.as_bytes())?;
    Ok(token)
}

/// Makes a folder for its owner alone, of a name that nobody can guess, where whoever is in a laboratory's namespaces sees it too.
///
/// # Errors
/// It cannot be made.
pub fn new_folder(name: &str) -> io::Result<PathBuf> {
    let usual = std::env::temp_dir();
    let is_fit = usual.is_absolute()
        && !HIDDEN.iter().any(|hidden| usual.starts_with(hidden))
        && usual.as_os_str().len() + name.len() + MAX_IN_FOLDER <= MAX_PATH;
    let parent = if is_fit { usual } else { PathBuf::from("/tmp") };
    let folder = parent.join(format!("{name}-{}", random::<8>()?));
    DirBuilder::new().mode(0o700).create(&folder)?;
    Ok(folder)
}

/// Whether sockets can be in a folder: their paths have a limit.
#[must_use]
pub fn takes_sockets(folder: &Path, names: &[&str]) -> bool {
    let longest = names.iter().map(|name| name.len() + "/.sock".len()).max().unwrap_or_default();
    folder.as_os_str().as_bytes().len() + longest <= MAX_PATH
}

/// Randomness of the system, as hexadecimal digits.
fn random<const N: usize>() -> io::Result<String> {
    let mut octets = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut octets)?;
    Ok(octets.iter().map(|octet| format!("{octet:02x}")).collect())
}

/// What a browser at a console is given: it opens the page with the token, and then asks with its cookie.
///
/// # Errors
/// Nothing answers there, or no console with this token.
pub fn ask(console: SocketAddr, token: &str, path: &str) -> io::Result<String> {
    let cookie = cookie(console, token)?;
    let (head, body) = exchange(console, path, &format!("Cookie: {cookie}\r\n"))?;
    match head.split_whitespace().nth(1) {
        Some("200") => Ok(body),
        status => Err(io::Error::other(format!("{path}: {} {body}", status.unwrap_or_default()))),
    }
}

/// The cookie that a console gives for its token.
///
/// # Errors
/// Nothing answers there, or no console with this token.
pub fn cookie(console: SocketAddr, token: &str) -> io::Result<String> {
    let (head, _) = exchange(console, &format!("/?token={token}"), "")?;
    let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")?.split(';').next());
    cookie.map(str::to_owned).ok_or_else(|| io::Error::other("what answers there is no console with this token"))
}

fn exchange(console: SocketAddr, path: &str, more: &str) -> io::Result<(String, String)> {
    let mut stream = TcpStream::connect_timeout(&console, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {console}\r\n{more}\r\n")?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    Ok((head.to_owned(), body.to_owned()))
}

/// Whether a console answers there that has this token and shows these places and no others.
#[must_use]
pub fn shows(console: SocketAddr, token: &str, sources: &[(String, String)]) -> bool {
    let Ok(answer) = ask(console, token, "/api/v1/sources") else { return false };
    let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
    let shown = answer["sources"].as_array().into_iter().flatten().map(|source| source["at"].as_str());
    shown.eq(sources.iter().map(|(_, at)| Some(at.as_str())))
}

/// Brings the pages at `page` of a namespace to a new socket, for as long as this process runs. There need be none yet.
///
/// # Errors
/// The socket cannot be made.
pub fn to_socket(namespace: NetworkNamespace, page: SocketAddr, socket: &Path) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    relay(
        move || listener.accept().map(|(asker, _)| asker),
        move || namespace.within(|| TcpStream::connect_timeout(&page, CONNECT))?,
    );
    Ok(())
}

/// Brings what is at `socket` to a port, for as long as this process runs. There need be nothing yet.
pub fn to_port(listener: TcpListener, socket: PathBuf) {
    relay(move || listener.accept().map(|(asker, _)| asker), move || UnixStream::connect(&socket));
}

/// A connection of either kind.
trait Stream: Read + Write + Send + Sized + 'static {
    fn again(&self) -> io::Result<Self>;
    fn limit(&self, silence: Duration) -> io::Result<()>;
    fn end(&self, how: Shutdown);
}

macro_rules! stream {
    ($kind:ident) => {
        impl Stream for $kind {
            fn again(&self) -> io::Result<Self> {
                self.try_clone()
            }

            fn limit(&self, silence: Duration) -> io::Result<()> {
                self.set_read_timeout(Some(silence))?;
                self.set_write_timeout(Some(silence))
            }

            fn end(&self, how: Shutdown) {
                let _ = self.shutdown(how); // it may have ended
            }
        }
    };
}

stream!(TcpStream);
stream!(UnixStream);

/// Joins each connection that is taken to one of its own.
fn relay<A: Stream, B: Stream>(
    accept: impl Fn() -> io::Result<A> + Send + 'static,
    connect: impl Fn() -> io::Result<B> + Send + Sync + 'static,
) {
    answer_each(accept, move |asker| {
        let _ = connect().and_then(|answerer| join(asker, answerer)); // who asked sees that it ends
    });
}

/// Answers each connection that is taken on a thread of its own.
fn answer_each<A: Stream>(
    accept: impl Fn() -> io::Result<A> + Send + 'static,
    answer: impl Fn(A) + Send + Sync + 'static,
) {
    let (answer, count) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
    std::thread::spawn(move || {
        loop {
            let Ok(asker) = accept() else {
                std::thread::sleep(PAUSE);
                continue;
            };
            if count.load(Ordering::Relaxed) >= MAX_CONNECTIONS {
                continue;
            }
            count.fetch_add(1, Ordering::Relaxed);
            let (answer, count) = (Arc::clone(&answer), Arc::clone(&count));
            std::thread::spawn(move || {
                answer(asker);
                count.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
}

/// Copies both ways until the answer has ended or is silent for too long. Who asks may be silent as long as that takes.
fn join<A: Stream, B: Stream>(asker: A, answerer: B) -> io::Result<()> {
    asker.limit(SILENCE)?;
    answerer.limit(SILENCE)?;
    let (from, mut to, has_ended) = (asker.again()?, answerer.again()?, Arc::new(AtomicBool::new(false)));
    let ended = Arc::clone(&has_ended);
    let asking = std::thread::spawn(move || {
        copy(from, &mut to, || !ended.load(Ordering::Relaxed));
        to.end(Shutdown::Write);
    });
    copy(answerer.again()?, &mut asker.again()?, || false);
    has_ended.store(true, Ordering::Relaxed);
    asker.end(Shutdown::Both);
    answerer.end(Shutdown::Both);
    let _ = asking.join();
    Ok(())
}

/// Copies until the end. `may_be_silent` says whether to go on where nothing has come for long.
fn copy(mut from: impl Read, to: &mut impl Write, may_be_silent: impl Fn() -> bool) {
    let mut part = vec![0; PART];
    loop {
        match from.read(&mut part) {
            Ok(0) => return,
            Ok(length) if to.write_all(&part[..length]).is_err() => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                if !may_be_silent() {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_page_comes_through_a_socket_to_a_port_and_what_ends_is_ended() {
        let folder = new_folder("wayleave-bring").expect("a folder");
        let socket = folder.join("page.sock");
        let page = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let at = port.local_addr().expect("bound");
        to_socket(NetworkNamespace::Own, page.local_addr().expect("bound"), &socket).expect("a socket");
        to_port(port, socket);
        std::thread::spawn(move || {
            for mut reader in page.incoming().flatten() {
                let mut asked = [0; 4];
                reader.read_exact(&mut asked).expect("asked");
                reader.write_all(&asked.repeat(100_000)).expect("answered");
            }
        });
        for _ in 0..2 {
            let mut stream = TcpStream::connect(at).expect("connected");
            stream.write_all(b"page").expect("asked");
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).expect("answered");
            assert!(answer == b"page".repeat(100_000));
        }
        std::fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn a_folder_and_a_token_are_their_owners_alone() {
        let folder = new_folder("wayleave-own").expect("a folder");
        let file = folder.join("console.token");
        let token = new_token(&file).expect("a token");
        assert!(token.len() == 64 && token != new_token(&folder.join("other")).expect("a token"));
        let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&file)), (0o700, 0o600));
        assert!(new_token(&file).is_err(), "it is there already");
        std::fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn any_path_is_written_as_it_is_and_one_that_is_too_long_is_known() {
        let at = "unix:/a \"b\"\\c\n.sock".to_owned();
        let listen = LISTEN.parse().expect("an address");
        let text = configuration(&[("alpha".to_owned(), at.clone())], listen, Path::new("/t\"oken"));
        let file: toml::Table = text.parse().expect("TOML");
        assert_eq!(file["source"][0]["at"].as_str(), Some(at.as_str()));
        assert_eq!(file["console"]["token"].as_str(), Some("/t\"oken"));
        let long = Path::new("/").join("x".repeat(99));
        assert!(takes_sockets(&long, &["a"]) && !takes_sockets(&long, &["a", "bb"]));
    }
}
