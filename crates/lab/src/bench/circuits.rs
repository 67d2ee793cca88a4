//! `bench select-best` and `bench export-all --mode mpc`: a circuit evaluated by two threads over loopback TCP.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use thiserror::Error;
use wayleave_mpc::{BitRows, Counts, DEFAULT_CHUNK, Link, Role, Share, reveal};
use wayleave_papers::bench::circuits::{End, Workload};
use wayleave_papers::report::{Report, mean, seconds};

/// Both sides write and read in turns of at most so many octets, which the sockets' buffers hold.
const TURN: usize = 1 << 16;

/// One end of a link over loopback TCP. Where it has a delay, what is sent carries the time at which it was, and counts as received so much
/// later.
pub(super) struct Loopback {
    stream: TcpStream,
    /// A time that both ends know, and the delay.
    delay: Option<(Instant, Duration)>,
}

/// How long before a delay is over a thread stops sleeping, since it may wake late.
const AWAKE: Duration = Duration::from_micros(150);

impl Loopback {
    /// Both ends.
    pub(super) fn pair(delay: Option<Duration>) -> io::Result<[Self; 2]> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let streams = [TcpStream::connect(listener.local_addr()?)?, listener.accept()?.0];
        let delay = delay.filter(|delay| !delay.is_zero()).map(|delay| (Instant::now(), delay));
        for stream in &streams {
            stream.set_nodelay(true)?;
        }
        Ok(streams.map(|stream| Self { stream, delay }))
    }

    fn send_time(&mut self, begin: Instant) -> io::Result<()> {
        let nanos = u64::try_from(begin.elapsed().as_nanos()).map_err(io::Error::other)?;
        self.stream.write_all(&nanos.to_be_bytes())
    }

    fn wait(&mut self, begin: Instant, delay: Duration, sent: [u8; 8]) {
        let due = begin + Duration::from_nanos(u64::from_be_bytes(sent)) + delay;
        loop {
            let left = due.saturating_duration_since(Instant::now());
            match left.checked_sub(AWAKE) {
                _ if left.is_zero() => return,
                Some(sleep) => thread::sleep(sleep),
                None => thread::yield_now(),
            }
        }
    }
}

impl Link for Loopback {
    type Error = io::Error;

    fn exchange(&mut self, message: &[u8], answer: &mut [u8]) -> io::Result<()> {
        let is_answered = !answer.is_empty();
        let mut sent_at = [0; 8];
        if let Some((begin, _)) = self.delay {
            if !message.is_empty() {
                self.send_time(begin)?;
            }
            if is_answered {
                self.stream.read_exact(&mut sent_at)?;
            }
        }
        let (mut out, mut into) = (message.chunks(TURN), answer.chunks_mut(TURN));
        loop {
            let (sent, read) = (out.next(), into.next());
            if sent.is_none() && read.is_none() {
                break;
            }
            if let Some(sent) = sent {
                self.stream.write_all(sent)?;
            }
            if let Some(read) = read {
                self.stream.read_exact(read)?;
            }
        }
        if let Some((begin, delay)) = self.delay.filter(|_| is_answered) {
            self.wait(begin, delay, sent_at);
        }
        Ok(())
    }
}

/// What one party measured.
struct Party {
    link: Duration,
    setup: Vec<Duration>,
    /// Processor time of each setup.
    setup_processor: Vec<Duration>,
    online: Vec<Duration>,
    /// Sent by this party in each repetition.
    setup_bytes: Vec<usize>,
    online_counts: Counts,
    memory: usize,
    outputs: BitRows,
}

/// Why a circuit could not be measured.
#[derive(Debug, Error)]
pub enum CircuitError {
    #[error("loopback TCP: {0}")]
    Loopback(#[from] io::Error),
    /// An evaluation failed at one party, with its cause.
    #[error("{0}")]
    Party(String),
    #[error("party 1's thread panicked")]
    Panicked,
    #[error("the result differs from the plaintext oracle")]
    Differs,
}

/// Sets up and evaluates `workload` at both parties `repetitions` times, and compares the outputs with the plaintext
/// oracle. What one sends reaches the other `delay` later.
///
/// # Errors
/// If the loopback link or the evaluation fails, or the outputs are wrong.
pub fn measure(
    name: &'static str,
    params: Value,
    workload: &Workload,
    repetitions: usize,
    delay: Option<Duration>,
) -> Result<Report, CircuitError> {
    let [one, two] = Loopback::pair(delay)?;
    let other = workload.clone();
    let first = thread::spawn(move || party(Role::Party1, other, repetitions, one));
    let two = party(Role::Party2, workload.clone(), repetitions, two).map_err(CircuitError::Party)?;
    let one = first.join().map_err(|_| CircuitError::Panicked)?.map_err(CircuitError::Party)?;
    let outputs = reveal(&Share::new(one.outputs), &Share::new(two.outputs));
    if outputs != Some(workload.expected()) {
        return Err(CircuitError::Differs);
    }
    let mut report = Report::new(name, params);
    report.add("online", "s", &seconds(&two.online));
    // Setup works in chunks, and the next repetition uses what one leaves over: the mean is the cost of a repetition.
    report.summary("setup", "s", &seconds(&two.setup), mean(&seconds(&two.setup)));
    let processor: Vec<Duration> = one.setup_processor.iter().zip(&two.setup_processor).map(|(a, b)| *a + *b).collect();
    report.summary("processor_setup", "s", &seconds(&processor), mean(&seconds(&processor)));
    report.exact("bytes_online", "bytes", (one.online_counts.bytes_sent + two.online_counts.bytes_sent) as f64);
    let setup_bytes: Vec<f64> = one.setup_bytes.iter().zip(&two.setup_bytes).map(|(a, b)| (a + b) as f64).collect();
    report.summary("bytes_setup", "bytes", &setup_bytes, mean(&setup_bytes));
    report.exact("rounds", "count", two.online_counts.rounds as f64);
    report.exact("memory", "bytes", two.memory.max(one.memory) as f64);
    report.exact("link", "s", two.link.as_secs_f64());
    Ok(report)
}

fn party(role: Role, workload: Workload, repetitions: usize, link: Loopback) -> Result<Party, String> {
    let mut end = End::new(role, workload, [role.number(); 32], DEFAULT_CHUNK, link);
    let start = Instant::now();
    end.link().map_err(|error| error.to_string())?;
    let link = start.elapsed();
    let (mut setup, mut setup_bytes, mut online, mut last) = (Vec::new(), Vec::new(), Vec::new(), None);
    let mut setup_processor = Vec::new();
    for _ in 0..repetitions {
        let (start, worked) = (Instant::now(), processor_time());
        let setup_counts = end.set_up().map_err(|error| error.to_string())?;
        setup_processor.push(processor_time().saturating_sub(worked));
        let ready = Instant::now();
        let (outputs, online_counts) = end.evaluate().map_err(|error| error.to_string())?;
        online.push(ready.elapsed());
        setup.push(ready - start);
        setup_bytes.push(setup_counts.bytes_sent);
        last = Some((outputs, online_counts));
    }
    let (outputs, online_counts) = last.ok_or("no repetition")?;
    Ok(Party { link, setup, setup_processor, online, setup_bytes, online_counts, memory: end.memory(), outputs })
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
