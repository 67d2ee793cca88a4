//! `init`: a commented configuration that passes `check`.

use std::fs::OpenOptions;
use std::io::Write;

use serde_json::json;

use crate::cli::{Init, RoleName};
use crate::config::{EXAMPLE_OPERATOR, EXAMPLE_PINS};
use crate::failure::{Failure, Outcome};
use crate::output::{print, print_json};

pub fn run(init: &Init) -> Outcome {
    let text = match (init.role, init.party) {
        (RoleName::Rs, party) => rs(party),
        (RoleName::Member, _) => member(),
        (RoleName::Attest, _) => attest().to_owned(),
        (RoleName::Router, _) => router().to_owned(),
    };
    let Some(path) = &init.out else {
        if init.json {
            print_json(json!({ "configuration": text }));
        } else {
            print(&text);
        }
        return Ok(());
    };
    let failed = |error: std::io::Error| Failure::system(path.display(), &error);
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    if init.json {
        print_json(json!({ "file": path }));
        return Ok(());
    }
    print(&format!("wrote {}; next: wayleave check {}\n", path.display(), path.display()));
    Ok(())
}

/// The configuration of a party.
pub fn rs(party: u8) -> String {
    let (other, link, recommendation) = match party {
        1 => (
            EXAMPLE_PINS[1],
            "# Party 1 waits for party 2 here; nothing else may use this port.\nlisten = \"127.0.0.1:7000\"",
            "# The exchange's recommendation by member, bigger preferred; read again on SIGHUP.\n\
             #recommendation = \"recommendation.toml\"\n",
        ),
        _ => (EXAMPLE_PINS[0], "# Where party 1 waits for this party.\nconnect = \"127.0.0.1:7000\"", ""),
    };
    let port = 7000 + u16::from(party);
    let status = 8480 + u16::from(party);
    format!(
        "# Party {party} of a private route server. Run it with: wayleave run rs --config FILE\n\
         # Paths are relative to this file.\n\
         \n\
         [party]\n\
         number = {party}\n\
         # The exchange's name, the same at both parties and every member.\n\
         exchange = \"example-ix\"\n\
         # Where members connect.\n\
         listen = \"127.0.0.1:{port}\"\n\
         # Made by: wayleave keys new party{party}.key\n\
         key = \"party{party}.key\"\n\
         # What must survive a restart.\n\
         state = \"party{party}.redb\"\n\
         # The signed member set, made by: wayleave members init and add. Read again on SIGHUP.\n\
         members = \"members\"\n\
         # The operator's public key, printed by: wayleave members init\n\
         operator = \"{EXAMPLE_OPERATOR}\"\n\
         # Interval between batches; 0 takes each at once. Party 1's counts.\n\
         #tick_ms = 50\n\
         # How long routes of a member that is gone are kept.\n\
         #stale_secs = 120\n\
         # How long a member's ranking is awaited beyond the tick.\n\
         #rank_wait_ms = 1000\n\
         {recommendation}\
         \n\
         [link]\n\
         {link}\n\
         # The other party's certificate, printed by its: wayleave keys show\n\
         pin = \"{other}\"\n\
         \n\
         # Status, metrics and views. It shows nothing of policies, but it is for this party's operator alone.\n\
         [status]\n\
         listen = \"127.0.0.1:{status}\"\n"
    )
}

