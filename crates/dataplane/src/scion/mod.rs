//! The SCION router: checks in one order, one MAC operation over the burst, then what becomes of each packet.

mod answer;
mod check;
mod config;
mod decide;
mod one_hop;

pub use config::{Config, ConfigError, EpochKey, Interface, Keys, Link, Owner};

use wayleave_core::Now;
use wayleave_packet::scion::{HostAddress, IsdAs, Layout, MacInput, PathType, next_header};

use crate::counters::{Counters, Reason};
use crate::frame::{Action, BURST, Frame, Ingress};
use crate::limit::TokenBucket;
use check::Pending;
use config::Port;

/// How far a segment's timestamp may lie in the future: the clocks of ASes differ. Microseconds.
pub const SKEW: u64 = 337_500_000;

/// One core's router of one AS.
#[derive(Clone, Debug)]
pub struct Router {
    isd_as: IsdAs,
    address: HostAddress,
    ports: Box<[Option<Port>]>,
    keys: Keys,
    answers: TokenBucket,
    counters: Counters,
    /// Of the MAC's 48 bits those that are compared; fewer only in a test of the comparison.
    compared: u64,
}

/// The MACs of a burst: inputs of either key, then tags in their place.
struct Tags {
    blocks: [[MacInput; 2 * BURST]; 2],
    count: [usize; 2],
}

/// Where a hop's tag will be: the key's number and the place.
#[derive(Clone, Copy, Default)]
struct Slot(u8, u8);

impl Tags {
    #[inline]
    fn push(&mut self, key: usize, input: MacInput) -> Slot {
        let place = self.count[key];
        self.blocks[key][place] = input;
        self.count[key] = place + 1;
        Slot(key as u8, place as u8)
    }

    /// The tag's first six octets, in the low bits.
    #[inline]
    fn tag(&self, slot: Slot) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.blocks[usize::from(slot.0)][usize::from(slot.1)];
        u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 16
    }
}

/// A packet after the checks that need no MAC.
#[derive(Clone, Copy)]
enum Checked {
    /// What is to be done is known.
    Done(Action),
    /// It waits for its MAC.
    Pending(Pending),
    /// It is refused, and the sender may be told.
    Refused(Reason),
    /// One of the few with a one-hop path, which are taken one by one.
    OneHop,
}

impl Router {
    /// A router of `config`, all links up.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        Ok(Self {
            isd_as: config.isd_as,
            address: config.address,
            ports: config::ports(config)?,
            keys: config.keys.clone(),
            answers: TokenBucket::new(config.answers_per_second, config.answers_burst),
            counters: Counters::default(),
            compared: 0xffff_ffff_ffff,
        })
    }

    /// The same router comparing only the first 16 bits of each MAC: shows in a test that all bits are compared.
    #[doc(hidden)]
    #[must_use]
    pub fn with_16_bit_tags(mut self) -> Self {
        self.compared = 0xffff_0000_0000;
        self
    }

    /// Processes at most [`BURST`] packets in place; the rest is left alone, with the default action.
    pub fn process(&mut self, frames: &mut [Frame<'_>], now: Now) -> [Action; BURST] {
        let mut actions = [Action::default(); BURST];
        let frames = if frames.len() > BURST { &mut frames[..BURST] } else { frames };
        let mut checked = [Checked::Done(Action::default()); BURST];
        let mut tags = Tags { blocks: [[[0; 16]; 2 * BURST]; 2], count: [0; 2] };
        for (checked, frame) in checked.iter_mut().zip(frames.iter()) {
            *checked = self.check(frame, now, &mut tags);
        }
        let [old, new] = tags.count;
        self.keys.old.tag_blocks(&mut tags.blocks[0][..old]);
        self.keys.new.tag_blocks(&mut tags.blocks[1][..new]);
        for ((action, checked), frame) in actions.iter_mut().zip(&checked).zip(frames.iter_mut()) {
            let decided = match checked {
                Checked::Done(action) => Ok(*action),
                Checked::Pending(pending) => self.decide(frame, pending, &tags),
                Checked::Refused(reason) => Err(*reason),
                Checked::OneHop => Ok(self.one_hop(frame, now)),
            };
            *action = decided.unwrap_or_else(|reason| self.refuse(frame, reason, now));
            self.counters.count(*action);
        }
        actions
    }

    /// What this core has counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Says whether the link behind `interface` works; an unknown interface is passed over.
    pub fn set_link(&mut self, interface: u16, up: bool) {
        if let Some(Some(port)) = self.ports.get_mut(usize::from(interface)) {
            port.up = up;
        }
    }

    /// Takes new keys; packets already in flight verify as before.
    pub fn set_keys(&mut self, keys: Keys) {
        self.keys = keys;
    }

    /// Takes new interfaces and addresses between two bursts, keeping counters; links are up.
    ///
    /// # Errors
    /// What is wrong with the configuration; the router stays as it was.
    pub fn reload(&mut self, config: &Config) -> Result<(), ConfigError> {
        self.ports = config::ports(config)?;
        (self.isd_as, self.address, self.keys) = (config.isd_as, config.address, config.keys.clone());
        Ok(())
    }

    #[inline]
    fn port(&self, interface: u16) -> Option<&Port> {
        self.ports.get(usize::from(interface))?.as_ref()
    }

    /// Lengths, pointers and bounds first; then by kind of path.
    #[inline]
    fn check(&mut self, frame: &Frame<'_>, now: Now, tags: &mut Tags) -> Checked {
        let layout = match Layout::decode(frame.octets) {
            Ok(layout) => layout,
            Err(error) => return Checked::Refused(check::reason(error)),
        };
        if matches!(layout.next_header, next_header::HOP_BY_HOP | next_header::END_TO_END)
            && !check::extensions_are_sound(&layout, frame.octets)
        {
            return Checked::Refused(Reason::Extension);
        }
        match layout.path_type {
            PathType::Standard => match self.check_hops(frame, &layout, now, tags) {
                Ok(pending) => Checked::Pending(pending),
                Err(reason) => Checked::Refused(reason),
            },
            PathType::OneHop => Checked::OneHop,
            PathType::Empty => Checked::Done(self.empty_path(frame, &layout)),
        }
    }

    /// Within the AS only control traffic of its routers comes without a path.
    fn empty_path(&self, frame: &Frame<'_>, layout: &Layout) -> Action {
        let ours = layout.dst == self.isd_as && layout.src == self.isd_as;
        match frame.ingress {
            Ingress::Sibling(_) if ours && layout.next_header == next_header::BFD => Action::Control,
            _ => Action::Drop(Reason::PathType),
        }
    }
}
