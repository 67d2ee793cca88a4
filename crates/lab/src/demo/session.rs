//! What crosses the demonstration's overlay: `ssh` to an OpenSSH server, or, where that is not to be had, `curl` to a TCP server
//! of our own that runs a line as sshd does.

use std::io::{self, Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::netns::NetworkNamespace;
use crate::overlay::Overlay;
use crate::process::Daemon;
use crate::routers::Installation;

/// Where the server of our own listens.
pub(super) const PORT: u16 = 8_022;
/// Octets of a request, at most.
const MOST_OCTETS: usize = 8_192;

/// Client and server of the sessions from gateway a to gateway b.
pub(super) enum Session {
    Ssh {
        client: Installation,
        sshd: Daemon,
        /// Who logs in.
        user: &'static str,
        /// With which key.
        key: PathBuf,
    },
    Curl {
        client: Installation,
        /// Why it is not `ssh`.
        reason: String,
    },
}

impl Session {
    /// The client's name.
    pub(super) fn client(&self) -> &'static str {
        match self {
            Self::Ssh { .. } => "ssh",
            Self::Curl { .. } => "curl",
        }
    }

    /// What a step says that is played with a stand-in; nothing with `ssh`.
    pub(super) fn stand_in(&self) -> Option<&'static str> {
        match self {
            Self::Ssh { .. } => None,
            Self::Curl { .. } => Some("curl and a TCP server of our own stand in for ssh"),
        }
    }

    /// Why it is not `ssh`.
    pub(super) fn reason(&self) -> Option<&str> {
        match self {
            Self::Ssh { .. } => None,
            Self::Curl { reason, .. } => Some(reason),
        }
    }

    /// The last lines of the server.
    pub(super) fn log_tail(&self) -> String {
        match self {
            Self::Ssh { sshd, .. } => sshd.log_tail(5),
            Self::Curl { .. } => String::new(),
        }
    }

    pub(super) fn stop(&mut self) {
        if let Self::Ssh { sshd, .. } = self {
            sshd.kill();
        }
    }

    /// A command at a that runs `line` at the host with this name.
    pub(super) fn command(&self, overlay: &Overlay, name: &str, line: &str) -> Command {
        match self {
            Self::Ssh { client, user, key, .. } => {
                let mut command = overlay.command("a", client.program("ssh"));
                client.prepare(&mut command);
                command.arg("-i").arg(key);
                for option in [
                    "StrictHostKeyChecking=no",
                    "UserKnownHostsFile=/dev/null",
                    "LogLevel=ERROR",
                    "ConnectTimeout=20",
                    "BatchMode=yes",
                ] {
                    command.args(["-o", option]);
                }
                command.args(["-4", &format!("{user}@{name}"), line]);
                command
            }
            Self::Curl { client, .. } => {
                let mut command = overlay.command("a", client.program("curl"));
                client.prepare(&mut command);
                command.args(["-4", "--silent", "--show-error", "--no-buffer", "--connect-timeout", "20"]);
                command.args(["--noproxy", "*", "--data-binary", line, &format!("http://{name}:{PORT}/")]);
                command
            }
        }
    }
}

/// Runs the line of each request and answers with what it prints while it prints it, for as long as this process lives. Returns
/// where it listens.
pub(super) fn serve(place: &NetworkNamespace, at: SocketAddr) -> io::Result<SocketAddr> {
    let listener = place.within(|| TcpListener::bind(at))??;
    let at = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    Ok(at)
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    let line = request(&mut stream)?;
    let (peer, own) = (stream.peer_addr()?, stream.local_addr()?);
    // As sshd tells a session who came from where.
    let connection = format!("{} {} {} {}", peer.ip(), peer.port(), own.ip(), own.port());
    let mut command = Command::new("sh");
    command.args(["-c", &line]).env("SSH_CONNECTION", connection).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut shell = command.spawn()?;
    // The answer ends with the connection.
    write!(stream, "HTTP/1.0 200 OK\r\n\r\n")?;
    let passed_on = shell.stdout.take().map_or(Ok(0), |mut printed| io::copy(&mut printed, &mut stream));
    let _ = shell.kill(); // fails if it has ended
    shell.wait()?;
    passed_on.map(drop)
}

/// The body of a request.
fn request(stream: &mut impl Read) -> io::Result<String> {
    let (mut octets, mut part) = (Vec::new(), [0; 1_024]);
    while octets.len() < MOST_OCTETS {
        let text = String::from_utf8_lossy(&octets);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let mut fields = head.lines().filter_map(|line| line.split_once(':'));
            let length = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
            let length = length.and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0);
            if body.len() >= length {
                return Ok(body.to_owned());
            }
        }
        match stream.read(&mut part)? {
            0 => break,
            length => octets.extend_from_slice(&part[..length]),
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_of_our_own_runs_a_line_as_sshd_does() {
        let at = serve(&NetworkNamespace::Own, ([127, 0, 0, 1], 0).into()).expect("a port");
        let line = "echo $SSH_CONNECTION; for n in $(seq 3); do echo $n; done";
        let mut stream = TcpStream::connect(at).expect("connected");
        write!(stream, "POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n{line}", line.len()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("read");
        let from = stream.local_addr().expect("an address");
        let expected = format!("{} {} {} {}\n1\n2\n3\n", from.ip(), from.port(), at.ip(), at.port());
        assert_eq!(answer.split_once("\r\n\r\n").map(|(_, body)| body), Some(&*expected));
    }

    #[test]
    fn a_request_without_an_end_has_no_line() {
        assert!(request(&mut &b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\ntrue"[..]).is_err());
        assert!(request(&mut &[b'x'; 2 * MOST_OCTETS][..]).is_err());
    }
}
