//! A BGP peer that never reads costs nothing once its connection is closed.
#![allow(clippy::disallowed_methods, reason = "a test counts its own descriptors and waits")]

use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use tokio::sync::mpsc;
use wayleave_runtime::bgp_tcp::{Sockets, TcpEvent, TcpOptions};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("the kernel lists them").count()
}

/// Set in the process that runs [`child`] as a test.
const CHILD: &str = "WAYLEAVE_DEAF_PEER_CHILD";

/// Runs [`child`] in a process of its own: descriptors of tests that run at the same time would be counted as well.
#[test]
fn a_connection_that_is_closed_while_a_write_is_stuck_gives_its_descriptor_back() {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    let status = command.args(["deaf_peer::child", "--exact", "--nocapture"]).env(CHILD, "1").status();
    assert!(status.expect("a child").success());
}

/// Does nothing unless [`CHILD`] is set.
#[tokio::test]
async fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let (to, mut events) = mpsc::channel(8);
    let mut sockets = Sockets::new(to, TcpOptions::default());
    let address = sockets.listen("127.0.0.1:0".parse().expect("an address")).await.expect("listening");
    let before = descriptors();
    let peer = TcpStream::connect(address).expect("connected");
    let Some(TcpEvent::Accepted { connection, .. }) = events.recv().await else { panic!("accepted") };
    for _ in 0..64 {
        sockets.send(connection, vec![0; 1 << 20]); // more than the kernel takes
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(descriptors(), before + 2);
    sockets.close(connection);
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if descriptors() == before + 1 {
            drop(peer);
            return;
        }
    }
    panic!("the descriptor is still open");
}
