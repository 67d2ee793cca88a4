//! The loop of a role whose machine speaks over links. A role says what a link's events mean to its machine, what reaches it besides,
//! and what the machine's outputs do; its queue, and whom a fault names whose input the machine was handling, are the same for all.

use std::collections::VecDeque;

use tokio::sync::mpsc;
use wayleave_core::Machine;
use wayleave_runtime::drive::{Io, Query, Step};
use wayleave_runtime::links::LinkEvent;
use wayleave_runtime::starts::PeerName;

use crate::failure::Failure;

/// What reaches the loop of machine `M`. `O` is what this role alone has; `Infallible` if that is nothing.
pub enum Event<M: Machine, O> {
    Link(LinkEvent),
    Input(M::Input),
    Query(Query<M>),
    Own(O),
    Stop,
}

impl<M: Machine, O> From<LinkEvent> for Event<M, O> {
    fn from(event: LinkEvent) -> Self {
        Event::Link(event)
    }
}

impl<M: Machine, O> From<Query<M>> for Event<M, O> {
    fn from(query: Query<M>) -> Self {
        Event::Query(query)
    }
}

/// What a role adds; see [`Io`].
pub trait LinkIo<M: Machine> {
    type Own;

    /// What the machine is told of a link's event; nothing if it is none of its concern.
    fn link(&mut self, event: LinkEvent) -> Option<M::Input>;

    fn own(&mut self, own: Self::Own) -> Step<M>;

    /// The peer whose input this is, where it did not come over a link.
    fn source(&self, _input: &M::Input) -> Option<&PeerName> {
        None
    }

    fn before(&mut self, _machine: &mut M) -> Result<(), Failure> {
        Ok(())
    }

    fn perform(&mut self, output: M::Output, feedback: &mut VecDeque<M::Input>) -> Result<(), Failure>;
}

/// Drives a [`LinkIo`].
pub struct Driver<T>(pub T);

impl<M: Machine, T: LinkIo<M>> Io<M> for Driver<T> {
    type Event = Event<M, T::Own>;
    type Error = Failure;

    fn source<'a>(&'a self, event: &'a Self::Event) -> Option<&'a PeerName> {
        match event {
            Event::Link(event) => event.source(),
            Event::Input(input) => self.0.source(input),
            Event::Query(_) | Event::Own(_) | Event::Stop => None,
        }
    }

    fn step(&mut self, event: Self::Event) -> Step<M> {
        match event {
            Event::Link(event) => self.0.link(event).map_or(Step::Ignore, Step::Input),
            Event::Input(input) => Step::Input(input),
            Event::Query(query) => Step::Query(query),
            Event::Own(own) => self.0.own(own),
            Event::Stop => Step::Stop,
        }
    }

    fn before(&mut self, machine: &mut M) -> Result<(), Failure> {
        self.0.before(machine)
    }

    fn perform(&mut self, output: M::Output, feedback: &mut VecDeque<M::Input>) -> Result<(), Failure> {
        self.0.perform(output, feedback)
    }
}

/// Sends `input` to the machine once a write of the store is durable.
pub fn when_durable<M, O>(events: &mpsc::Sender<Event<M, O>>, input: M::Input) -> Box<dyn FnOnce() + Send>
where
    M: Machine + 'static,
    M::Input: Send,
    O: Send + 'static,
{
    let events = events.clone();
    // Called by the store's thread, which may wait; it fails if the role has stopped.
    Box::new(move || drop(events.blocking_send(Event::Input(input))))
}
