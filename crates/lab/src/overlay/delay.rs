//! Links that take their time: two TUN interfaces, one at each end, and a thread that hands packets over late.
//!
//! The kernel's own way (`netem`) is a module that many kernels do not have.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wayleave_runtime::packets::tun::{HEADER, LONGEST, Tun};

use crate::netns::NetworkNamespace;

/// Packets on their way in one direction, at most; further ones are lost.
const MOST_PACKETS: usize = 4_096;
/// Packets that are read in a row from one end.
const TURN: usize = 64;
/// Interval at which the thread looks whether it is to stop.
const POLL: Duration = Duration::from_millis(50);

/// A link with a delay, which ends with this value.
#[derive(Debug)]
pub(super) struct Delay {
    ends: Arc<AtomicBool>,
}

impl Delay {
    /// Makes an interface at each end (a namespace, and the interface's name there), and carries packets between them.
    ///
    /// # Errors
    /// What the system said: without `/dev/net/tun` there are no such interfaces.
    pub(super) fn start(ends: [(&NetworkNamespace, &str); 2], delay: Duration) -> io::Result<Self> {
        let open = |(place, name): (&NetworkNamespace, &str)| place.within(|| Tun::open(name, 1_500))?;
        let [one, other] = ends;
        let both = [open(one)?, open(other)?];
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        std::thread::Builder::new().name("delay".to_owned()).spawn(move || relay(&both, delay, &stopped))?;
        Ok(Self { ends: stop })
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

fn relay(ends: &[Tun; 2], delay: Duration, stop: &AtomicBool) {
    let mut queues: [VecDeque<(Instant, Vec<u8>)>; 2] = Default::default();
    let mut buffer = vec![0; LONGEST];
    while !stop.load(Ordering::Relaxed) {
        let due = queues.iter().filter_map(|queue| queue.front()).map(|(due, _)| *due).min();
        let pause = due.map_or(POLL, |due| due.saturating_duration_since(Instant::now()).min(POLL));
        let timeout = Timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() };
        let mut waiting = [0, 1].map(|end: usize| PollFd::from_borrowed_fd(ends[end].as_fd(), PollFlags::IN));
        // An interruption, or an interface that is down: the next turn tells.
        let _ = poll(&mut waiting, Some(&timeout));
        for (end, queue) in ends.iter().zip(&mut queues) {
            for _ in 0..TURN {
                let Ok(Some(length)) = end.read(&mut buffer) else { break };
                if queue.len() < MOST_PACKETS {
                    queue.push_back((Instant::now() + delay, buffer[..length].to_vec()));
                }
            }
        }
        let now = Instant::now();
        for (queue, to) in queues.iter_mut().zip([1, 0]) {
            while queue.front().is_some_and(|(due, _)| *due <= now) {
                let Some((_, packet)) = queue.pop_front() else { break };
                if let Some((header, octets)) = packet.split_first_chunk::<HEADER>() {
                    // A packet that the other end has no room for is lost, as on any link.
                    let _ = ends[to].write(header, octets);
                }
            }
        }
    }
}
