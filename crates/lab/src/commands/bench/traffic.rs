//! What benchmarks send between two namespaces: TCP at full speed, small datagrams, round trips, and a stream that shows gaps.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use wayleave_lab::netns::NetworkNamespace;
use wayleave_runtime::packets::udp::{self, Intake};
use wayleave_runtime::packets::{Burst, Port, wait};

use super::chain::{Result, said};

/// Where senders and receivers are.
pub struct Ends<'a> {
    pub from: &'a NetworkNamespace,
    pub to: &'a NetworkNamespace,
    /// The receiver as the sender reaches it.
    pub address: IpAddr,
}

/// Time before a measurement, in which TCP finds its window.
const WARM: Duration = Duration::from_millis(700);
const PORT: u16 = 5_201;
/// Octets that a TCP sender hands over at a time.
const CHUNK: usize = 256 << 10;
const SMALL: usize = 64;
/// Datagrams that are on their way at a time: more would be dropped by whichever queue is the shortest, and measure that.
const WINDOW: u64 = 256;
/// A datagram that has not arrived by then is lost.
const LOST: Duration = Duration::from_millis(20);
const TIMEOUT: Duration = Duration::from_secs(5);

impl Ends<'_> {
    fn reached(&self) -> SocketAddr {
        SocketAddr::new(self.address, PORT)
    }

    fn connect(&self) -> Result<(TcpStream, TcpStream)> {
        let listener = self.to.within(|| TcpListener::bind((unspecified(self.address), PORT)));
        let listener = listener.map_err(said)?.map_err(said)?;
        let there = self.reached();
        let stream = self.from.within(|| TcpStream::connect_timeout(&there, TIMEOUT));
        let stream = stream.map_err(said)?.map_err(|error| format!("TCP to {there}: {error}"))?;
        let (received, _) = listener.accept().map_err(said)?;
        Ok((stream, received))
    }

    /// Bits of TCP payload that arrive in a second.
    pub fn tcp(&self, lasts: Duration) -> Result<f64> {
        let (mut stream, mut received) = self.connect()?;
        let (arrived, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
        let rate = thread::scope(|scope| {
            scope.spawn(|| {
                let octets = vec![0x5a; CHUNK];
                while !is_done.load(Ordering::Acquire) {
                    if stream.write_all(&octets).is_err() {
                        break;
                    }
                }
                let _ = stream.shutdown(std::net::Shutdown::Both);
            });
            scope.spawn(|| {
                let mut octets = vec![0; CHUNK];
                while let Ok(length @ 1..) = received.read(&mut octets) {
                    arrived.fetch_add(length as u64, Ordering::Relaxed);
                }
            });
            thread::sleep(WARM);
            let (before, begin) = (arrived.load(Ordering::Relaxed), Instant::now());
            thread::sleep(lasts);
            let rate = 8.0 * (arrived.load(Ordering::Relaxed) - before) as f64 / begin.elapsed().as_secs_f64();
            is_done.store(true, Ordering::Release);
            rate
        });
        if rate > 0.0 { Ok(rate) } else { Err("no octet arrived".to_owned()) }
    }

    /// Datagrams of 64 octets that arrive in a second; a few are on their way at a time.
    pub fn udp(&self, lasts: Duration) -> Result<f64> {
        let at = SocketAddr::new(unspecified(self.address), PORT);
        let group = self.to.within(|| udp::open(at, 1, Intake::Merged, None)).map_err(said)?.map_err(said)?;
        let mut receiver = group.data.into_iter().next().ok_or("no socket")?;
        let sender = self.sender()?;
        let (arrived, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
        let rate = thread::scope(|scope| {
            scope.spawn(|| {
                let mut burst = Burst::default();
                while !is_done.load(Ordering::Acquire) {
                    match receiver.receive(&mut burst) {
                        Ok(count @ 1..) => drop(arrived.fetch_add(count as u64, Ordering::Release)),
                        _ => drop(wait([&receiver as &dyn Port].into_iter(), Duration::from_millis(5))),
                    }
                }
            });
            scope.spawn(|| {
                let (octets, mut out, mut last, mut seen) = ([0x5a; SMALL], 0u64, Instant::now(), 0);
                while !is_done.load(Ordering::Acquire) {
                    let came = arrived.load(Ordering::Acquire);
                    if came != seen {
                        (seen, last) = (came, Instant::now());
                    }
                    if out.saturating_sub(came) >= WINDOW {
                        if last.elapsed() > LOST {
                            out = came;
                        } else {
                            thread::sleep(Duration::from_micros(20));
                        }
                        continue;
                    }
                    out += u64::from(sender.send(&octets).is_ok());
                }
            });
            thread::sleep(WARM);
            let (before, begin) = (arrived.load(Ordering::Relaxed), Instant::now());
            thread::sleep(lasts);
            let rate = (arrived.load(Ordering::Relaxed) - before) as f64 / begin.elapsed().as_secs_f64();
            is_done.store(true, Ordering::Release);
            rate
        });
        if rate > 0.0 { Ok(rate) } else { Err("no datagram arrived".to_owned()) }
    }

    fn sender(&self) -> Result<UdpSocket> {
        let socket = self.from.within(|| UdpSocket::bind((unspecified(self.address), 0))).map_err(said)?;
        let socket = socket.map_err(said)?;
        socket.connect(self.reached()).map_err(said)?;
        Ok(socket)
    }

    /// Seconds of `count` round trips of a small datagram, one after the other.
    pub fn round_trips(&self, count: usize) -> Result<Vec<f64>> {
        let echo = self.to.within(|| UdpSocket::bind((unspecified(self.address), PORT))).map_err(said)?;
        let echo = echo.map_err(said)?;
        let sender = self.sender()?;
        for socket in [&echo, &sender] {
            socket.set_read_timeout(Some(Duration::from_millis(200))).map_err(said)?;
        }
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut octets = [0; SMALL];
                while !is_done.load(Ordering::Acquire) {
                    if let Ok((length, from)) = echo.recv_from(&mut octets) {
                        let _ = echo.send_to(&octets[..length], from);
                    }
                }
            });
            let (mut times, mut octets) = (Vec::with_capacity(count), [0; SMALL]);
            let mut number = 0u64;
            let end = Instant::now() + TIMEOUT;
            // The first ones wake everything up.
            while times.len() < count + 20 && Instant::now() < end {
                number += 1;
                octets[..8].copy_from_slice(&number.to_be_bytes());
                let begin = Instant::now();
                if sender.send(&octets).is_err() {
                    continue;
                }
                // An answer that came too late is not this one's.
                let mut answer = [0; SMALL];
                while sender.recv(&mut answer).is_ok() {
                    if answer[..8] == number.to_be_bytes() {
                        times.push(begin.elapsed().as_secs_f64());
                        break;
                    }
                }
            }
            is_done.store(true, Ordering::Release);
            if times.len() > 20 { Ok(times.split_off(20)) } else { Err("no answer came back".to_owned()) }
        })
    }

    /// Seconds until the first datagram arrives, of those that are sent from now on, one each millisecond.
    pub fn first(&self, timeout: Duration) -> Result<f64> {
        let receiver = self.to.within(|| UdpSocket::bind((unspecified(self.address), PORT))).map_err(said)?;
        let receiver = receiver.map_err(said)?;
        receiver.set_read_timeout(Some(Duration::from_micros(1_000))).map_err(said)?;
        let sender = self.sender()?;
        let begin = Instant::now();
        while begin.elapsed() < timeout {
            let _ = sender.send(&[0x5a; SMALL]);
            if receiver.recv(&mut [0; SMALL]).is_ok() {
                return Ok(begin.elapsed().as_secs_f64());
            }
        }
        Err("no datagram arrived".to_owned())
    }

    /// The longest time without an octet of a TCP stream that sends some each millisecond, for as long as `task` and `lasts` take.
    pub fn longest_gap(&self, lasts: Duration, task: impl FnOnce() -> Result<()>) -> Result<f64> {
        let (mut stream, mut received) = self.connect()?;
        stream.set_nodelay(true).map_err(said)?;
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Acquire) && stream.write_all(&[0x5a; SMALL]).is_ok() {
                    thread::sleep(Duration::from_millis(1));
                }
                let _ = stream.shutdown(std::net::Shutdown::Both);
            });
            let gap = scope.spawn(|| {
                let (mut octets, mut last, mut longest) = (vec![0; CHUNK], Instant::now(), Duration::ZERO);
                while let Ok(1..) = received.read(&mut octets) {
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                }
                longest.max(last.elapsed())
            });
            thread::sleep(WARM);
            let done = task();
            thread::sleep(lasts);
            is_done.store(true, Ordering::Release);
            let gap = gap.join().map_err(|_| "the receiver panicked".to_owned())?;
            done.map(|()| gap.as_secs_f64())
        })
    }
}

fn unspecified(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() }
}