/// The configuration of an attesting proxy.
fn attest() -> &'static str {
    "# An attesting proxy between your BGP speakers and their neighbours. Run it with: wayleave run attest --config FILE\n\
     # Paths are relative to this file.\n\
     \n\
     [attest]\n\
     # Your AS.\n\
     asn = 64497\n\
     # What must survive a restart: how often keys have signed.\n\
     state = \"attest.redb\"\n\
     # How long what is signed here holds; it is signed again ahead of that.\n\
     #lifetime_minutes = 1440\n\
     # How far clocks may be wrong, yours and others'.\n\
     #clock_uncertainty_secs = 600\n\
     # Bits of strength below which no suite counts.\n\
     #least_strength = 112\n\
     # The attribute's type code, and the code of the capability that offers keys: the same in all networks.\n\
     #attribute = 255\n\
     #capability = 240\n\
     # Own prefixes that are signed, with those within them; all if not given.\n\
     #originate = [\"192.0.2.0/24\"]\n\
     \n\
     [keys]\n\
     # Your private keys, made by: wayleave keys attest attest.key --asn 64497\n\
     # Without them the proxy only validates.\n\
     signing = \"attest.key\"\n\
     # Where several proxies hold the same file and it has a few-time key (kc-hbs): which part of its signatures is this\n\
     # proxy's own. Never give two proxies the same part.\n\
     #part = { number = 0, of = 4 }\n\
     # The trust anchor's public part, and the folder of profiles and records that it has signed.\n\
     anchor = \"anchor.pub\"\n\
     objects = \"objects\"\n\
     \n\
     # What the RPKI says, beside the records: an RTR cache (RFC 8210) with who may originate what and the keys of routers,\n\
     # or a folder of router certificates (RFC 8209, .cer and .crl) under trust anchors. Read again on SIGHUP.\n\
     [rpki]\n\
     #cache = \"127.0.0.1:3323\"\n\
     #tls = { name = \"cache.example.net\", authorities = \"cache-ca.pem\" }\n\
     #anchors = [\"ta.cer\"]\n\
     #certificates = \"rpki\"\n\
     \n\
     # What follows from a verdict: reject, large_community, med, local_pref (within one AS), log. Classes: valid, gap,\n\
     # unattested, missing (the origin usually attests), expired, invalid, malformed. Read again on SIGHUP.\n\
     [policy]\n\
     invalid = { reject = true, log = true }\n\
     malformed = { reject = true, log = true }\n\
     expired = { reject = true, log = true }\n\
     #valid = { large_community = \"64497:1:1\" }\n\
     #gap = { large_community = \"64497:1:2\", med = 50 }\n\
     \n\
     # One pair for each neighbour. Each end sees the other as if the proxy were not there.\n\
     [[pair]]\n\
     name = \"neighbour\"\n\
     # Your own speaker: it connects to the address here, or the proxy connects to it.\n\
     inside = { listen = \"127.0.0.1:1790\", address = \"127.0.0.1\" }\n\
     # The neighbour.\n\
     outside = { connect = \"192.0.2.2:179\", asn = 64498 }\n\
     # Octets of an attestation that the neighbour takes, without and with extended messages. BIRD keeps 1,024 octets of\n\
     # each message for itself.\n\
     #most_octets = 2800\n\
     #most_octets_extended = 60000\n\
     # Your hops name the neighbour's own keys; or, where `protected = true` stands outside (nobody else reads the session),\n\
     # a pair that you make and hand over if it asks, and yours may be of its making.\n\
     #keys = \"granted\"\n\
     #take_granted = true\n\
     \n\
     # Status, metrics and views, for you alone.\n\
     [status]\n\
     listen = \"127.0.0.1:8485\"\n"
}

