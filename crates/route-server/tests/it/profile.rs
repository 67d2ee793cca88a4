//! The exchange's profile: who can change it, and what every member's proxy makes of it, whatever the announcer's proxy did.
//!
//! OPS, profile: an announcer whose proxy checks nothing announces all that the profile forbids: no honest member installs any of it.
//! OPS, data: signed by one operator, with a lower number, of another exchange: not taken, and those of before go on to count.
//! OPS, profile changes: signed by one operator, an older one shown again: refused; a new one counts for routes that are there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use wayleave_bgp::origins::{Vrp, Vrps};
use wayleave_bgp::rpki::Records;
use wayleave_bgp::{AsPathBuf, Attributes, AttributesEditor, Community, Nlri, SegmentKind};
use wayleave_core::wire::Malformed;
use wayleave_core::{Asn, Instant, Machine, Now, Prefix, UnixTime};
use wayleave_crypto::secret::{Secret, Seed};
use wayleave_crypto::sign::VerifyingKey;
use wayleave_route_server::data::{Data, DataObject, MemberLists, PrefixList, PrefixRange};
use wayleave_route_server::digests::Roots;
use wayleave_route_server::directory::{
    Blackhole, ChainError, Change, DataRules, Directory, Lengths, Profile, Proposal, SetError, Succession, TRANSIT_FREE,
};
use wayleave_route_server::frames::{Body, Deliver, FromMember, SessionId, Slice, Tick, ToMember};
use wayleave_route_server::member::{Cause, Member, MemberConfig, MemberEvent, MemberInput, MemberOutput, OfferedData};
use wayleave_route_server::object::{self, Description, ExportMode, Format, Fresh, Handle, Kind};
use wayleave_route_server::party::{PartyNumber, StoredRecord};
use wayleave_route_server::policy::{Policy, PolicyConfig};
use wayleave_route_server::versions::{FORMATS, VERSIONS};

use crate::common::{OPERATORS, admit, attributes, both, empty, key, lan4, member_config, prefix, request};

const NOW: Now = Now { instant: Instant(0), unix: UnixTime(1_700_000_000_000_000) };
const EXCHANGE: &str = "test-ix";
const EPOCH: u64 = 1;
/// The announcer and the receiver: their keys' numbers, slots and ASes.
const HOSTILE: (u8, u32, u32) = (1, 0, 200_001);
const HONEST: (u8, u32, u32) = (2, 1, 200_002);
const BLACKHOLE4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 66);
const BLACKHOLE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 0x66);

fn members() -> Directory {
    admit(&empty(), &[HOSTILE, HONEST].map(|(number, _, asn)| request(number, asn)))
}

fn with_profile(directory: &Directory, profile: Profile) -> Directory {
    both(directory, vec![Change::Profile(profile)])
}

/// All rules, and BLACKHOLE for these.
fn strict(allowed: Option<Vec<Asn>>) -> Profile {
    let blackhole = Blackhole { next_hop4: Some(BLACKHOLE4), next_hop6: Some(BLACKHOLE6), allowed };
    Profile { transit_free: TRANSIT_FREE.to_vec(), blackhole: Some(blackhole), ..Profile::default() }
}

#[test]
fn a_profile_counts_once_both_operators_signed_it_and_the_last_one_is_in_force() {
    let before = members();
    assert_eq!(before.set().profile, None);
    let step = before.propose(vec![Change::Profile(Profile::default())]);
    for keys in [[200, 200], [201, 201], [1, 201], [200, 1]] {
        let refused = before.signed_by_both(vec![Change::Profile(Profile::default())], [&key(keys[0]), &key(keys[1])]);
        assert!(matches!(refused, Err(ChainError::NotSigned { .. })), "{keys:?}");
    }
    let proposal = Proposal::sign(&before, step, &key(OPERATORS[0])).expect("an operator's");
    let read = Proposal::decode(&proposal.encode()).expect("what was encoded");
    let first = read.countersign(&before, &key(OPERATORS[1])).expect("the other operator");
    assert_eq!(first.set().profile, Some(Profile::default()));
    let second = with_profile(&first, strict(None));
    assert_eq!(second.set().profile, Some(strict(None)));
    let read = Directory::decode(&second.encode()).expect("sound");
    assert_eq!((read.set(), read.encode()), (second.set(), second.encode()));
    // Other changes leave it, and an older set brings no older profile back.
    let joined = admit(&second, &[request(3, 200_003)]);
    assert_eq!(joined.set().profile, Some(strict(None)));
    assert!(matches!(joined.succeed(&first.encode()), Ok(Succession::Older(_))));
    let removed = joined.without(2, &key(OPERATORS[0])).expect("an operator");
    assert_eq!(removed.set().profile, Some(strict(None)));
}

#[test]
fn a_profile_that_changes_nothing_or_means_nothing_is_refused() {
    let directory = with_profile(&members(), strict(None));
    let [one, two] = OPERATORS.map(key);
    let refused = |profile: Profile| match directory.signed_by_both(vec![Change::Profile(profile)], [&one, &two]) {
        Err(ChainError::Set { error, .. }) => error,
        other => panic!("not refused for its content: {other:?}"),
    };
    assert_eq!(refused(strict(None)), SetError::Empty);
    let profile = Profile { ipv4: Lengths { shortest: 0, longest: 24 }, ..Profile::default() };
    assert_eq!(refused(profile), SetError::Profile(Malformed::Value("the lengths of prefixes")));
    let profile = Profile { transit_free: vec![Asn(2), Asn(1)], ..Profile::default() };
    assert_eq!(refused(profile), SetError::Profile(Malformed::Order("transit-free ASes")));
}

/// A member's proxy, and the two parties of a test that send it what they like.
struct Exchange {
    member: Member,
    session: SessionId,
    seq: u64,
    version: u64,
    directory: Directory,
}

impl Exchange {
    /// The member in `slot` with the key `number`, connected, with all that there is.
    fn new(of: (u8, u32, u32), directory: Directory) -> Self {
        Self::with_role(of, directory, true)
    }

