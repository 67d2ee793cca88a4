//! ICING: a sender at the first node's open link, a receiver at a service of the last node.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use wayleave_crypto::secret::Seed;
use wayleave_packet::icing::header::{Hop, Packet, Part, Path, Tag, Version};
use wayleave_packet::icing::mint::{Consent, Form, NodeSecret, Nonce, Sender, encapsulate};
use wayleave_runtime::clock::unix_now;

use super::{Ends, MARKS, Ping, Seen, Via, answer_to, first_number, number};
use wayleave_config::failure::{Failure, Outcome};
use wayleave_config::key_files::forwarding::{icing_master, icing_secret};
use wayleave_config::key_files::node::fresh;
use wayleave_config::router::LinkSection;
use wayleave_config::router::icing::IcingSection;

/// Seconds for which consents are made.
const LIFETIME: u32 = 3_600;
/// The inner protocol of pings: "no next header" (RFC 8200), which no node looks into.
const PROTOCOL: u8 = 59;

/// A sender in front of a path, and where its packets go.
struct Line {
    sender: Sender,
    from: UdpSocket,
    to: SocketAddr,
    counter: u32,
}

impl Line {
    /// A sender of its own before `via`, which have all consented.
    fn open(via: &[&Via], from: Option<SocketAddr>) -> Outcome<Self> {
        let open = |link: &&LinkSection| link.open;
        let first = via.first().ok_or_else(|| Failure::usage("no router"))?;
        let link = first.file.link.iter().map(toml::Spanned::get_ref).find(open).ok_or_else(|| {
            Failure::new(format!("{} has no link that is open to senders", first.name))
                .help("add a [[link]] with `open = true`, whose `remote` is an address of this machine")
        })?;
        let at = from.unwrap_or(link.remote.get_ref().0);
        let own = NodeSecret::from_seed(&Seed::new(*fresh()?));
        let expiry = (unix_now().secs() as u32).wrapping_add(LIFETIME);
        let mut hops = Vec::new();
        let mut keys = Vec::new();
        for (place, one) in via.iter().enumerate() {
            let key = one.key()?;
            let is_last = place + 1 == via.len();
            hops.push(Hop { node: icing_secret(&key).id(), tag: tag(one, is_last)?, expiry });
            keys.push(key);
        }
        let path =
            Path::new(own.id(), &hops).map_err(|error| Failure::new(format!("these routers make no path: {error}")))?;
        let hash = path.hash(Version::Standard);
        let consents: Vec<Consent> = (1..)
            .zip(hops.iter().zip(&keys))
            .map(|(index, (hop, key))| icing_master(key).consent(&hash, index, hop.tag, hop.expiry))
            .collect();
        let sender = Sender::new(Version::Standard, &path, &own, &consents)
            .map_err(|error| Failure::new(format!("no sender on this path: {error}")))?;
        Ok(Self { sender, from: socket(at)?, to: link.local.get_ref().0, counter: first_number()? })
    }

    fn send(&mut self, payload: &[u8], spoil: bool) -> Outcome {
        let mut out = Vec::new();
        let nonce = Nonce::new(unix_now(), self.counter);
        self.counter = self.counter.wrapping_add(1);
        encapsulate(&self.sender, (Form::Path, Part::Whole), PROTOCOL, nonce, payload, &mut out)
            .map_err(|error| Failure::new(format!("no packet: {error}")))?;
        if spoil {
            // The last octet in front of the payload belongs to the last node's verifier.
            let at = out.len() - payload.len() - 1;
            out[at] ^= 1;
        }
        self.from
            .send_to(&out, self.to)
            .map_err(|error| Failure::system(format!("cannot send to {}", self.to), &error))?;
        Ok(())
    }
}

/// A tag by which the node passes packets on, or delivers them to a service.
fn tag(via: &Via, is_last: bool) -> Outcome<Tag> {
    let section = icing(via)?;
    let found = section.tags.iter().find(|tag| tag.service.is_some() == is_last);
    let found = found.ok_or_else(|| {
        let what = if is_last { "delivers to a service" } else { "passes packets on" };
        Failure::new(format!("{} has no tag that {what}", via.name)).help("`tags` of [icing] has them")
    })?;
    Ok(Tag(found.prefix.get_ref().0.0))
}

