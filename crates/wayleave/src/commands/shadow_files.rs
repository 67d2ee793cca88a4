//! The tables of a route server that files have: MRT (RFC 6396), what BIRD's client prints, birdwatcher's JSON, bgpctl's JSON.

use std::fs::File;
use std::io::{BufReader, Read as _};
use std::net::IpAddr;
use std::path::Path;

use serde::Deserialize;
use wayleave_bgp::mrt::{MrtError, MrtReader, Record, decompress};
use wayleave_bgp::{Attributes, Community, ExtendedCommunity, LargeCommunity, Message, Nlri, Origin, Update};
use wayleave_core::Prefix;
use wayleave_route_server::directory::SlotId;
use wayleave_route_server::shadow::text::{Fields, bird_routes, path};
use wayleave_route_server::shadow::{Exchange, Full, Tables};

use super::shadow::{Read, see_guide};
use crate::config::Source;
use crate::config::shadow::ShadowConfig;
use crate::failure::{Failure, Outcome};

/// Octets of text of one table, uncompressed: our own limit. 250,000 routes of BIRD's client take 150 MiB.
const MAX_TEXT: u64 = 1 << 30;
/// Octets of a dump, uncompressed: our own limit.
const MAX_DUMP: u64 = 16 << 30;

/// Whose routes a file has.
#[derive(Clone, Copy)]
enum Of {
    Learned,
    GivenTo(SlotId),
}

/// Where a route of a file goes.
struct Sink<'a> {
    exchange: &'a Exchange,
    tables: &'a mut Tables,
    read: &'a mut Read,
    of: Of,
    file: String,
    /// Routes whose attributes cannot be used.
    unusable: u64,
    /// Of a table without path identifiers, routes so far, so that no route takes another's place.
    routes: u32,
}

impl Sink<'_> {
    /// A route of a dump of a table.
    fn route(&mut self, peer: Option<IpAddr>, nlri: Nlri, attributes: &Attributes) -> Result<(), Full> {
        match self.of {
            // One of several peers, most likely without a path identifier.
            Of::GivenTo(member) => self.tables.give_also(member, nlri.prefix, attributes),
            Of::Learned => self.learn(peer, nlri, attributes),
        }
    }

    fn learn(&mut self, peer: Option<IpAddr>, nlri: Nlri, attributes: &Attributes) -> Result<(), Full> {
        let name = peer.map_or_else(|| self.file.clone(), |peer| peer.to_string());
        let source = self.read.number(name);
        self.tables.learn(self.exchange, source, peer, nlri, attributes).map(|_| ())
    }

    /// A route of a list that has no path identifiers.
    fn listed(&mut self, prefix: Prefix, attributes: &Attributes) -> Result<(), Full> {
        self.routes += 1;
        self.route(None, Nlri { path_id: self.routes, prefix }, attributes)
    }

    fn update(&mut self, peer: IpAddr, update: &Update) -> Result<(), Full> {
        for nlri in &update.withdrawn {
            match self.of {
                Of::GivenTo(member) => self.tables.take_back(member, *nlri),
                Of::Learned => {
                    let source = self.read.number(peer.to_string());
                    self.tables.withdraw(source, *nlri);
                }
            }
        }
        let Some(attributes) = &update.attributes else { return Ok(()) };
        update.announced.iter().try_for_each(|nlri| match self.of {
            Of::GivenTo(member) => self.tables.give(member, *nlri, attributes),
            Of::Learned => self.learn(Some(peer), *nlri, attributes),
        })
    }
}