    /// The same with a role of its session (RFC 9234), or without one.
    fn with_role(of: (u8, u32, u32), directory: Directory, has_role: bool) -> Self {
        Self::started(of, directory, has_role, &[])
    }

    /// The same, with what its store has.
    fn started(
        (number, slot, _): (u8, u32, u32),
        directory: Directory,
        has_role: bool,
        stored: &[StoredRecord],
    ) -> Self {
        let operators = OPERATORS.map(|number| key(number).verifying_key()) as [VerifyingKey; 2];
        let config = MemberConfig { accept_as_set: true, has_role, ..member_config(slot, operators) };
        let policy = Policy::compile(&PolicyConfig::default()).expect("the default policy");
        let seed: Seed = Secret::new([3; 32]);
        let member = Member::new(config, Box::new(policy), key(number), &seed, stored, NOW);
        let mut exchange = Self { member, session: Default::default(), seq: 0, version: 0, directory };
        for (link, party) in [(1, PartyNumber::One), (2, PartyNumber::Two)] {
            exchange.member.handle(MemberInput::LinkUp { link, party, exporter: Secret::new([4; 32]) }, NOW);
        }
        let hello = exchange.sent().into_iter().find_map(|frame| match frame {
            FromMember::Hello { session, .. } => Some(session),
            _ => None,
        });
        exchange.session = hello.expect("a hello");
        let welcome = ToMember::Welcome {
            versions: VERSIONS,
            session: exchange.session,
            epoch: EPOCH,
            high_water: 0,
            tick_ms: 0,
            export: ExportMode::Direct,
            max_blob: 8192,
            budget: Default::default(),
            format: FORMATS.highest,
            later: Vec::new(),
            set: exchange.directory.encode().into(),
        };
        exchange.both(&welcome);
        let slice = Slice { begins: Some(true), own_ends: true, ..Slice::default() };
        exchange.tick(Tick { slice: Some(slice), ..Tick::default() });
        exchange
    }

    /// A frame from each party.
    fn both(&mut self, frame: &ToMember) {
        for link in [1, 2] {
            self.member.handle(MemberInput::Frame { link, bytes: frame.encode() }, NOW);
        }
    }

    /// What the member does, with every write durable at once: the frames that it sends to party 1.
    fn sent(&mut self) -> Vec<FromMember> {
        let mut frames = Vec::new();
        while let Some(output) = self.member.poll() {
            match output {
                MemberOutput::Send { link: 1, frame } => frames.push(FromMember::decode(&frame).expect("a frame")),
                MemberOutput::Persist { id, .. } => self.member.handle(MemberInput::Persisted(id), NOW),
                MemberOutput::Close { reason, .. } => panic!("closed: {reason}"),
                _ => {}
            }
        }
        frames
    }

    fn tick(&mut self, tick: Tick) {
        self.seq += 1;
        self.both(&ToMember::Tick(Box::new(Tick { seq: self.seq, ..tick })));
    }

    /// A set that both parties show from now on.
    fn show(&mut self, directory: Directory) {
        self.both(&ToMember::Renew { epoch: EPOCH, set: directory.encode().into() });
        self.directory = directory;
    }

    /// The hostile member's object, made without any check, as both parties deliver it.
    fn deliver(&mut self, prefix: Prefix, attributes: &Attributes) -> Handle {
        self.version += 1;
        let (number, slot, _) = HOSTILE;
        let description = Description {
            format: Format::default(),
            slot,
            set: self.directory.set().number,
            epoch: EPOCH,
            version: self.version,
            salt: [u8::try_from(self.version).expect("few"); 32],
            kind: Kind::Announce { prefixes: vec![Nlri::new(prefix)] },
        };
        let fresh = Fresh { key: [7; 16], seed: [8; 32], openings: [[9; 32], [10; 32]] };
        let exported = vec![true; self.directory.set().slots.len()];
        let route: (&[u8], _) = (&attributes.encode(), &[0; 32]);
        let sealed =
            object::announce(ExportMode::Direct, EXCHANGE, description, route, &exported, &fresh, &key(number));
        let handle = sealed.header.description.handle(EXCHANGE);
        let receiver = HONEST.1;
        let two: [u8; 16] = sealed.two.row[receiver as usize * 16..][..16].try_into().expect("16 octets a slot");
        let shares = [sealed.one.key_share(None, receiver), two];
        let bodies = [Body::Blob(sealed.blob.clone().into()), Body::Hash(object::blob_hash(&sealed.blob))];
        self.seq += 1;
        for (link, (share, body)) in (1..).zip(shares.into_iter().zip(bodies)) {
            let tick = Tick {
                seq: self.seq,
                deliver: vec![Deliver { handle, epoch: EPOCH, share, dead: Vec::new(), body }],
                instances: vec![[(handle, 0)].into()],
                live: 1,
                ..Tick::default()
            };
            self.member.handle(MemberInput::Frame { link, bytes: ToMember::Tick(Box::new(tick)).encode() }, NOW);
        }
        handle
    }

    /// The route that the member's router has.
    fn installed(&self, prefix: Prefix) -> Option<Attributes> {
        self.member.installed().find(|(of, ..)| *of == prefix).map(|(.., attributes)| attributes.clone())
    }
}

/// A route of the hostile member, with this path behind its own AS.
fn route(path: &[u32]) -> AttributesEditor {
    let (number, _, asn) = HOSTILE;
    attributes(&[&[asn], path].concat(), number)
}

fn with_as_set(asns: &[u32]) -> Attributes {
    let mut path = AsPathBuf::from_sequence(&[Asn(HOSTILE.2)]);
    path.push_segment(SegmentKind::Set, &asns.iter().copied().map(Asn).collect::<Vec<_>>());
    let mut editor = route(&[]);
    editor.as_path(path.as_path());
    editor.finish()
}

fn with(editor: &mut AttributesEditor, communities: &[Community]) -> Attributes {
    editor.communities(communities).finish()
}

