//! `wayleave lab speak`: a recorded table, announced to any BGP speaker that listens.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use wayleave_core::Asn;

use crate::netns::Place;
use crate::process::wait_until;
use crate::speaker::{Identity, Speaker, routes_of_mrt};

/// What to announce to whom.
#[derive(Debug, Clone)]
pub struct SpeakOptions {
    /// The recorded table or updates (MRT; gzip and bzip2 are seen).
    pub mrt: PathBuf,
    /// Our AS number.
    pub asn: Asn,
    /// Our BGP identifier, and the next hop of IPv4 routes.
    pub address: Ipv4Addr,
    /// The next hop of IPv6 routes.
    pub address6: Ipv6Addr,
    /// Where the peer listens.
    pub peer: SocketAddr,
    /// Its AS number.
    pub peer_asn: Asn,
    /// At most this many prefixes.
    pub limit: usize,
    /// End after this time; go on for ever if not given.
    pub duration: Option<Duration>,
}

/// What a speaker could not do.
#[derive(Debug, thiserror::Error)]
pub enum SpeakError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file holds no route.
    #[error("{} holds no route", .0.display())]
    Empty(PathBuf),
}

/// Announces the routes of a file and says on the standard output how the session fares.
pub fn speak(options: &SpeakOptions) -> Result<(), SpeakError> {
    let identity = Identity {
        name: "speak".to_owned(),
        asn: options.asn,
        address: options.address,
        address6: options.address6,
        peer_asn: options.peer_asn,
        peer: options.peer,
    };
    let routes = routes_of_mrt(&options.mrt, &identity, options.limit, &[options.peer_asn])
        .map_err(|error| SpeakError::File { path: options.mrt.clone(), error })?;
    if routes.is_empty() {
        return Err(SpeakError::Empty(options.mrt.clone()));
    }
    println!("{} prefixes of {}, to {} {}", routes.len(), options.mrt.display(), options.peer_asn, options.peer);
    let speaker = Speaker::start(identity, Place::Here);
    speaker.announce(routes);
    follow(&speaker, options.duration);
    Ok(())
}

/// Prints each change of the session until the time is up.
fn follow(speaker: &Speaker, duration: Option<Duration>) {
    let begin = Instant::now();
    let mut was_up = None;
    loop {
        let left = duration.map_or(Duration::MAX, |all| all.saturating_sub(begin.elapsed()));
        if left.is_zero() {
            return;
        }
        let patience = left.min(Duration::from_secs(60));
        let changed = wait_until(patience, || {
            let up = speaker.is_established();
            (Some(up) != was_up).then_some(up)
        });
        let Some(up) = changed else { continue };
        let seconds = begin.elapsed().as_secs_f64();
        match (up, was_up) {
            (true, _) => println!("{seconds:8.1} s  session up, {} routes learned", speaker.learned().len()),
            (false, Some(_)) => println!("{seconds:8.1} s  session down: {}", speaker.last_failure()),
            (false, None) => println!("{seconds:8.1} s  connecting"),
        }
        was_up = Some(up);
    }
}
