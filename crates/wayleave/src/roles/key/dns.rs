//! Questions by UDP and by TCP (RFC 1035 section 4.2, RFC 7766).

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use wayleave_control::capability::{Client, Transport};
use wayleave_runtime::Clock;

use super::core::{Core, lock};
use crate::failure::Failure;

/// Octets of a question.
const LONGEST: usize = 4_096;
/// Datagrams that are answered before other tasks have their turn.
const BURST: usize = 64;
/// Connections at a time, questions on one, and how long one may be silent.
const CONNECTIONS: usize = 512;
const QUESTIONS: usize = 1_000;
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers datagrams for ever.
pub async fn answer_datagrams(socket: UdpSocket, core: Arc<Mutex<Core>>, clock: Clock, failed: mpsc::Sender<Failure>) {
    let mut octets = vec![0; LONGEST];
    let mut answers: Vec<(SocketAddr, Vec<u8>)> = Vec::new();
    loop {
        // An error is that of an answer that could not be delivered.
        let Ok((length, from)) = socket.recv_from(&mut octets).await else { continue };
        let mut failure = None;
        {
            let mut core = lock(&core);
            let mut next = Some((length, from));
            while let Some((length, from)) = next.take() {
                let client = Client { address: from.ip().to_canonical(), transport: Transport::Udp };
                match core.answer(&octets[..length], client, clock.now()) {
                    Ok(answer) => answers.extend(answer.map(|answer| (from, answer))),
                    Err(error) => failure = Some(error),
                }
                if answers.len() < BURST {
                    next = socket.try_recv_from(&mut octets).ok();
                }
            }
        }
        for (to, answer) in answers.drain(..) {
            // A full queue loses the answer, as the network may; who asks repeats.
            let _ = socket.try_send_to(&answer, to);
        }
        if let Some(failure) = failure {
            let _ = failed.send(failure).await; // fails if the role has stopped
            return;
        }
    }
}

/// Accepts connections for ever.
pub async fn answer_connections(
    listener: TcpListener,
    core: Arc<Mutex<Core>>,
    clock: Clock,
    failed: mpsc::Sender<Failure>,
) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let Ok((stream, from)) = listener.accept().await else {
            // Out of descriptors: the oldest connections end within the time for which one may be silent.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (core, failed) = (Arc::clone(&core), failed.clone());
        tokio::spawn(async move {
            if let Err(Some(failure)) = answer_stream(stream, from, &core, clock).await {
                let _ = failed.send(failure).await; // fails if the role has stopped
            }
            drop(permit);
        });
    }
}

/// Answers the questions of one connection; an error without a failure is the client's.
async fn answer_stream(
    mut stream: TcpStream,
    from: SocketAddr,
    core: &Mutex<Core>,
    clock: Clock,
) -> Result<(), Option<Failure>> {
    let client = Client { address: from.ip().to_canonical(), transport: Transport::Tcp };
    let mut octets = vec![0; LONGEST];
    for _ in 0..QUESTIONS {
        let question = timeout(PATIENCE, async {
            let length = usize::from(stream.read_u16().await.ok()?);
            let question = octets.get_mut(..length)?;
            stream.read_exact(question).await.ok()?;
            Some(length)
        });
        let length = question.await.ok().flatten().ok_or(None)?;
        let answer = lock(core).answer(&octets[..length], client, clock.now());
        let Some(answer) = answer.map_err(Some)? else { return Ok(()) };
        let mut whole = (answer.len() as u16).to_be_bytes().to_vec(); // at most 65,535
        whole.extend_from_slice(&answer);
        let written = timeout(PATIENCE, stream.write_all(&whole)).await;
        written.map_err(|_| None)?.map_err(|_| None)?;
    }
    Ok(())
}