/// The configuration of a verifying router.
fn router() -> &'static str {
    "# A router that verifies every packet. Run it with: wayleave run router --config FILE\n\
     # Paths are relative to this file.\n\
     \n\
     [forwarding]\n\
     # scion, platypus or icing.\n\
     format = \"scion\"\n\
     # Made by: wayleave keys forwarding router.key --format scion\n\
     # The same file at every router of the AS. Read again on SIGHUP.\n\
     keys = \"router.key\"\n\
     # What must survive a restart: accounts (platypus, icing).\n\
     #state = \"router.redb\"\n\
     # Threads that forward, and the core of each.\n\
     #workers = 1\n\
     #cores = [1]\n\
     \n\
     [scion]\n\
     isd_as = \"1-64497\"\n\
     # Where hosts and other routers of the AS reach this one.\n\
     internal = \"127.0.0.1:30042\"\n\
     # udp-gso takes in whole what a batching sender sent as one; udp-batch takes packet by packet; af-xdp (interfaces only)\n\
     # bypasses the system's network stack, and needs `device`.\n\
     #backend = \"udp-gso\"\n\
     # The other routers of the AS.\n\
     #siblings = [\"127.0.0.2:30042\"]\n\
     # Ports at which end hosts are reached directly; all others get packets at the shared port.\n\
     #end_host_ports = [31000, 32767]\n\
     #shared_port = 30041\n\
     # The AS's services.\n\
     #control = \"127.0.0.1:30252\"\n\
     #discovery = \"127.0.0.1:30253\"\n\
     # SCMP messages a second.\n\
     #answers_per_second = 100\n\
     # Wrong MACs that an interface may let pass, a second and at once, before nothing that comes in there is checked.\n\
     #bad_macs_per_second = 1000\n\
     #bad_macs_at_once = 1000\n\
     # Sessions (RFC 5880) with every neighbour and every other router of the AS; a link is down while its session is.\n\
     #[scion.bfd]\n\
     #transmit_ms = 200\n\
     #receive_ms = 200\n\
     #multiplier = 3\n\
     \n\
     # One for each interface of the AS, those of its other routers too.\n\
     [[interface]]\n\
     id = 1\n\
     # What the neighbour is: core, parent (our provider), child (our customer), peer.\n\
     link = \"child\"\n\
     neighbor = \"1-64498\"\n\
     local = \"127.0.0.1:50000\"\n\
     remote = \"127.0.0.2:50000\"\n\
     #backend = \"af-xdp\"\n\
     #device = \"eth0\"\n\
     #queue = 0\n\
     #gateway = \"192.0.2.1\"\n\
     # In place of local and remote, for another router's interface: its place in `siblings`, from 0.\n\
     #sibling = 0\n\
     # Of [scion.bfd]: this neighbour does not speak it.\n\
     #bfd = false\n\
     \n\
     # For format = \"platypus\", in place of [scion] and [[interface]]:\n\
     #[platypus]\n\
     # Addresses of this machine that packets are sent to, by IP protocol 253.\n\
     #waypoints = [\"198.51.100.1\"]\n\
     # Bindings of 64 bits are accepted.\n\
     #narrow = false\n\
     #freshness_secs = 30\n\
     # Your own networks, which nobody may reach through here, and waypoints in them.\n\
     #refused = [\"10.0.0.0/8\"]\n\
     #allowed_waypoints = [\"10.0.0.1\"]\n\
     # A packet that came before: drop, count-once, pass.\n\
     #repeated = \"drop\"\n\
     #replay_capacity = 4194304\n\
     # Accounts (principal, delegation, key epoch) at most; 0 counts nothing.\n\
     #accounts = 4096\n\
     # ICMP errors a second.\n\
     #answers_per_second = 100\n\
     # Octets a second, and at once, of a principal with all its delegations, or of one delegation.\n\
     #rates = [{ principal = 7, rate = 1250000 }, { principal = 7, delegation = 3, rate = 125000, burst = 65535 }]\n\
     # A list signed by `wayleave keys revoke`; with `required`, nothing passes until it is there.\n\
     #revocations = { file = \"revoked\", key = \"ed25519:...\", required = true }\n\
     # Packets to these destinations travel in UDP, beside plain IP for all others.\n\
     #[[link]]\n\
     #local = \"192.0.2.1:49254\"\n\
     #remote = \"192.0.2.2:49254\"\n\
     #routes = [\"198.51.100.2/32\"]\n\
     # Sources behind it whose packets are stamped here, by the rules of [stamper].\n\
     #stamp = [\"192.0.2.128/25\"]\n\
     # Files are made by: wayleave keys capability, and wayleave keys delegate. The longest prefix counts; a rule without a\n\
     # route leaves packets alone. In packets that are stamped already: in front of the next capability, or \"last\".\n\
     #[stamper]\n\
     #position = \"next\"\n\
     # Which of several stampers with the same capabilities this is, and how many there are.\n\
     #share = [0, 1]\n\
     #routes = [{ name = \"transit\", capabilities = [\"desk.cap\"], sealed = false, udp = false, mtu = 1500 }]\n\
     #rules = [{ to = \"203.0.113.0/24\", route = \"transit\" }, { to = \"203.0.113.200/32\" }]\n\
     \n\
     # For format = \"icing\", in place of [scion] and [[interface]]:\n\
     #[icing]\n\
     # What the tags with these first bits mean: over the link that leads to the next node; over the one named; to a service.\n\
     #tags = [{ prefix = \"40000000/2\" }, { prefix = \"80000000/2\", queue = 1, link = 2 },\n\
     #        { prefix = \"c0000000/2\", service = 1 }]\n\
     # Where services reach this node, and where they are.\n\
     #internal = \"192.0.2.1:49253\"\n\
     #services = [{ id = 1, address = \"192.0.2.9:7000\" }]\n\
     # Who pays, where a tag says so (`account = 1` in `tags`): octets a second and at once; without `rate` it is only counted.\n\
     # Accounts need `state` in [forwarding].\n\
     #accounts = [{ id = 1, rate = 12500000, depth = 1250000 }]\n\
     # The node's long-term key, which signs reports. Made by: wayleave keys new node.identity\n\
     #identity = \"node.identity\"\n\
     # Agreements (X25519) a second for packets of each link; paths and other nodes' keys kept.\n\
     #agreements_per_second = 100\n\
     #paths = 65536\n\
     #peers = 65536\n\
     #replay_capacity = 4194304\n\
     # One for each link to other nodes, named as `wayleave keys forwarding FILE` shows them, or to senders (open).\n\
     #[[link]]\n\
     #id = 1\n\
     #local = \"192.0.2.1:49252\"\n\
     #remote = \"192.0.2.2:49252\"\n\
     #nodes = [\"64 hexadecimal digits\"]\n\
     #open = false\n\
     # Or, in place of local and remote, straight over Ethernet to the station with this address:\n\
     #backend = \"ethernet\"\n\
     #device = \"eth0\"\n\
     #neighbor = \"02:00:5e:10:00:02\"\n\
     \n\
     # Status, metrics and views, for you alone.\n\
     [status]\n\
     listen = \"127.0.0.1:8486\"\n"
}