/// Reads every file that the configuration names.
pub fn read_all(
    config: &ShadowConfig,
    source: &Source,
    exchange: &Exchange,
    tables: &mut Tables,
    read: &mut Read,
) -> Outcome {
    for path in &config.file.learned.mrt {
        let path = source.resolve(path.get_ref());
        mrt(&path, &mut sink(exchange, tables, read, Of::Learned, &path))?;
    }
    for path in &config.file.learned.bird {
        let path = source.resolve(path.get_ref());
        let text = text(&path)?;
        bird(&path, &text, &mut sink(exchange, tables, read, Of::Learned, &path))?;
    }
    for (slot, member) in (0..).zip(&config.file.member) {
        for path in &member.get_ref().given {
            let path = source.resolve(path.get_ref());
            tables.has_table(slot);
            table(&path, &mut sink(exchange, tables, read, Of::GivenTo(slot), &path))?;
        }
    }
    Ok(())
}

fn sink<'a>(exchange: &'a Exchange, tables: &'a mut Tables, read: &'a mut Read, of: Of, path: &Path) -> Sink<'a> {
    Sink { exchange, tables, read, of, file: path.display().to_string(), unusable: 0, routes: 0 }
}

fn full(path: &Path, error: Full) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
        .help("compare a part: one family, or the tables of fewer members")
}

/// A table of any of the forms, told by its beginning.
fn table(path: &Path, sink: &mut Sink<'_>) -> Outcome {
    let failed = |error: std::io::Error| Failure::system(path.display(), &error);
    let mut beginning = Vec::new();
    File::open(path).map_err(failed)?.take(512).read_to_end(&mut beginning).map_err(failed)?;
    // MRT begins with a time and, as both kinds of compression, has octets that no text has.
    if beginning.iter().any(|octet| *octet < 9 || *octet == 0x1f) || beginning.starts_with(b"BZh") {
        return mrt(path, sink);
    }
    let text = text(path)?;
    match text.trim_start().as_bytes().first() {
        Some(b'{') => json(path, &text, sink),
        _ => bird(path, &text, sink),
    }
}

fn text(path: &Path) -> Outcome<String> {
    let failed = |error: std::io::Error| Failure::system(path.display(), &error);
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_TEXT + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_TEXT {
        return Err(Failure::new(format!("{}: longer than {} MiB", path.display(), MAX_TEXT >> 20)).into());
    }
    Ok(text)
}

fn mrt(path: &Path, sink: &mut Sink<'_>) -> Outcome {
    let failed = |error: std::io::Error| Failure::system(path.display(), &error);
    let file = File::open(path).map_err(failed)?;
    let reader = MrtReader::new(decompress(BufReader::new(file)).map_err(failed)?.take(MAX_DUMP));
    let (mut records, mut malformed) = (0_u64, 0_u64);
    for record in reader {
        match record {
            Ok(Record::Rib(entries)) => {
                for entry in entries {
                    match entry.to_attributes() {
                        Ok(attributes) => {
                            let nlri = Nlri { path_id: entry.path_id, prefix: entry.prefix };
                            // Routes that are no peer's, such as the server's own, are under an unspecified address.
                            let peer = Some(entry.peer_address).filter(|peer| !peer.is_unspecified());
                            sink.route(peer, nlri, &attributes).map_err(|error| full(path, error))?;
                        }
                        Err(_) => sink.unusable += 1,
                    }
                }
            }
            Ok(Record::Message(message)) => {
                if let Ok((Message::Update(update), _)) = Message::decode(&message.octets, &message.params()) {
                    sink.update(message.peer_address, &update).map_err(|error| full(path, error))?;
                }
            }
            Ok(Record::Other(..)) => {}
            Err(MrtError::Body { .. }) => malformed += 1,
            Err(error @ MrtError::Frame(_)) => {
                let failure = Failure::new(format!("{}: {error}", path.display()));
                return Err(failure
                    .help(format!("a dump that is still being written ends so; {}", see_guide()))
                    .into());
            }
        }
        records += 1;
    }
    let file = path.display();
    if records == 0 {
        return Err(Failure::new(format!("{file}: no record of MRT")).help(see_guide()).into());
    }
    if malformed > 0 {
        sink.read.notes.push(format!("{file}: {malformed} of {records} records are malformed and were left out"));
    }
    if sink.unusable > 0 {
        sink.read.notes.push(format!("{file}: {} routes have attributes that cannot be used", sink.unusable));
    }
    Ok(())
}