/// What no member may announce while [`strict`] lets others have blackholes alone, each with arouteserver's number of the reason. AS 0 is
/// not among it: no path with it is read at all (RFC 7607).
fn forbidden() -> Vec<(&'static str, &'static str, Attributes, Option<u32>)> {
    let blackhole = || with(&mut route(&[]), &[Community::BLACKHOLE]);
    let long: Vec<u32> = vec![200_009; 32];
    vec![
        ("too specific", "8.8.8.0/25", route(&[]).finish(), Some(13)),
        ("a host", "8.8.8.8/32", route(&[]).finish(), Some(13)),
        ("too wide", "8.0.0.0/7", route(&[]).finish(), Some(13)),
        ("too specific, IPv6", "2600::/49", route(&[]).finish(), Some(13)),
        ("too wide, IPv6", "2600::/11", route(&[]).finish(), Some(13)),
        ("AS_TRANS", "8.8.10.0/24", route(&[23_456, 200_009]).finish(), Some(7)),
        ("a private AS", "8.8.11.0/24", route(&[64_512]).finish(), Some(7)),
        ("a documentation AS", "8.8.12.0/24", route(&[64_496]).finish(), Some(7)),
        ("the last AS", "8.8.13.0/24", route(&[u32::MAX]).finish(), Some(7)),
        ("a leak", "8.8.14.0/24", route(&[200_009, 3356, 200_010]).finish(), Some(8)),
        ("33 hops", "8.8.15.0/24", route(&long).finish(), Some(1)),
        ("an AS_SET", "8.8.16.0/24", with_as_set(&[200_009, 200_010]), Some(7)),
        ("a blackhole", "8.8.17.0/24", blackhole(), None),
        ("a host's blackhole", "8.8.17.8/32", blackhole(), None),
        ("a host's blackhole, IPv6", "2600:1::1/128", blackhole(), None),
    ]
}

#[test]
fn no_honest_member_installs_what_the_profile_forbids_whatever_the_announcers_proxy_does() {
    // Another member may have blackholes: the hostile one announces them all the same.
    let profile = strict(Some(vec![Asn(HONEST.2)]));
    let mut honest = Exchange::new(HONEST, with_profile(&members(), profile));
    let mut without = Exchange::new(HONEST, members());
    for (name, at, attributes, _) in forbidden() {
        honest.deliver(prefix(at), &attributes);
        without.deliver(prefix(at), &attributes);
        assert_eq!(honest.installed(prefix(at)), None, "{name}");
        assert!(without.installed(prefix(at)).is_some(), "{name}: without a profile it would be");
        let why = honest.member.why(prefix(at));
        assert!(why.routes[0].reason.outcome.starts_with("not used: "), "{name}: {why:?}");
    }
    honest.deliver(prefix("8.8.8.0/24"), &route(&[200_009]).finish());
    assert!(honest.installed(prefix("8.8.8.0/24")).is_some(), "what it allows is there");
    assert_eq!(honest.member.counters().alarms, 0);
    let refused = honest.member.status().refused_at_receive;
    assert_eq!((refused["prefix-length"], refused["bogon-asn"], refused["blackhole"]), (5, 4, 3), "{refused:?}");
}

/// With a profile and without one.
#[test]
fn no_honest_member_installs_a_path_with_a_segment_of_a_confederation() {
    for directory in [members(), with_profile(&members(), Profile { refuse_as_set: false, ..Profile::default() })] {
        let mut honest = Exchange::new(HONEST, directory);
        for (kind, at) in [(SegmentKind::ConfedSequence, "8.8.8.0/24"), (SegmentKind::ConfedSet, "8.8.9.0/24")] {
            let mut path = AsPathBuf::from_sequence(&[Asn(HOSTILE.2)]);
            path.push_segment(kind, &[Asn(200_009); 40]);
            let mut editor = route(&[]);
            editor.as_path(path.as_path());
            honest.deliver(prefix(at), &editor.finish());
            assert_eq!(honest.installed(prefix(at)), None, "{kind:?}");
            let why = honest.member.why(prefix(at));
            assert!(why.routes[0].reason.outcome.contains("a segment of a confederation"), "{kind:?}: {why:?}");
        }
        assert_eq!(honest.member.status().refused_at_receive["confederation"], 2);
        assert_eq!(honest.member.counters().alarms, 0);
    }
}

#[test]
fn a_permitted_blackhole_leads_to_the_exchanges_next_hop_and_does_not_leave_the_receivers_network() {
    let mut honest = Exchange::new(HONEST, with_profile(&members(), strict(None)));
    let blackhole = with(&mut route(&[]), &[Community::BLACKHOLE, Community::new(200, 1)]);
    for at in ["8.8.8.8/32", "8.8.9.0/24", "2600::1/128"] {
        honest.deliver(prefix(at), &blackhole);
        let installed = honest.installed(prefix(at)).expect(at);
        let next_hop: IpAddr = match prefix(at).address() {
            IpAddr::V4(_) => installed.ipv4_next_hop().expect("one").into(),
            IpAddr::V6(_) => installed.ipv6_next_hop().expect("one").global.into(),
        };
        let expected: IpAddr = if next_hop.is_ipv4() { BLACKHOLE4.into() } else { BLACKHOLE6.into() };
        assert_eq!(next_hop, expected, "{at}");
        let communities: Vec<Community> = installed.communities().collect();
        assert_eq!(communities, [Community::BLACKHOLE, Community::new(200, 1), Community::NO_EXPORT], "{at}");
    }
    // The next hop of the announcement counts before that: nobody announces the exchange's, or another member's.
    let mut stolen = route(&[]);
    stolen.ipv4_next_hop(BLACKHOLE4);
    honest.deliver(prefix("8.8.10.10/32"), &with(&mut stolen, &[Community::BLACKHOLE]));
    assert_eq!(honest.installed(prefix("8.8.10.10/32")), None);
    // Without the community, or without a next hop of the profile, a route keeps its own.
    honest.deliver(prefix("8.8.11.0/24"), &route(&[]).finish());
    let plain = honest.installed(prefix("8.8.11.0/24")).expect("allowed");
    assert_eq!((plain.ipv4_next_hop().map(IpAddr::from), plain.communities().count()), (Some(lan4(HOSTILE.0)), 0));
    let profile = Profile { blackhole: Some(Blackhole::default()), ..Profile::default() };
    honest.show(with_profile(&honest.directory.clone(), profile));
    let kept = honest.installed(prefix("8.8.8.8/32")).expect("still permitted");
    assert_eq!(kept.ipv4_next_hop().map(IpAddr::from), Some(lan4(HOSTILE.0)));
    assert!(kept.communities().any(|community| community == Community::NO_EXPORT));
}