fn member() -> String {
    member_with(&MemberParts {
        name: "alpha",
        slot: 0,
        asn: 64_497,
        router: None,
        router_id: Some("192.0.2.101"),
        exchange: "example-ix",
        rs_asn: 64_496,
        operator: EXAMPLE_OPERATOR,
        parties: [("127.0.0.1:7001", EXAMPLE_PINS[0]), ("127.0.0.1:7002", EXAMPLE_PINS[1])],
    })
}

/// What differs between members' configurations.
pub struct MemberParts<'a> {
    pub name: &'a str,
    pub slot: u32,
    pub asn: u32,
    /// The router's address, if it is known; nobody else may connect then.
    pub router: Option<String>,
    /// The proxy's own BGP identifier; the member fills it in if it is not known.
    pub router_id: Option<&'a str>,
    pub exchange: &'a str,
    pub rs_asn: u32,
    pub operator: &'a str,
    pub parties: [(&'a str, &'a str); 2],
}

/// A member's configuration.
pub fn member_with(parts: &MemberParts<'_>) -> String {
    let MemberParts { name, slot, asn, router, router_id, exchange, rs_asn, operator, parties } = parts;
    // A name of the member set is printable, but may hold what TOML quotes.
    let (quoted, exchange) = (toml::Value::from(*name), toml::Value::from(*exchange));
    let file: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).collect();
    let address = router.as_ref().map_or("#address = \"192.0.2.1\"".to_owned(), |ip| format!("address = \"{ip}\""));
    let connect = router.as_deref().unwrap_or("192.0.2.1");
    let connect = if connect.contains(':') { format!("[{connect}]:179") } else { format!("{connect}:179") };
    let router_id = match router_id {
        Some(id) => format!("router_id = \"{id}\""),
        None => "# Fill in:\n#router_id = \"192.0.2.101\"".to_owned(),
    };
    let [(address1, pin1), (address2, pin2)] = parties;
    format!(
        "# A member's proxy. Run it with: wayleave run member --config FILE\n\
         # Paths are relative to this file.\n\
         \n\
         [member]\n\
         name = {quoted}\n\
         slot = {slot}\n\
         # Made by: wayleave keys new {file}.key (its public parts go to the exchange)\n\
         key = \"{file}.key\"\n\
         # What must survive a restart.\n\
         state = \"{file}.redb\"\n\
         # How long routes are kept while a party is away.\n\
         #stale_secs = 3600\n\
         \n\
         [exchange]\n\
         name = {exchange}\n\
         # The AS number of the exchange's route server, which communities name.\n\
         asn = {rs_asn}\n\
         operator = \"{operator}\"\n\
         party1 = {{ address = \"{address1}\", pin = \"{pin1}\" }}\n\
         party2 = {{ address = \"{address2}\", pin = \"{pin2}\" }}\n\
         \n\
         # Your own BGP router, which peers with this proxy as with any route server.\n\
         [router]\n\
         listen = \"127.0.0.1:1790\"\n\
         # Or let the proxy connect to it:\n\
         #connect = \"{connect}\"\n\
         # Only the router at this address may connect.\n\
         {address}\n\
         asn = {asn}\n\
         # The proxy's own BGP identifier, an IPv4 address of yours: not the router's.\n\
         {router_id}\n\
         #hold_time = 90\n\
         \n\
         # To let others than you know nothing but that you took part, and you nothing but what won.\n\
         [select_best]\n\
         enabled = true\n\
         \n\
         # Who may have which routes, beside the communities that your router already sets:\n\
         #[groups]\n\
         #rivals = [64500, 64501]\n\
         #\n\
         #[[rule]]\n\
         #direction = \"export\"\n\
         #prefix = \"192.0.2.0/24+\"\n\
         #hide_from = \"rivals\"\n\
         #\n\
         # Which routes you like better:\n\
         #[[rule]]\n\
         #direction = \"import\"\n\
         #as_path = \"_64511_\"\n\
         #local_pref = 50\n\
         \n\
         # To sign what you announce, and to validate what others do:\n\
         #[attestation]\n\
         #lifetime_minutes = 1440\n\
         #clock_uncertainty_secs = 600\n\
         #least_strength = 112\n\
         # Octets of an attestation, at most: it must fit the messages of every member's router.\n\
         #most_octets = 2800\n\
         #originate = [\"192.0.2.0/24\"]\n\
         #[attestation.keys]\n\
         # Made by: wayleave keys attest attest.key --asn {asn} (public parts go to the exchange and to the trust anchor)\n\
         #signing = \"attest.key\"\n\
         #anchor = \"anchor.pub\"\n\
         #objects = \"objects\"\n\
         # What follows from a verdict, before import rules: reject, large_community, med, log.\n\
         #[attestation.policy]\n\
         #valid = {{ large_community = \"{asn}:1:1\" }}\n\
         \n\
         # Status, metrics and views, for you alone: they show your policy's results.\n\
         [status]\n\
         listen = \"127.0.0.1:8490\"\n"
    )
}
