//! Two queues in memory between two ports of the same process: for tests, and for chains of routers on one machine.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::{Burst, Outgoing, Port};

/// Packets that wait in one direction, at most.
const DEPTH: usize = 1024;

/// One direction: packets that wait, and a descriptor that is readable while any does.
struct Direction {
    waiting: Mutex<VecDeque<Vec<u8>>>,
    readable: OwnedFd,
}

/// One port of a pair.
pub struct Memory {
    here: SocketAddr,
    incoming: Arc<Direction>,
    outgoing: Arc<Direction>,
    there: SocketAddr,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory from {} to {}", self.here, self.there)
    }
}

/// Two ports with these addresses: what one sends, the other receives.
///
/// # Errors
/// If the system gives no descriptor.
pub fn pair(one: SocketAddr, other: SocketAddr) -> io::Result<(Memory, Memory)> {
    let direction = || {
        let readable = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        io::Result::Ok(Arc::new(Direction { waiting: Mutex::default(), readable }))
    };
    let (there, back) = (direction()?, direction()?);
    Ok((
        Memory { here: one, incoming: Arc::clone(&back), outgoing: Arc::clone(&there), there: other },
        Memory { here: other, incoming: there, outgoing: back, there: one },
    ))
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.incoming.readable.as_fd()
    }
}

impl Port for Memory {
    fn receive(&mut self, burst: &mut Burst) -> io::Result<usize> {
        burst.clear();
        let mut waiting = self.incoming.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(packet) = waiting.front() {
            if !burst.push(packet, self.there) {
                break;
            }
            waiting.pop_front();
        }
        if waiting.is_empty() {
            // Fails only if the descriptor was not readable.
            let _ = rustix::io::read(&self.incoming.readable, &mut [0; 8]);
        }
        Ok(burst.len())
    }

    fn send(&mut self, burst: &Burst, out: &[Outgoing]) -> io::Result<usize> {
        let mut waiting = self.outgoing.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = out.len().min(DEPTH - waiting.len());
        waiting.extend(out[..taken].iter().map(|out| burst.octets(out.packet as usize).to_vec()));
        if taken > 0 {
            rustix::io::write(&self.outgoing.readable, &1u64.to_ne_bytes())?;
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::packets::wait;

    #[test]
    fn what_one_end_sends_the_other_receives_until_the_ring_is_full() {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (mut one, mut other) = pair(address(1), address(2)).expect("descriptors");
        let mut burst = Burst::default();
        for number in 0..1_500u32 {
            assert!(burst.push(&number.to_be_bytes(), address(9)));
        }
        let out: Vec<Outgoing> = (0..1_500).map(|packet| Outgoing { packet, to: address(2) }).collect();
        assert_eq!(one.send(&burst, &out).expect("sent"), DEPTH);
        wait([&other as &dyn Port].into_iter(), Duration::from_secs(10)).expect("readable");
        assert_eq!(other.receive(&mut burst).expect("received"), DEPTH);
        assert_eq!((burst.octets(7), burst.from(7)), (&7u32.to_be_bytes()[..], address(1)));
        assert_eq!(other.receive(&mut burst).expect("empty"), 0);
    }
}