/// What is announced has a ROA, up to its length; of a blackhole in it the origin counts alone.
#[test]
fn a_permitted_blackhole_needs_no_roa_of_its_own_length_and_still_the_right_origin() {
    let vrp = |text: &str, max_length, asn| Vrp { prefix: prefix(text), max_length, asn: Asn(asn) };
    let vrps = [vrp("8.8.8.0/24", 24, HOSTILE.2), vrp("8.8.9.0/24", 24, 200_009), vrp("8.8.10.0/24", 24, 0)];
    let records = Records::from(vrps.into_iter().collect::<Vrps>());
    let blackhole = with(&mut route(&[]), &[Community::BLACKHOLE]);
    let loose = Profile { ipv4: Lengths { shortest: 8, longest: 32 }, ..strict(None) };
    let mut honest = Exchange::new(HONEST, with_profile(&members(), loose));
    honest.member.handle(MemberInput::Origins(Some(records.clone())), NOW);
    for (at, attributes, is_used) in [
        ("8.8.8.8/32", &blackhole, true),
        ("8.8.8.9/32", &route(&[]).finish(), false),
        ("8.8.9.8/32", &blackhole, false),
        ("8.8.10.8/32", &blackhole, false),
    ] {
        honest.deliver(prefix(at), attributes);
        assert_eq!(honest.installed(prefix(at)).is_some(), is_used, "{at}: {:?}", honest.member.why(prefix(at)));
    }
    assert_eq!(honest.member.status().refused_at_receive["rpki-invalid"], 3);
    // Without blackholes of an exchange the community changes nothing.
    let mut without = Exchange::new(HONEST, members());
    without.member.handle(MemberInput::Origins(Some(records.clone())), NOW);
    without.deliver(prefix("8.8.8.8/32"), &blackhole);
    assert_eq!(without.installed(prefix("8.8.8.8/32")), None);
    // The announcer's proxy lets out what receivers use.
    let mut announcer = Exchange::new(HOSTILE, with_profile(&members(), strict(None)));
    announcer.member.handle(MemberInput::Origins(Some(records)), NOW);
    announcer.member.handle(MemberInput::RouterUp, NOW);
    let update = MemberInput::ClearedUpdate {
        withdrawn: Vec::new(),
        announced: ["8.8.8.8/32", "8.8.9.8/32"].map(|at| Nlri::new(prefix(at))).into(),
        attributes: Some(blackhole),
    };
    announcer.member.handle(update, NOW);
    assert_eq!(submitted(announcer.sent()), (vec![prefix("8.8.8.8/32")], Vec::new()));
}

#[test]
fn a_new_profile_counts_at_once_for_routes_that_are_there() {
    let mut honest = Exchange::new(HONEST, members());
    let at = prefix("8.8.8.0/25");
    let handle = honest.deliver(at, &route(&[]).finish());
    assert!(honest.installed(at).is_some());
    let refuses = with_profile(&members(), Profile::default());
    honest.show(refuses.clone());
    assert_eq!(honest.installed(at), None);
    let loose = Profile { ipv4: Lengths { shortest: 8, longest: 25 }, ..Profile::default() };
    let takes = with_profile(&refuses, loose);
    honest.show(takes.clone());
    assert!(honest.installed(at).is_some());

    // One whose object both parties lost stays in the router, and only as long as the profile takes it.
    let slice = Slice { begins: Some(false), lost: vec![(handle, 0, vec![0])], ..Slice::default() };
    // The member asks again where this is not what it has, which changes nothing here.
    let roots = Roots { objects: [0; 16], instances: [0; 16] };
    let slice = Slice { ends: Some(roots), own_ends: true, ..slice };
    honest.tick(Tick { slice: Some(slice), ..Tick::default() });
    honest.tick(Tick { gone: vec![handle], ..Tick::default() });
    assert_eq!((honest.member.status().objects, honest.member.status().kept), (0, 1));
    assert!(honest.installed(at).is_some());
    honest.show(with_profile(&takes, Profile::default()));
    assert_eq!((honest.installed(at), honest.member.status().kept), (None, 0));
}

/// That each customer's provider is this one; nothing of origins.
fn providers(pairs: &[(u32, u32)]) -> Option<Records> {
    let aspas = pairs.iter().map(|(customer, provider)| (Asn(*customer), Asn(*provider))).collect();
    Some(Records { aspas: Arc::new(aspas), ..Records::default() })
}

