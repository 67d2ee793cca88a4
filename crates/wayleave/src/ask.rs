//! One question to a server of a realm, for commands: connect, ask, wait for the answer.

use std::time::Duration;

use tokio::sync::mpsc;
use wayleave_control::frames::{Body, Frame, MAX_FRAME, PROTOCOLS};
use wayleave_control::realm::Server;
use wayleave_runtime::links::{ConnectFailure, Limits, LinkEvent, Links};
use wayleave_runtime::node_tls::NodeIdentity;

use crate::failure::{Failure, Outcome};

/// Asks `server`, as the node with this identity, and waits for so long: for connecting and for the answer together.
pub fn ask(server: &Server, own: &NodeIdentity, body: Body, timeout: Duration) -> Outcome<Body> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(format!("cannot start: {error}")))?;
    let answer = runtime.block_on(async { tokio::time::timeout(timeout, exchange(server, own, body)).await });
    answer.unwrap_or_else(|_| {
        let failure = Failure::new(format!("no answer from {} at {}", server.identity, server.address));
        Err(failure.help("is the server running, and does another node answer at this address? try again").into())
    })
}

/// The same within a program that waits for other things too.
pub async fn exchange(server: &Server, own: &NodeIdentity, body: Body) -> Outcome<Body> {
    let (to, mut events) = mpsc::channel::<LinkEvent>(64);
    let links = Links::new(Limits { frame: MAX_FRAME as u32, protocols: PROTOCOLS, ..Limits::default() });
    let _connecting = links.connect_node(server.address.clone(), own, server.identity, to)?;
    let request = Frame { request: 1, body }.encode();
    while let Some(event) = events.recv().await {
        match event {
            LinkEvent::Up { link, .. } => links.send(link, request.clone()),
            LinkEvent::Frame { bytes, .. } => match Frame::decode(&bytes) {
                Ok(Frame { request: 1, body }) => return Ok(body),
                Ok(_) => {}
                Err(error) => {
                    return Err(Failure::new(format!("{} answered nonsense: {error}", server.address))
                        .help("does it run another version?")
                        .into());
                }
            },
            // It would say the same again.
            LinkEvent::Failed { failure: failure @ ConnectFailure::NoProtocol, .. } => {
                return Err(Failure::new(format!("{}: {failure}", server.address)).into());
            }
            LinkEvent::Down { .. } | LinkEvent::Failed { .. } => {}
        }
    }
    Err(Failure::new(format!("no link to {}", server.address)).into())
}
