//! The product's console over processes in network namespaces: their status pages come to sockets in a folder, which it reads.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::netns::NetworkNamespace;

/// Where a console is unless somebody chooses.
pub const LISTEN: &str = "127.0.0.1:8470";
/// Octets that go on at once.
const PART: usize = 1 << 16;

/// The configuration of a laboratory's console; `sources` are names and where their pages are.
#[must_use]
pub fn configuration(sources: &[(String, String)], listen: SocketAddr) -> String {
    let source = |(name, at): &(String, String)| format!("\n[[source]]\nname = \"{name}\"\nat = \"{at}\"\n");
    let all: String = sources.iter().map(source).collect();
    format!("[console]\nlab = true\n{all}\n[status]\nlisten = \"{listen}\"\n")
}

/// Brings the pages at `page` of a namespace to a new socket, for as long as this process runs. There need be none yet.
///
/// # Errors
/// The socket cannot be made.
pub fn to_socket(namespace: NetworkNamespace, page: SocketAddr, socket: &Path) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    std::thread::spawn(move || {
        for reader in listener.incoming().flatten() {
            let namespace = namespace.clone();
            std::thread::spawn(move || {
                let Ok(Ok(stream)) = namespace.within(|| TcpStream::connect(page)) else { return };
                join(reader, stream);
            });
        }
    });
    Ok(())
}

/// Brings what is at `socket` to a port, for as long as this process runs. There need be nothing yet.
pub fn to_port(listener: TcpListener, socket: std::path::PathBuf) {
    std::thread::spawn(move || {
        for reader in listener.incoming().flatten() {
            let socket = socket.clone();
            std::thread::spawn(move || {
                let Ok(stream) = UnixStream::connect(socket) else { return };
                join(stream, reader);
            });
        }
    });
}

/// Copies both ways until either has ended.
fn join(local: UnixStream, remote: TcpStream) {
    let (Ok(from), Ok(to)) = (local.try_clone(), remote.try_clone()) else { return };
    let asking = std::thread::spawn(move || {
        copy(from, &to);
        let _ = to.shutdown(Shutdown::Write); // it may have ended
    });
    copy(remote, &local);
    let _ = local.shutdown(Shutdown::Both); // as above
    let _ = asking.join();
}

fn copy(mut from: impl Read, mut to: impl Write) {
    let mut part = vec![0; PART];
    while let Ok(length @ 1..) = from.read(&mut part) {
        if to.write_all(&part[..length]).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_page_comes_through_a_socket_to_a_port_and_what_ends_is_ended() {
        let folder = std::env::temp_dir().join(format!("wayleave-bring-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
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
}