#[test]
fn a_path_that_is_a_leak_by_aspa_records_is_refused_as_long_as_they_and_the_profile_say_so() {
    let strict = Profile { refuse_aspa_invalid: true, refuse_as_set: false, ..Profile::default() };
    let refuses = with_profile(&members(), strict);
    let mut honest = Exchange::new(HONEST, refuses.clone());
    let (leaked, other, own) = (prefix("8.8.8.0/24"), prefix("8.8.9.0/24"), prefix("8.8.10.0/24"));
    // 200009 buys from 200010 alone, and the announcer hands its route on.
    honest.member.handle(MemberInput::Origins(providers(&[(200_009, 200_010)])), NOW);
    let handle = honest.deliver(leaked, &route(&[200_009, 200_009]).finish());
    honest.deliver(other, &route(&[200_010, 200_009]).finish());
    honest.deliver(own, &route(&[]).finish());
    let installed = |honest: &Exchange| [leaked, other, own].map(|at| honest.installed(at).is_some());
    assert_eq!(installed(&honest), [false, true, true], "{:?}", honest.member.why(leaked));
    assert_eq!(honest.member.status().refused_at_receive, [("aspa-invalid", 1)].into());
    let why = honest.member.why(leaked);
    let said = format!(
        "not used: ASPA-invalid: AS200009 does not list AS{}, its next AS on the path, as a provider",
        HOSTILE.2
    );
    assert_eq!(why.routes[0].reason.outcome, said);
    let states = [leaked, other, own]
        .map(|at| honest.member.why(at).routes[0].aspa.as_ref().map(|aspa| aspa.state).unwrap_or_default());
    assert_eq!(states, ["invalid", "unknown", "valid"]);

    // The customer adds the announcer, another one takes it away, nothing is known any more, all is back.
    for (records, expected) in [
        (providers(&[(200_009, 200_010), (200_009, HOSTILE.2)]), [true, true, true]),
        (providers(&[(200_009, HOSTILE.2), (200_010, 0)]), [true, false, true]),
        (None, [true, true, true]),
        (providers(&[]), [true, true, true]),
        (providers(&[(200_009, 200_010)]), [false, true, true]),
    ] {
        honest.member.handle(MemberInput::Origins(records.clone()), NOW);
        assert_eq!(installed(&honest), expected, "{records:?}");
    }
    // A set says no order: invalid, where there are records at all.
    let with_set = prefix("8.8.11.0/24");
    honest.deliver(with_set, &with_as_set(&[200_011]));
    assert_eq!(honest.installed(with_set), None);
    honest.member.handle(MemberInput::Origins(providers(&[])), NOW);
    assert!(honest.installed(with_set).is_some());

    // One whose object both parties lost stays in the router, and only as long as the records let it.
    let roots = Roots { objects: [0; 16], instances: [0; 16] };
    let slice = Slice { begins: Some(false), lost: vec![(handle, 0, vec![0])], ..Slice::default() };
    let slice = Slice { ends: Some(roots), own_ends: true, ..slice };
    honest.tick(Tick { slice: Some(slice), ..Tick::default() });
    honest.tick(Tick { gone: vec![handle], ..Tick::default() });
    assert_eq!((honest.member.status().kept, honest.installed(leaked).is_some()), (1, true));
    honest.member.handle(MemberInput::Origins(providers(&[(200_009, 200_010)])), NOW);
    assert_eq!((honest.member.status().kept, honest.installed(leaked)), (0, None));

    // The default profile refuses none, and the announcer's proxy announces none that is refused.
    let lenient = with_profile(&members(), Profile { refuse_as_set: false, ..Profile::default() });
    for (directory, is_refused) in [(lenient, false), (refuses, true)] {
        let mut announcer = Exchange::new(HOSTILE, directory);
        announcer.member.handle(MemberInput::Origins(providers(&[(200_009, 200_010)])), NOW);
        announcer.member.handle(MemberInput::RouterUp, NOW);
        let update = MemberInput::ClearedUpdate {
            withdrawn: Vec::new(),
            announced: [Nlri::new(leaked)].into(),
            attributes: Some(route(&[200_009]).finish()),
        };
        announcer.member.handle(update, NOW);
        let expected = if is_refused { Vec::new() } else { vec![leaked] };
        assert_eq!(submitted(announcer.sent()).0, expected);
        let checks = announcer.member.why(leaked).own[0].checks.clone();
        let check = checks.into_iter().find(|check| check.check == "path (ASPA)").expect("a check");
        assert_eq!(check.passed, !is_refused, "{check:?}");
        if is_refused {
            announcer.member.handle(MemberInput::Origins(providers(&[(200_009, HOSTILE.2)])), NOW);
            assert_eq!(submitted(announcer.sent()).0, [leaked], "the record allows it now");
            announcer.member.handle(MemberInput::Origins(providers(&[(200_009, 200_010)])), NOW);
            assert_eq!(announcer.member.status().refused_at_announce, [("aspa-invalid", 1)].into());
        }
    }
}

/// Prefixes that a member's frames announce, and that they withdraw.
fn submitted(frames: Vec<FromMember>) -> (Vec<Prefix>, Vec<Prefix>) {
    let (mut announced, mut withdrawn) = (Vec::new(), Vec::new());
    for frame in frames {
        let FromMember::SubmitOne { header, .. } = frame else { continue };
        match header.description.kind {
            Kind::Announce { prefixes } => announced.extend(prefixes.iter().map(|nlri| nlri.prefix)),
            Kind::Withdraw { prefixes } => withdrawn.extend(prefixes.iter().map(|nlri| nlri.prefix)),
            Kind::Column { .. } => {}
        }
    }
    (announced, withdrawn)
}

#[test]
fn an_honest_announcer_leaves_out_what_receivers_would_refuse_and_follows_a_new_profile() {
    let mut announcer = Exchange::new(HOSTILE, members());
    announcer.member.handle(MemberInput::RouterUp, NOW);
    let at = prefix("8.8.8.0/25");
    let update = MemberInput::ClearedUpdate {
        withdrawn: Vec::new(),
        announced: vec![Nlri::new(at)],
        attributes: Some(route(&[]).finish()),
    };
    announcer.member.handle(update, NOW);
    assert_eq!(submitted(announcer.sent()), (vec![at], Vec::new()));
    let refuses = with_profile(&members(), Profile::default());
    announcer.show(refuses.clone());
    assert_eq!(submitted(announcer.sent()), (Vec::new(), vec![at]));
    let status = announcer.member.status();
    assert!(status.withheld[0].why.contains("not of the lengths that this exchange takes, 8 to 24"), "{status:?}");
    assert_eq!(status.refused_at_announce.into_iter().collect::<Vec<_>>(), [("prefix-length", 1)]);
    let own = &announcer.member.why(at).own[0];
    let failed: Vec<&str> = own.checks.iter().filter(|check| !check.passed).map(|check| check.check).collect();
    assert_eq!(failed, ["prefix length"]);
    let loose = Profile { ipv4: Lengths { shortest: 8, longest: 25 }, ..Profile::default() };
    announcer.show(with_profile(&refuses, loose));
    assert_eq!(submitted(announcer.sent()), (vec![at], Vec::new()));
}