fn bird(path: &Path, text: &str, sink: &mut Sink<'_>) -> Outcome {
    let routes = bird_routes(text).map_err(|error| {
        let failure = Failure::new(format!("{}:{}: {}", path.display(), error.line, error.what));
        failure.help(format!(
            "expected what `birdc show route all` prints, birdwatcher's or bgpctl's JSON, or MRT; {}",
            see_guide()
        ))
    })?;
    let without_path = routes.iter().filter(|route| route.attributes.as_path().is_empty()).count();
    for route in routes.iter().filter(|route| !route.attributes.as_path().is_empty()) {
        sink.listed(route.prefix, &route.attributes).map_err(|error| full(path, error))?;
    }
    if without_path > 0 {
        let file = path.display();
        sink.read.notes.push(format!(
            "{file}: {without_path} routes without an AS path were left out; `show route` needs `all` at its end"
        ));
    }
    Ok(())
}

/// Of birdwatcher's `/routes/export/PROTOCOL` and `/routes/protocol/PROTOCOL`, or of `bgpctl -j show rib`.
#[derive(Deserialize)]
struct JsonTable {
    routes: Option<Vec<BirdwatcherRoute>>,
    rib: Option<Vec<BgpctlRoute>>,
}

#[derive(Deserialize)]
struct BirdwatcherRoute {
    network: Prefix,
    #[serde(default)]
    bgp: BirdwatcherBgp,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct BirdwatcherBgp {
    origin: String,
    as_path: Vec<String>,
    next_hop: String,
    med: String,
    communities: Vec<[u32; 2]>,
    large_communities: Vec<[u32; 3]>,
    ext_communities: Vec<[String; 3]>,
}

#[derive(Deserialize)]
struct BgpctlRoute {
    prefix: Prefix,
    aspath: String,
    exit_nexthop: IpAddr,
    #[serde(default)]
    origin: String,
    #[serde(default)]
    metric: u32,
    #[serde(default)]
    communities: Vec<String>,
    #[serde(default)]
    large_communities: Vec<String>,
    #[serde(default)]
    extended_communities: Vec<String>,
}

fn origin(text: &str) -> Origin {
    match text.to_ascii_lowercase().as_str() {
        "igp" => Origin::Igp,
        "egp" => Origin::Egp,
        _ => Origin::Incomplete,
    }
}

impl BirdwatcherBgp {
    fn fields(&self) -> Option<Fields> {
        let communities = self
            .communities
            .iter()
            .map(|[upper, lower]| Some(Community::new(u16::try_from(*upper).ok()?, u16::try_from(*lower).ok()?)));
        let large = self.large_communities.iter().map(|[a, b, c]| LargeCommunity::new(*a, *b, *c));
        let extended = self.ext_communities.iter().filter(|[kind, ..]| kind == "rt" || kind == "ro");
        let extended = extended.map(|parts| parts.join(":").parse::<ExtendedCommunity>().ok());
        Some(Fields {
            next_hop: self.next_hop.split_whitespace().next().and_then(|word| word.parse().ok()),
            path: Some(path(&self.as_path.join(" "))?),
            origin: Some(origin(&self.origin)),
            med: self.med.trim().parse().ok(),
            communities: communities.collect::<Option<_>>()?,
            large: large.collect(),
            extended: extended.collect::<Option<_>>()?,
            only_to_customer: None,
        })
    }
}

impl BgpctlRoute {
    fn fields(&self) -> Option<Fields> {
        // Well-known ones by their names in capitals.
        let community = |text: &String| text.to_ascii_lowercase().replace('_', "-").parse::<Community>().ok();
        let extended = |text: &String| {
            let text = text.replacen("rt ", "rt:", 1).replacen("soo ", "ro:", 1);
            text.parse::<ExtendedCommunity>().ok()
        };
        Some(Fields {
            next_hop: Some(self.exit_nexthop),
            path: Some(path(&self.aspath)?),
            origin: Some(origin(&self.origin)),
            med: Some(self.metric).filter(|metric| *metric > 0),
            communities: self.communities.iter().map(community).collect::<Option<_>>()?,
            large: self.large_communities.iter().map(|text| text.parse().ok()).collect::<Option<_>>()?,
            // Others, such as what origin validation found, are the server's own.
            extended: self.extended_communities.iter().filter_map(extended).collect(),
            only_to_customer: None,
        })
    }
}

fn json(path: &Path, text: &str, sink: &mut Sink<'_>) -> Outcome {
    let form = "expected birdwatcher's `routes`, or `rib` of `bgpctl -j show rib out neighbor ADDRESS detail`";
    let refuse = |what: String| Failure::new(format!("{}: {what}", path.display())).help(form);
    let table: JsonTable = serde_json::from_str(text).map_err(|error| refuse(error.to_string()))?;
    if table.routes.is_none() && table.rib.is_none() {
        // What bgpctl prints of an empty table.
        let is_empty = text.trim_matches(|c: char| c.is_whitespace() || c == '{' || c == '}').is_empty();
        return if is_empty { Ok(()) } else { Err(refuse("neither `routes` nor `rib`".to_owned()).into()) };
    }
    let birdwatcher = table.routes.iter().flatten().map(|route| (route.network, route.bgp.fields()));
    let bgpctl = table.rib.iter().flatten().map(|route| (route.prefix, route.fields()));
    for (prefix, fields) in birdwatcher.chain(bgpctl) {
        let fields = fields.ok_or_else(|| refuse(format!("the route to {prefix} cannot be read")))?;
        sink.listed(prefix, &fields.attributes()).map_err(|error| full(path, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(text: &str) -> Vec<(Prefix, Attributes)> {
        let table: JsonTable = serde_json::from_str(text).expect("JSON");
        let birdwatcher = table.routes.iter().flatten().map(|route| (route.network, route.bgp.fields()));
        let bgpctl = table.rib.iter().flatten().map(|route| (route.prefix, route.fields()));
        birdwatcher.chain(bgpctl).map(|(prefix, fields)| (prefix, fields.expect("sound").attributes())).collect()
    }

    #[test]
    fn both_forms_of_json_give_the_same_routes() {
        let birdwatcher = routes(
            r#"{"api": {}, "routes": [{"network": "203.0.113.0/24", "gateway": "192.0.2.1", "bgp": {"origin": "IGP",
            "as_path": ["64501", "30"], "next_hop": "192.0.2.1", "med": "7", "local_pref": "100",
            "communities": [[65535, 65281], [64501, 7]], "large_communities": [[64500, 0, 64503]],
            "ext_communities": [["rt", "64500", "1"]]}}]}"#,
        );
        let bgpctl = routes(
            r#"{"rib": [{"prefix": "203.0.113.0/24", "aspath": "64501 30", "exit_nexthop": "192.0.2.1",
            "true_nexthop": "192.0.2.1", "neighbor": {"remote_addr": "192.0.2.1"}, "valid": true, "origin": "IGP",
            "metric": 7, "localpref": 100, "communities": ["NO_EXPORT", "64501:7"], "large_communities": ["64500:0:64503"],
            "extended_communities": ["rt 64500:1", "ovs valid"]}]}"#,
        );
        assert_eq!(birdwatcher, bgpctl);
        let (_, attributes) = &birdwatcher[0];
        assert_eq!(attributes.as_path().to_string(), "64501 30");
        assert_eq!((attributes.med(), attributes.communities().count()), (Some(7), 2));
    }
}
