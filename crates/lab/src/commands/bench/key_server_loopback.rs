//! What a key server answers by UDP over loopback: the loop of the role, in a thread of its own, asked by another.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wayleave_control::capability::{Client, KeyServer, Served, Transport};
use wayleave_core::Now;
use wayleave_runtime::packets::requests::RequestBatch;
use wayleave_runtime::packets::udp::Udp;
use wayleave_runtime::packets::{Burst, Outgoing, Port, wait};

use super::key_server::{bug, processor_time};
use wayleave_config::failure::{Failure, Outcome};

/// Questions without an answer, at most: as many as several resolvers have on their way.
const OUTSTANDING: u64 = 512;
/// Questions that are sent at once.
const AT_ONCE: u64 = 64;
/// After this the questions on their way are lost.
const TIMEOUT: Duration = Duration::from_millis(200);

/// Seconds of a processor for each answer to `count` questions, taken from `questions` in turn.
pub fn seconds_per_answer(server: &mut KeyServer, questions: &[Vec<u8>], count: u64, now: Now) -> Outcome<f64> {
    let failed = |error| Failure::system("cannot measure over loopback", &error);
    let open = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(Udp::of).map_err(failed);
    let (mut port, mut client) = (open()?, open()?);
    let to = port.address().map_err(failed)?;
    let answered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask(&mut client, to, questions, &answered, count).map_err(failed));
        let (mut batch, mut sent) = (RequestBatch::default(), 0);
        let begin = processor_time();
        while answered.load(Ordering::Relaxed) < count && !asking.is_finished() {
            wait(std::iter::once(&port as &dyn Port), TIMEOUT).map_err(failed)?;
            if port.receive(&mut batch.requests).unwrap_or(0) == 0 {
                continue;
            }
            batch.answer(|octets, from| {
                let client = Client { address: from.ip(), transport: Transport::Udp };
                let Served::Reply(answer) = server.serve(octets, client, now) else { return None };
                sent += 1;
                Some(answer)
            });
            batch.send(&mut port);
        }
        let spent = processor_time().saturating_sub(begin);
        asking.join().map_err(|_| bug())??;
        Ok(spent.as_secs_f64() / f64::from(sent))
    })
}

/// Asks until there are so many answers.
fn ask(port: &mut Udp, to: SocketAddr, questions: &[Vec<u8>], answered: &AtomicU64, count: u64) -> std::io::Result<()> {
    let (mut answers, mut burst, mut out) = (Burst::default(), Burst::default(), Vec::new());
    let mut next = questions.iter().cycle();
    let (mut sent, mut lost) = (0, 0);
    while answered.load(Ordering::Relaxed) < count {
        let waiting = sent - lost - answered.load(Ordering::Relaxed);
        if waiting + AT_ONCE <= OUTSTANDING {
            burst.clear();
            out.clear();
            for (packet, question) in (0..AT_ONCE as u32).zip(next.by_ref()) {
                burst.push(question, to);
                out.push(Outgoing { packet, to });
            }
            sent += port.send(&burst, &out)? as u64;
        } else {
            wait(std::iter::once(&*port as &dyn Port), TIMEOUT)?;
        }
        match port.receive(&mut answers)? as u64 {
            0 if waiting + AT_ONCE > OUTSTANDING => lost += waiting,
            received => drop(answered.fetch_add(received, Ordering::Relaxed)),
        }
    }
    Ok(())
}