/// Without a role of the session OTC is not looked at before the announcement, and at every receiver all the same.
#[test]
fn what_is_announced_with_otc_is_said_to_be_refused_by_every_receiver() {
    let mut announcer = Exchange::with_role(HOSTILE, members(), false);
    announcer.member.handle(MemberInput::RouterUp, NOW);
    let at = prefix("8.8.8.0/24");
    let update = MemberInput::ClearedUpdate {
        withdrawn: Vec::new(),
        announced: vec![Nlri::new(at)],
        attributes: Some(route(&[]).only_to_customer(Some(Asn(64_496))).finish()),
    };
    announcer.member.handle(update, NOW);
    assert_eq!(submitted(announcer.sent()), (vec![at], Vec::new()), "it is announced");
    let own = &announcer.member.why(at).own[0];
    let failed: Vec<&str> = own.checks.iter().filter(|check| !check.passed).map(|check| check.check).collect();
    assert_eq!(failed, ["route leak"]);
    assert!(own.reason.outcome.starts_with("announced, but every receiver refuses it: it carries OTC"), "{own:?}");
}

#[test]
fn each_reason_has_arouteservers_number() {
    use wayleave_route_server::policy::validate::{Martians, RouteRules, validate};
    let profile = strict(Some(vec![Asn(HONEST.2)]));
    let rules = RouteRules { profile: Some(&profile), accept_as_set: true, ..RouteRules::default() };
    let directory = members();
    let announcer = &directory.set().slots[0];
    for (name, at, attributes, number) in forbidden() {
        let invalid = validate(prefix(at), &attributes, announcer, rules).expect_err(name);
        assert_eq!(Cause::of(&invalid).numbers().1, number, "{name}: {invalid}");
    }
    // A laboratory's documentation and private AS numbers, and no others.
    let rules = RouteRules { martians: Martians::AllowDocumentation, ..rules };
    for (asn, is_taken) in [(64_496, true), (65_536, true), (64_512, true), (4_200_000_000, true), (0, false)] {
        let checked = validate(prefix("8.8.8.0/24"), &route(&[asn]).finish(), announcer, rules);
        assert_eq!(checked.is_ok(), is_taken, "{asn}");
    }
    // A member that is itself transit-free announces its own path, and not one through another.
    let own = wayleave_route_server::directory::Slot { asn: Asn(3356), ..announcer.clone() };
    let path = |path: &[u32]| attributes(path, HOSTILE.0).finish();
    let rules = RouteRules { martians: Martians::Refuse, ..rules };
    assert!(validate(prefix("8.8.8.0/24"), &path(&[3356, 3356, 200_009]), &own, rules).is_ok());
    assert!(validate(prefix("8.8.8.0/24"), &path(&[3356, 1299, 200_009]), &own, rules).is_err());
    // Where the profile lets them, a member's own setting decides on AS_SETs; nothing loosens one that does not.
    let lets = Profile { refuse_as_set: false, ..Profile::default() };
    let route = with_as_set(&[200_009, 200_010]);
    for (profile, accept_as_set, is_taken) in
        [(&lets, true, true), (&lets, false, false), (&profile, true, false), (&profile, false, false)]
    {
        let rules = RouteRules { profile: Some(profile), accept_as_set, ..RouteRules::default() };
        let checked = validate(prefix("8.8.8.0/24"), &route, announcer, rules);
        assert_eq!(checked.is_ok(), is_taken, "{accept_as_set}");
    }
}

/// The machine keys of both operators.
const MACHINES: [u8; 2] = [210, 211];

fn data_rules() -> DataRules {
    DataRules { keys: MACHINES.map(|of| key(of).verifying_key().to_bytes()), ..DataRules::default() }
}

fn with_data(directory: &Directory, rules: DataRules) -> Directory {
    both(directory, vec![Change::Profile(strict(None)), Change::Data(Some(rules))])
}

fn ranges(of: &[(&str, u8, u8)]) -> PrefixList {
    let range = |(text, least, most): &(&str, u8, u8)| PrefixRange { prefix: prefix(text), least: *least, most: *most };
    PrefixList::of(of.iter().map(range)).expect("ranges")
}

/// What the registries have of the hostile member.
fn lists() -> MemberLists {
    MemberLists {
        origins: Some([HOSTILE.2, 200_009].map(Asn).into()),
        prefixes: Some(ranges(&[("8.8.8.0/22", 22, 24), ("2600::/32", 32, 32)])),
        max_prefixes: [0; 2],
    }
}

fn data(directory: &Directory, number: u64, of_hostile: Option<MemberLists>) -> Data {
    let members = of_hostile.into_iter().map(|lists| (Asn(HOSTILE.2), lists)).collect();
    let bogons = ranges(&[("9.9.0.0/16", 16, 32)]);
    Data { exchange: directory.origin(), number, made: 1_000, until: NOW.unix.secs() + 1, bogons, members }
}

/// Data that these machines signed.
fn signed(data: Data, machines: &[u8]) -> OfferedData {
    let (exchange, mut object) = (data.exchange, DataObject::new(data).expect("sound"));
    for machine in machines {
        object.sign(&exchange, &data_rules(), &key(*machine)).expect("a machine key");
    }
    OfferedData::of(object.encode()).expect("data")
}

impl Exchange {
    /// Why the data are refused, if they are; and whether they were written to the store.
    fn offer(&mut self, offered: OfferedData) -> (Option<String>, Option<Vec<u8>>) {
        self.member.handle(MemberInput::Data(Box::new(offered)), NOW);
        let (mut refused, mut kept) = (None, None);
        while let Some(output) = self.member.poll() {
            match output {
                MemberOutput::Event(MemberEvent::DataRefused { why, .. }) => refused = Some(why),
                MemberOutput::Persist { id, changes } => {
                    kept = changes.into_iter().find(|change| change.key == b"data").and_then(|change| change.value);
                    self.member.handle(MemberInput::Persisted(id), NOW);
                }
                _ => {}
            }
        }
        (refused, kept)
    }
}