fn icing(via: &Via) -> Outcome<&IcingSection> {
    let section = via.file.icing.as_ref().map(toml::Spanned::get_ref);
    Ok(section.ok_or_else(|| Failure::new(format!("{} has no section [icing]", via.name)))?)
}

/// The service that the node's delivering tag means.
fn service(via: &Via) -> Option<SocketAddr> {
    let section = icing(via).ok()?;
    let id = section.tags.iter().find_map(|tag| tag.service)?;
    section.services.iter().find(|service| service.id == id).map(|service| service.address.0)
}

fn socket(at: SocketAddr) -> Outcome<UdpSocket> {
    let bound = UdpSocket::bind(at).and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
    Ok(bound.map_err(|error| Failure::system(format!("cannot be at {at}"), &error))?)
}

/// Both ends.
pub(super) struct IcingEnds {
    there: Line,
    receiver: UdpSocket,
    /// The way back, and where its packets arrive: if the last node has a link for senders, and the first one a service.
    back: Option<(Line, UdpSocket)>,
}

impl IcingEnds {
    pub(super) fn open(command: &Ping, via: &[Via]) -> Outcome<Self> {
        let forward: Vec<&Via> = via.iter().collect();
        let backward: Vec<&Via> = via.iter().rev().collect();
        let given = |text: &Option<String>, what: &str| -> Outcome<Option<SocketAddr>> {
            text.as_deref().map(|text| super::end(Some(text), what, "127.0.0.1:49260")).transpose()
        };
        let there = Line::open(&forward, given(&command.from, "from")?)?;
        let last = via.last().ok_or_else(|| Failure::usage("no router"))?;
        let missing = || {
            Failure::new(format!("{} delivers to no service", last.name))
                .help("give [icing] of the last router a tag with `service`, and the service's address in `services`")
        };
        let at = given(&command.to, "to")?.or_else(|| service(last)).ok_or_else(missing)?;
        let receiver = socket(at)?;
        let has_way = last.file.link.iter().any(|link| link.get_ref().open);
        let back = match via.first().and_then(service).filter(|_| has_way && via.len() > 1) {
            Some(at) => Some((Line::open(&backward, None)?, socket(at)?)),
            None => None,
        };
        Ok(Self { there, receiver, back })
    }
}

/// What waits at a socket, as ICING packets' payloads.
fn waiting(socket: &UdpSocket) -> io::Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    let mut octets = [0; 2_048];
    loop {
        match socket.recv(&mut octets) {
            Ok(length) => {
                if let Ok(packet) = Packet::decode(&octets[..length], Version::Standard) {
                    all.push(packet.payload().to_vec());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(all),
            Err(error) => return Err(error),
        }
    }
}

impl Ends for IcingEnds {
    fn ask(&mut self, payload: &[u8], spoil: bool) -> Outcome {
        self.there.send(payload, spoil)
    }

    fn look(&mut self) -> io::Result<Vec<Seen>> {
        let mut seen = Vec::new();
        for payload in waiting(&self.receiver)? {
            let Some((sequence, answer)) = answer_to(&payload) else { continue };
            seen.push(Seen::Arrived(sequence));
            if let Some((line, _)) = &mut self.back
                && let Err(failures) = line.send(&answer, false)
            {
                seen.push(Seen::Error(format!("no answer: {failures}")));
            }
        }
        if let Some((_, sender)) = &self.back {
            let answers = waiting(sender)?;
            seen.extend(answers.iter().filter_map(|payload| number(MARKS[1], payload)).map(Seen::Answered));
        }
        Ok(seen)
    }

    fn one_way(&self) -> Option<&'static str> {
        let why = "the last router has no link that is open to senders, or the first one no service";
        self.back.is_none().then_some(why)
    }
}
