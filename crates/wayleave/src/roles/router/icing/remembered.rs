//! Where neighbours were when this process ran last, so that one that restarts begins with those who cannot be begun with otherwise.
//!
//! A neighbour behind a NAT is at an address that no advert has, and comes with its next ping, after up to half a minute. Its NAT
//! still knows this node; so what goes to its last address arrives.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;
use wayleave_core::IdentityKey;
use wayleave_dataplane::link::{LinkStatus, Peer, Transport};
use wayleave_runtime::store::{Change, FileStore, Store as _};

use crate::config::links::LinkSocket;

/// Table of the state with the addresses of neighbours.
const TABLE: &str = "links";
/// Addresses are tried for this long: NATs forget them, and then they may be somebody else's.
const TRIED: Duration = Duration::from_secs(30);

/// The last addresses by UDP of neighbours.
pub struct Remembered {
    store: Arc<FileStore>,
    /// Of an earlier life, and until when they are tried.
    earlier: BTreeMap<IdentityKey, SocketAddr>,
    until: Instant,
    stored: BTreeMap<IdentityKey, SocketAddr>,
}

impl Remembered {
    /// What the state has. One that cannot be read is as none.
    pub fn load(store: &Arc<FileStore>) -> Self {
        let records = store.load(TABLE).unwrap_or_else(|error| {
            warn!("where neighbours were is not known: {error}");
            Vec::new()
        });
        let address = |(key, value): &(Vec<u8>, Vec<u8>)| {
            let identity = IdentityKey(key.as_slice().try_into().ok()?);
            Some((identity, std::str::from_utf8(value).ok()?.parse().ok()?))
        };
        let earlier: BTreeMap<IdentityKey, SocketAddr> = records.iter().filter_map(address).collect();
        Self { store: Arc::clone(store), stored: earlier.clone(), earlier, until: Instant::now() + TRIED }
    }

    /// Adds to neighbours where they were, with `sockets` in the order of theirs.
    pub fn add_to(&self, peers: &mut [Peer], sockets: &[LinkSocket]) {
        if Instant::now() >= self.until {
            return;
        }
        for peer in peers {
            let Some(there) = self.earlier.get(&peer.identity) else { continue };
            let reaches = |number: &&usize| {
                let socket = sockets.get(**number);
                matches!(socket, Some(LinkSocket::Udp(local)) if local.is_ipv4() == there.is_ipv4())
            };
            let at = peer.sockets.iter().find(reaches).map(|number| (*number, *there));
            let is_new = |at: &(usize, SocketAddr)| !peer.endpoints.contains(at);
            peer.endpoints.extend(at.filter(is_new));
        }
    }

    /// Writes down where neighbours are now. One that is away stays where it was.
    pub fn note(&mut self, all: &[LinkStatus]) {
        let mut now = self.stored.clone();
        now.retain(|identity, _| all.iter().any(|link| link.identity == *identity));
        for link in all.iter().filter(|link| link.transport == Some(Transport::Udp)) {
            now.extend(link.address.map(|address| (link.identity, address)));
        }
        let changed = now.iter().filter(|(identity, address)| self.stored.get(identity) != Some(address));
        let value = |address: &SocketAddr| Some(address.to_string().into_bytes());
        let change = |identity: &IdentityKey, value| Change { table: TABLE, key: identity.0.to_vec(), value };
        let gone = self.stored.keys().filter(|identity| !now.contains_key(identity));
        let changes: Vec<Change> = changed
            .map(|(identity, address)| change(identity, value(address)))
            .chain(gone.map(|identity| change(identity, None)))
            .collect();
        // What finds no room is tried again in a second.
        if !changes.is_empty() && self.store.submit(changes, Box::new(|| ())).is_ok() {
            self.stored = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wayleave_crypto::dh::DhSecret;
    use wayleave_crypto::secret::Secret;
    use wayleave_dataplane::link::{State, Volume};

    fn identity(number: u8) -> IdentityKey {
        IdentityKey([number; 32])
    }

    fn status(number: u8, address: Option<&str>, transport: Transport) -> LinkStatus {
        LinkStatus {
            link: number.into(),
            identity: identity(number),
            state: State::Up,
            address: address.and_then(|address| address.parse().ok()),
            socket: None,
            endpoints: Vec::new(),
            tls_endpoints: Vec::new(),
            transport: address.map(|_| transport),
            begun: 0,
            moved: 0,
            handshake: None,
            heard: None,
            sent: Volume::default(),
            received: Volume::default(),
            round_trip: None,
            loss: None,
            seen: None,
            reached: Vec::new(),
            clock: None,
            size: None,
            attempts: 0,
            other_versions: None,
        }
    }

    fn peer(number: u8) -> Peer {
        Peer {
            link: number.into(),
            identity: identity(number),
            noise: DhSecret::from_seed(&Secret::new([number; 32])).public(),
            sockets: vec![0, 1],
            endpoints: Vec::new(),
            tls: Some(2),
            tls_endpoints: Vec::new(),
            largest: 1_400,
        }
    }

    #[tokio::test]
    async fn a_process_begins_with_its_neighbours_where_they_were_by_udp() {
        let folder = std::env::temp_dir().join(format!("wayleave-remembered-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("state");
        let _ = std::fs::remove_file(&file);
        {
            let store = Arc::new(FileStore::open(&file).expect("opened"));
            let mut first = Remembered::load(&store);
            let up = |number, address| status(number, Some(address), Transport::Udp);
            first.note(&[
                up(1, "192.0.2.1:5"),
                up(2, "[2001:db8::2]:6"),
                status(3, Some("192.0.2.3:7"), Transport::Tls),
                up(4, "192.0.2.4:8"),
            ]);
            first.note(&[up(1, "192.0.2.1:55"), status(2, None, Transport::Udp)]);
        }
        let store = Arc::new(FileStore::open(&file).expect("opened"));
        let mut later = Remembered::load(&store);
        let sockets = ["0.0.0.0:1", "[::]:1"].map(|local| LinkSocket::Udp(local.parse().expect("an address")));
        let of = |remembered: &Remembered| {
            let mut peers: Vec<Peer> = (1..5).map(peer).collect();
            remembered.add_to(&mut peers, &sockets);
            peers.into_iter().map(|peer| peer.endpoints).collect::<Vec<_>>()
        };
        let at = |socket: usize, address: &str| vec![(socket, address.parse::<SocketAddr>().expect("an address"))];
        assert_eq!(of(&later), [at(0, "192.0.2.1:55"), at(1, "[2001:db8::2]:6"), Vec::new(), Vec::new()]);
        later.until = Instant::now();
        assert_eq!(of(&later), vec![Vec::new(); 4], "only for a while");
        let _ = std::fs::remove_dir_all(&folder);
    }
}