#[test]
fn rules_of_data_are_signed_as_the_profile_is_and_their_keys_have_no_other_role() {
    let before = members();
    let directory = with_data(&before, data_rules());
    assert_eq!(directory.set().data, Some(data_rules()));
    assert_eq!(Directory::decode(&directory.encode()).expect("sound").set(), directory.set());
    let [one, two] = OPERATORS.map(key);
    let refused = |directory: &Directory, change| match directory.signed_by_both(vec![change], [&one, &two]) {
        Err(ChainError::Set { error, .. }) => error,
        other => panic!("not refused for its content: {other:?}"),
    };
    assert_eq!(refused(&directory, Change::Data(Some(data_rules()))), SetError::Empty);
    assert_eq!(refused(&before, Change::Data(None)), SetError::Empty);
    let taken =
        |of: u8| DataRules { keys: [MACHINES[0], of].map(|of| key(of).verifying_key().to_bytes()), ..data_rules() };
    for of in [OPERATORS[0], HONEST.0] {
        assert_eq!(refused(&before, Change::Data(Some(taken(of)))), SetError::KeyInTwoRoles, "{of}");
    }
    assert!(matches!(refused(&before, Change::Data(Some(taken(MACHINES[0])))), SetError::Profile(_)), "one key twice");
    let joined = directory.requested(&request(MACHINES[1], 200_003), 100).expect("a request");
    assert_eq!(refused(&directory, joined), SetError::KeyInTwoRoles);
    let [first, second] = data_rules().keys;
    let swapped = DataRules { keys: [second, first], ..data_rules() };
    assert_eq!(
        refused(&directory, Change::Data(Some(swapped))),
        SetError::KeyInTwoRoles,
        "once of one operator's machine"
    );
    let without = both(&directory, vec![Change::Data(None)]);
    assert_eq!(without.set().data, None);
    assert_eq!(Directory::decode(&without.encode()).expect("sound").set(), without.set());
}

#[test]
fn no_honest_member_installs_what_the_registries_do_not_have_whatever_the_announcers_proxy_does() {
    let directory = with_data(&members(), data_rules());
    let mut honest = Exchange::new(HONEST, directory.clone());
    let routes = || {
        [
            ("listed", "8.8.8.0/24", route(&[200_009]).finish(), None),
            ("listed, IPv6", "2600::/32", route(&[]).finish(), None),
            ("another origin", "8.8.9.0/24", route(&[200_010]).finish(), Some(Cause::IrrOrigin)),
            ("an AS_SET's", "8.8.9.0/24", route(&[200_009, 200_010]).finish(), Some(Cause::IrrOrigin)),
            ("another prefix", "8.8.12.0/24", route(&[]).finish(), Some(Cause::IrrPrefix)),
            ("too specific, IPv6", "2600::/48", route(&[]).finish(), Some(Cause::IrrPrefix)),
            ("both", "8.8.13.0/24", route(&[200_010]).finish(), Some(Cause::IrrOrigin)),
            ("a bogon of the data", "9.9.9.0/24", route(&[]).finish(), Some(Cause::BogonPrefix)),
            ("a blackhole", "8.8.8.8/32", with(&mut route(&[]), &[Community::BLACKHOLE]), None),
            (
                "another's blackhole",
                "8.8.4.4/32",
                with(&mut route(&[]), &[Community::BLACKHOLE]),
                Some(Cause::IrrPrefix),
            ),
        ]
    };
    for (name, at, attributes, _) in routes() {
        honest.deliver(prefix(at), &attributes);
        assert!(honest.installed(prefix(at)).is_some(), "{name}: before there are data, nothing is refused by them");
    }
    let mut honest = Exchange::new(HONEST, directory.clone());
    let (refused, kept) = honest.offer(signed(data(&directory, 3, Some(lists())), &MACHINES));
    assert!(refused.is_none() && kept.is_some(), "{refused:?}");
    for (name, at, attributes, cause) in routes() {
        honest.deliver(prefix(at), &attributes);
        let why = honest.member.why(prefix(at));
        assert_eq!(honest.installed(prefix(at)).is_some(), cause.is_none(), "{name}: {why:?}");
    }
    let refused = honest.member.status().refused_at_receive;
    assert_eq!((refused["irr-origin"], refused["irr-prefix"], refused["bogon-prefix"]), (3, 3, 1), "{refused:?}");

    // What is valid by the RPKI need not be in the list of prefixes where the profile says so, and its origin must be all the same.
    let vrp = |text: &str, asn| Vrp { prefix: prefix(text), max_length: 24, asn: Asn(asn) };
    let vrps: Vrps = [vrp("8.8.12.0/24", HOSTILE.2), vrp("8.8.13.0/24", 200_010)].into_iter().collect();
    honest.member.handle(MemberInput::Origins(Some(Records::from(vrps))), NOW);
    assert_eq!(honest.installed(prefix("8.8.12.0/24")), None);
    let accepts = DataRules { rpki_before_irr: true, ..data_rules() };
    let directory = both(&directory, vec![Change::Data(Some(accepts.clone()))]);
    honest.show(directory.clone());
    assert!(honest.installed(prefix("8.8.12.0/24")).is_some() && honest.installed(prefix("8.8.13.0/24")).is_none());

    // Without lists it is as the profile says; and of data that no profile asks for nothing counts.
    honest.offer(signed(data(&directory, 4, None), &MACHINES));
    assert_eq!(honest.installed(prefix("8.8.8.0/24")), None);
    let why = honest.member.why(prefix("8.8.8.0/24"));
    assert!(why.routes[0].reason.outcome.contains("have no list of the origins of AS200001"), "{why:?}");
    let lenient = both(&directory, vec![Change::Data(Some(DataRules { refuse_without_list: false, ..accepts }))]);
    honest.show(lenient.clone());
    assert!(honest.installed(prefix("8.8.8.0/24")).is_some() && honest.installed(prefix("9.9.9.0/24")).is_none());
    honest.show(both(&lenient, vec![Change::Data(None)]));
    assert!(honest.installed(prefix("9.9.9.0/24")).is_some());
}

