//! Times Select-Best over a loopback TCP link, both parties as threads of this process.
//!
//! `cargo run --release -p wayleave-mpc --example select_best -- [MEMBERS] [ROUTES] [REPETITIONS] [CHUNK] [index|key]`
#![allow(clippy::disallowed_methods, reason = "a measuring program has clocks, threads and sockets")]

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use wayleave_mpc::bench::{End, Workload};
use wayleave_mpc::circuits::SelectBest;
use wayleave_mpc::{BitRows, Counts, Link, Role, Share, reveal};

/// A socket on which both sides write and read in turns of at most `TURN` bytes, which its buffers hold.
struct Tcp(TcpStream);

const TURN: usize = 1 << 16;

impl Link for Tcp {
    type Error = io::Error;

    fn exchange(&mut self, message: &[u8], answer: &mut [u8]) -> io::Result<()> {
        let (mut out, mut into) = (message.chunks(TURN), answer.chunks_mut(TURN));
        loop {
            let (sent, read) = (out.next(), into.next());
            if sent.is_none() && read.is_none() {
                return Ok(());
            }
            sent.map_or(Ok(()), |sent| self.0.write_all(sent))?;
            read.map_or(Ok(()), |read| self.0.read_exact(read))?;
        }
    }
}

struct Result {
    link: Duration,
    setup: Vec<Duration>,
    online: Vec<Duration>,
    counts: [Counts; 2],
    memory: usize,
    outputs: BitRows,
}

fn party(role: Role, workload: Workload, chunk: usize, repetitions: usize, stream: TcpStream) -> Result {
    stream.set_nodelay(true).expect("a TCP socket");
    let mut end = End::new(role, workload, [role.number(); 32], chunk, Tcp(stream));
    let start = Instant::now();
    end.link().expect("base transfers");
    let link = start.elapsed();
    let (mut setup, mut online, mut last) = (Vec::new(), Vec::new(), None);
    for _ in 0..repetitions {
        let start = Instant::now();
        let counts = end.set_up().expect("setup");
        let ready = Instant::now();
        let (outputs, online_counts) = end.evaluate().expect("evaluation");
        online.push(ready.elapsed());
        setup.push(ready - start);
        last = Some((outputs, [counts, online_counts]));
    }
    let (outputs, counts) = last.expect("at least one repetition");
    Result { link, setup, online, counts, memory: end.memory(), outputs }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}

fn main() {
    let argument = |place: usize, default: usize| {
        std::env::args().nth(place).map_or(default, |text| text.parse().expect("a number"))
    };
    let (members, routes) = (argument(1, 750), argument(2, 32));
    let (repetitions, chunk) = (argument(3, 20), argument(4, wayleave_mpc::DEFAULT_CHUNK));
    let shape = match std::env::args().nth(5).as_deref() {
        Some("key") => SelectBest::paper(routes),
        _ => SelectBest::standard(routes),
    };
    let workload = Workload::select_best(shape, members, [7; 16]).expect("routes within the limits");
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("a bound address");
    let other = workload.clone();
    let first = thread::spawn(move || {
        party(Role::Party1, other, chunk, repetitions, TcpStream::connect(address).expect("loopback"))
    });
    let (stream, _) = listener.accept().expect("a connection");
    let two = party(Role::Party2, workload.clone(), chunk, repetitions, stream);
    let one = first.join().expect("party 1");
    let out = reveal(&Share::new(one.outputs), &Share::new(two.outputs)).expect("one shape");
    assert!(out == workload.expected(), "the result differs from the oracle");
    println!("{members} members, {routes} routes, {repetitions} repetitions, chunks of {chunk}");
    println!("link    {:8.3} ms", two.link.as_secs_f64() * 1e3);
    println!("setup   {:8.3} ms (best {:.3})  {:?}", median(two.setup.clone()), best(&two.setup), two.counts[0]);
    println!("online  {:8.3} ms (best {:.3})  {:?}", median(two.online.clone()), best(&two.online), two.counts[1]);
    println!("memory  {:8.3} MB a party", two.memory as f64 / 1e6);
}

fn best(times: &[Duration]) -> f64 {
    times.iter().min().map_or(0.0, |time| time.as_secs_f64() * 1e3)
}
