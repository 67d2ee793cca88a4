//! When a sender sends the whole path, and when its handle alone.

use std::time::Duration;

use wayleave_core::Instant;

use super::super::header::{Handle, PathHolders};

/// The whole path is repeated this often, for nodes that have forgotten it.
pub const REPEAT: Duration = Duration::from_secs(1);

/// Whether a packet has its path in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// The path is there.
    Path,
    /// Its handle stands for it.
    Handle,
}

/// One path's state at its sender.
#[derive(Clone, Debug)]
pub struct Forms {
    handle: Handle,
    /// A bit for each node behind the sender.
    all: u16,
    held: u16,
    last: Option<Instant>,
}

impl Forms {
    /// For a path of `count` nodes, which no node holds yet.
    #[must_use]
    pub fn new(handle: Handle, count: usize) -> Self {
        let all = ((1u32 << count.min(16)) - 2) as u16;
        Self { handle, all, held: 0, last: None }
    }

    /// How the packet sent at `now` is formed.
    pub fn next(&mut self, now: Instant) -> Form {
        let is_due = self.last.is_none_or(|last| now.since(last) >= REPEAT);
        if is_due || self.held & self.all != self.all {
            self.last = Some(now);
            return Form::Path;
        }
        Form::Handle
    }

    /// Takes a receiver's report; reports of other paths are ignored.
    pub fn acknowledge(&mut self, held: &PathHolders) {
        if held.handle == self.handle {
            self.held = held.nodes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handle_is_sent_once_every_node_holds_the_path_and_the_path_every_second() {
        let handle = Handle([5; 16]);
        let mut forms = Forms::new(handle, 4);
        let at = |ms: u64| Instant(ms * 1_000_000);
        assert_eq!(forms.next(at(0)), Form::Path);
        forms.acknowledge(&PathHolders { handle, nodes: 0b0110 });
        assert_eq!(forms.next(at(1)), Form::Path);
        forms.acknowledge(&PathHolders { handle: Handle([6; 16]), nodes: 0b1110 });
        assert_eq!(forms.next(at(2)), Form::Path);
        forms.acknowledge(&PathHolders { handle, nodes: 0b1110 });
        assert_eq!(forms.next(at(3)), Form::Handle);
        assert_eq!(forms.next(at(1_001)), Form::Handle);
        assert_eq!(forms.next(at(1_002)), Form::Path);
        assert_eq!(forms.next(at(1_003)), Form::Handle);
        // A node that lost the path takes the sender back.
        forms.acknowledge(&PathHolders { handle, nodes: 0b1010 });
        assert_eq!(forms.next(at(1_004)), Form::Path);
    }
}