#[test]
fn data_that_one_operator_signed_a_lower_number_or_another_exchanges_are_never_taken() {
    let directory = with_data(&members(), data_rules());
    let mut honest = Exchange::new(HONEST, directory.clone());
    let number = |exchange: &Exchange| exchange.member.status().data.and_then(|data| data.number);
    let of = |number| data(&directory, number, Some(lists()));
    let (refused, kept) = honest.offer(signed(of(5), &MACHINES[..1]));
    assert_eq!((refused.as_deref(), kept), (Some("the machine key of party 2's operator did not sign them"), None));
    assert_eq!(number(&honest), None);
    let (_, kept) = honest.offer(signed(of(5), &MACHINES));
    assert_eq!((number(&honest), honest.member.status().data.and_then(|data| data.refused)), (Some(5), None));
    let others = Data { exchange: [9; 32], ..of(6) };
    let without_origins = MemberLists { origins: None, ..lists() };
    for (offered, what) in [
        (signed(of(4), &MACHINES), "they have number 4, and 5 is in force"),
        (signed(of(6), &MACHINES[1..]), "the machine key of party 1's operator did not sign them"),
        (signed(others, &MACHINES), "they are another exchange's"),
        (signed(data(&directory, 5, Some(without_origins)), &MACHINES), "two were signed with one number"),
    ] {
        let (refused, kept) = honest.offer(offered);
        assert!(refused.is_some_and(|why| why.contains(what)) && kept.is_none(), "{what}");
        assert_eq!(number(&honest), Some(5), "{what}: those of before go on to count");
        assert!(honest.member.status().data.and_then(|data| data.refused).is_some_and(|why| why.contains(what)));
    }
    // The same ones again are no news, and mend what was said.
    assert_eq!(honest.offer(signed(of(5), &MACHINES)), (None, None));
    assert_eq!(honest.member.status().data.and_then(|data| data.refused), None);
    let stored = |value: Vec<u8>, key: &[u8]| StoredRecord { table: "meta".to_owned(), key: key.to_vec(), value };
    let kept = [stored(kept.expect("written"), b"data"), stored(directory.encode(), b"set")];
    let mut again = Exchange::started(HONEST, directory.clone(), true, &kept);
    assert_eq!(number(&again), Some(5), "a restart brings no older ones back");
    assert!(again.offer(signed(of(4), &MACHINES)).0.is_some());
    assert_eq!(again.offer(signed(of(5), &[])), (None, None), "the same ones are no news, whoever signed them");
    assert_eq!(again.member.status().data.and_then(|data| data.refused), None);
    // Under other machine keys the numbers begin anew: nobody freezes the data for ever. What was in force counts until then.
    again.offer(signed(of(u64::MAX), &MACHINES));
    assert!(again.offer(signed(of(6), &MACHINES)).0.is_some_and(|why| why.contains("is in force")));
    let other = DataRules { keys: [212, 213].map(|of| key(of).verifying_key().to_bytes()), ..data_rules() };
    again.show(both(&directory, vec![Change::Data(Some(other.clone()))]));
    assert_eq!(number(&again), Some(u64::MAX));
    assert_eq!(again.offer(signed(of(u64::MAX), &MACHINES)), (None, None), "those in force, whose keys are gone");
    let mut object = DataObject::new(of(6)).expect("sound");
    for machine in [212, 213] {
        object.sign(&directory.origin(), &other, &key(machine)).expect("a machine key");
    }
    assert_eq!(again.offer(OfferedData::of(object.encode()).expect("data")).0, None);
    assert_eq!(number(&again), Some(6));
    // What ended before it was offered takes the place of nothing, and what nobody signed is not read, however it goes on.
    let mut late = Exchange::new(HONEST, directory.clone());
    let ended = Data { until: NOW.unix.secs(), ..of(5) };
    assert!(late.offer(signed(ended, &MACHINES)).0.is_some_and(|why| why.contains("their end is past")));
    assert_eq!(number(&late), None);
    let mut octets = DataObject::new(of(5)).expect("sound").encode();
    octets.truncate(70);
    let why = late.offer(OfferedData::of(octets).expect("a beginning")).0;
    assert!(why.is_some_and(|why| why.contains("did not sign them")), "it is not decoded");
    // Offered before their keys are in force, they count once these are.
    let mut early = Exchange::new(HONEST, members());
    assert_eq!(
        early.offer(signed(data(&members(), 1, None), &MACHINES)).0.as_deref(),
        Some("the profile in force names no machine keys ([profile.data])")
    );
    early.show(directory);
    assert_eq!(number(&early), Some(1));
}

#[test]
fn an_announcer_leaves_out_what_receivers_refuse_by_data_and_announces_it_once_they_have_it() {
    let directory = with_data(&members(), data_rules());
    let mut announcer = Exchange::new(HOSTILE, directory.clone());
    announcer.offer(signed(data(&directory, 1, Some(lists())), &MACHINES));
    announcer.member.handle(MemberInput::RouterUp, NOW);
    let (listed, not_listed) = (prefix("8.8.8.0/24"), prefix("8.8.12.0/24"));
    let update = MemberInput::ClearedUpdate {
        withdrawn: Vec::new(),
        announced: vec![Nlri::new(listed), Nlri::new(not_listed)],
        attributes: Some(route(&[]).finish()),
    };
    announcer.member.handle(update, NOW);
    assert_eq!(submitted(announcer.sent()), (vec![listed], Vec::new()));
    assert_eq!(announcer.member.status().refused_at_announce.into_iter().collect::<Vec<_>>(), [("irr-prefix", 1)]);
    let own = &announcer.member.why(not_listed).own[0];
    let failed: Vec<&str> = own.checks.iter().filter(|check| !check.passed).map(|check| check.check).collect();
    assert_eq!(failed, ["IRR prefix"], "{own:?}");
    assert!(
        own.reason.outcome.starts_with("not announced: 8.8.12.0/24 is no prefix that the routing registries"),
        "{own:?}"
    );
    let other = MemberLists { prefixes: Some(ranges(&[("8.8.12.0/24", 24, 24)])), ..lists() };
    announcer.member.handle(MemberInput::Data(Box::new(signed(data(&directory, 2, Some(other)), &MACHINES))), NOW);
    assert_eq!(submitted(announcer.sent()), (vec![not_listed], vec![listed]));
}
