//! `exchange`: an exchange of one person, for a trial. An exchange of two organisations is made by each of them: `members`, `init`.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use wayleave_core::Asn;
use wayleave_import::{ImportedMember, RESERVED_NAMES};
use wayleave_route_server::directory::{Claim, Consent, Directory};
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::identity::Identity;

use super::member_lists::SelectionArgs;
use super::members::check_addresses;
use super::members_import::{export_rules, import_rules};
use crate::config::member::{self, BESIDE_PORT, BesideRouter, Invitation};
use crate::config::rs::{self, MAX_PREFIX_LIMIT, MEMBERS_PORT, PartyValues, TRIAL, TRIAL_OPERATORS};
use crate::failure::{Failure, Outcome};
use crate::key_files::member_set::{key_text, replace};
use crate::key_files::signed_steps::remember;
use crate::key_files::signing_key;
use crate::output::{print, print_json};

/// Members of a trial, at most: each has addresses and ports of its own on the machine.
const MOST_MEMBERS: usize = 32;
/// Prefixes that each member may announce.
const MAX_PREFIX: u32 = 1_000;
/// Members of a list, unless another number is given.
const IMPORTED: usize = 20;
/// The port of the first member's status pages.
const STATUS: u16 = 8490;
/// How long keys of a trial hold.
const VALIDITY: Duration = Duration::from_secs(90 * 86_400);
/// The folder with the operators' keys, and the folders of the parties.
const OPERATORS: &str = "operators";
const PARTIES: [&str; 2] = ["party1", "party2"];
/// The configuration in each folder.
const CONFIGURATION: &str = "wayleave.toml";

#[derive(Subcommand, Debug)]
pub enum Exchange {
    /// Make all keys, the member set and the configurations of a trial on this machine: both parties, their operators, and members
    /// whose proxies are beside their routers. Nobody in it is neutral, and its name says so.
    New(New),
}

#[derive(Args, Clone, Debug)]
pub struct New {
    /// The folder to make.
    pub folder: PathBuf,
    /// A member, as NAME=AS@ADDRESS: the address is its router's, IPv4, on a network or interface of this machine (may be repeated).
    #[arg(long, required_unless_present = "import", value_name = "NAME=AS@ADDRESS")]
    pub member: Vec<NewMember>,
    /// Make the members of a list, as `wayleave members import` reads it. Their routers have local addresses: 192.0.2.1 and so on.
    #[arg(long, value_name = "FILE", conflicts_with = "member")]
    pub import: Option<PathBuf>,
    /// Of the list: so many members, in its order. By default 20.
    #[arg(long, value_name = "NUMBER")]
    pub most: Option<usize>,
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// The name of the trial, which begins with `trial-`.
    #[arg(long, default_value = "trial-ix")]
    pub name: String,
    /// An address of this machine at which members' proxies reach both parties. With one of loopback all members are on this machine.
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub parties: IpAddr,
    /// The AS number of the exchange's route server, as used in communities.
    #[arg(long, default_value_t = Asn(64_496))]
    pub rs_asn: Asn,
    #[arg(long)]
    pub json: bool,
}

/// A member of a trial.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewMember {
    name: String,
    asn: Asn,
    router: Ipv4Addr,
    imported: Option<Imported>,
}

/// What a list says of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Imported {
    /// Its addresses at the exchange of the list.
    addresses: String,
    max_prefix: Option<u32>,
    /// Rules for its configuration.
    rules: String,
}

impl NewMember {
    /// The members of a list, with local addresses.
    fn of_list(list: &[ImportedMember]) -> Vec<Self> {
        let all: Vec<&ImportedMember> = list.iter().collect();
        let received = import_rules(&all);
        let new = list.iter().zip(1u8..).map(|(member, number)| Self {
            name: member.name.clone(),
            asn: member.asn,
            router: Ipv4Addr::new(192, 0, 2, number),
            imported: Some(Imported {
                addresses: member.addresses().iter().map(ToString::to_string).collect::<Vec<_>>().join(" and "),
                max_prefix: member.max_prefix(),
                rules: export_rules(member) + &received,
            }),
        });
        new.collect()
    }

    fn max_prefix(&self) -> u32 {
        let limit = self.imported.as_ref().and_then(|imported| imported.max_prefix);
        limit.unwrap_or(MAX_PREFIX).min(MAX_PREFIX_LIMIT)
    }
}

impl FromStr for NewMember {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected NAME=AS@ADDRESS, such as alpha=64497@192.0.2.1";
        let (name, rest) = text.split_once('=').ok_or(EXPECTED)?;
        let (asn, router) = rest.split_once('@').ok_or(EXPECTED)?;
        // It is a folder's name, too.
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let is_taken = RESERVED_NAMES.contains(&name);
        if name.is_empty() || name.len() > 32 || !name.chars().all(is_plain) || name.starts_with('-') || is_taken {
            return Err(format!(
                "`{name}`: expected 1 to 32 of a to z, 0 to 9 and -, and not the name of another folder"
            ));
        }
        let asn: Asn = asn.parse().map_err(|_| format!("`{asn}` is no AS number; {EXPECTED}"))?;
        if !asn.is_routable() {
            return Err(format!("{asn} is reserved, expected an AS number that may appear in a route"));
        }
        let router = router.parse().map_err(|_| format!("`{router}` is no IPv4 address; {EXPECTED}"))?;
        Ok(Self { name: name.to_owned(), asn, router, imported: None })
    }
}

pub fn run(command: &Exchange) -> Outcome {
    let Exchange::New(wanted) = command;
    let (wanted, of_list) = &with_list(wanted)?;
    check(wanted)?;
    let folder = &wanted.folder;
    let failed = |error: std::io::Error| Failure::system(folder.display(), &error);
    // What is in it is for its owner alone.
    fs::DirBuilder::new().mode(0o700).create(folder).map_err(failed)?;
    let made = fs::canonicalize(folder).map_err(failed).map_err(Into::into).and_then(|at| Trial::make(wanted, at));
    let trial = match made {
        Ok(trial) => trial,
        Err(failures) => {
            // It was made just now, and nobody has used it.
            let _ = fs::remove_dir_all(folder);
            return Err(failures);
        }
    };
    if wanted.json {
        let members = trial.members.iter().map(|made| {
            json!({
                "name": made.member.name, "asn": made.member.asn, "router": made.member.router, "proxy": made.listen(),
                "configuration": trial.configuration(&made.member.name),
                "bird": trial.file(&made.member.name, BIRD), "frr": trial.file(&made.member.name, FRR),
                "gobgp": trial.file(&made.member.name, GOBGP), "openbgpd": trial.file(&made.member.name, OPENBGPD),
            })
        });
        print_json(json!({
            "folder": folder, "exchange": wanted.name, "operators": trial.operators,
            "parties": PARTIES.map(|party| trial.configuration(party)), "members": members.collect::<Vec<_>>(),
        }));
    } else {
        print(&trial.in_words(wanted, *of_list));
    }
    Ok(())
}

/// What is wanted, with the members of a list if there is one, and how many that has.
fn with_list(wanted: &New) -> Outcome<(New, usize)> {
    let Some(file) = &wanted.import else {
        if !wanted.selection.is_empty() || wanted.most.is_some() {
            let failure = Failure::usage("--most, --asn, --all, --ixp and --vlan choose among the members of a list");
            return Err(failure.help("name the list: --import FILE").into());
        }
        return Ok((wanted.clone(), 0));
    };
    let list = wanted.selection.read(file)?.members;
    let most = wanted.most.unwrap_or(IMPORTED);
    if !(1..=MOST_MEMBERS).contains(&most) {
        let failure = Failure::usage(format!("--most {most}, expected 1 to {MOST_MEMBERS} members of a trial"));
        return Err(failure.help("--asn chooses whom the trial has").into());
    }
    let count = list.len();
    let member = NewMember::of_list(&list[..count.min(most)]);
    Ok((New { member, ..wanted.clone() }, count))
}

/// What is known to be wrong before anything is made.
fn check(wanted: &New) -> Outcome {
    let refused = |message: String, help: &str| -> Outcome { Err(Failure::usage(message).help(help).into()) };
    if !wanted.name.starts_with(TRIAL) {
        return refused(
            format!("`{}` is not the name of a trial, expected one that begins with `{TRIAL}`", wanted.name),
            "who joins sees by the name that one person has all keys; an exchange of two organisations begins with `wayleave members init`",
        );
    }
    if wanted.member.len() > MOST_MEMBERS {
        return refused(
            format!("{} members, expected at most {MOST_MEMBERS} in a trial", wanted.member.len()),
            "further ones join as in any exchange: `wayleave members request`",
        );
    }
    if !wanted.rs_asn.is_routable() || wanted.member.iter().any(|member| member.asn == wanted.rs_asn) {
        return refused(
            format!("{} is reserved or a member's, expected an AS number of the exchange's own", wanted.rs_asn),
            "--rs-asn 64496 is one for documentation",
        );
    }
    if wanted.parties.is_unspecified() || wanted.parties.is_multicast() {
        return refused(
            format!("{} is no address at which members reach the parties", wanted.parties),
            "`ip address` lists this machine's",
        );
    }
    for (at, member) in wanted.member.iter().enumerate() {
        check_addresses(&[IpAddr::V4(member.router)])?;
        let before = &wanted.member[..at];
        if before.iter().any(|other| other.name == member.name || other.router == member.router) {
            return refused(
                format!("`{}` ({}) twice, expected names and routers that differ", member.name, member.router),
                "a further router of the same AS is a member with another name",
            );
        }
    }
    Ok(())
}

/// A member with what is its own on the machine.
struct Made {
    member: NewMember,
    slot: u32,
    status: u16,
}

impl Made {
    /// An address of its own on loopback: routers refuse one that an interface has.
    fn proxy(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(Ipv4Addr::LOCALHOST) + 1 + self.slot)
    }

    fn listen(&self) -> String {
        format!("{}:{BESIDE_PORT}", self.proxy())
    }

    /// A comment of where the list has it.
    fn listed(&self, mark: &str) -> String {
        let imported = self.member.imported.as_ref();
        imported.map_or(String::new(), |imported| {
            format!("{mark} At the exchange of the list it is {}.\n", imported.addresses)
        })
    }

    /// A prefix to begin with: of those for documentation.
    fn prefix(&self) -> String {
        let network = if self.slot < 16 { "203.0.113" } else { "198.51.100" };
        format!("{network}.{}/28", 16 * (self.slot % 16))
    }
}

const BIRD: &str = "bird.conf";
const FRR: &str = "frr.conf";
const GOBGP: &str = "gobgpd.toml";
const OPENBGPD: &str = "bgpd.conf";

/// A trial that is made.
struct Trial {
    at: PathBuf,
    operators: [String; 2],
    members: Vec<Made>,
}

/// Creates a key and saves it.
fn key(folder: &Path, name: &str) -> Outcome<Identity> {
    let identity = Identity::generate(name, VALIDITY)?;
    identity.save(&folder.join(format!("{name}.key")))?;
    Ok(identity)
}

impl Trial {
    fn make(wanted: &New, at: PathBuf) -> Outcome<Self> {
        let in_folder = |name: &str| -> Outcome<PathBuf> {
            let folder = at.join(name);
            fs::create_dir(&folder).map_err(|error| Failure::system(folder.display(), &error))?;
            Ok(folder)
        };
        let folder = in_folder(OPERATORS)?;
        let [one, two] = TRIAL_OPERATORS.map(|file| file.trim_end_matches(".key"));
        let operators = [signing_key(&key(&folder, one)?), signing_key(&key(&folder, two)?)];
        let mut directory =
            Directory::new(&wanted.name, operators.each_ref().map(|key| key.verifying_key().to_bytes()))?;
        let mut pins = Vec::new();
        for party in PARTIES {
            pins.push(key(&in_folder(party)?, party)?.fingerprint().to_string());
        }
        let mut requests = Vec::new();
        let mut members = Vec::new();
        for (slot, member) in (0..).zip(&wanted.member) {
            let identity = key(&in_folder(&member.name)?, &member.name)?;
            let signing = signing_key(&identity);
            let claim = Claim {
                serial: unix_now().0,
                asn: member.asn,
                name: member.name.clone(),
                tls: identity.fingerprint().0,
                sign: signing.verifying_key().to_bytes(),
                attest: Vec::new(),
                addresses: vec![IpAddr::V4(member.router)],
            };
            // A further slot of an AS that has one is signed for by that one.
            let mut request = claim.sign(&wanted.name, &signing);
            if let Some(other) = wanted.member.iter().take(slot as usize).find(|other| other.asn == member.asn) {
                let known = Identity::load(&at.join(&other.name).join(format!("{}.key", other.name)))?;
                request = request.with_consent(Consent::Further, &signing_key(&known));
            }
            requests.push(request);
            members.push(Made { member: member.clone(), slot, status: STATUS + slot as u16 });
        }
        for (request, member) in requests.iter().zip(&wanted.member) {
            // One after the other: each slot is known when the next one of its AS is signed for.
            let change = directory.requested(request, member.max_prefix())?;
            let step = directory.propose(vec![change.clone()]);
            for file in TRIAL_OPERATORS {
                remember(&folder.join(file), &directory, &step, false)?;
            }
            directory = directory.signed_by_both(vec![change], operators.each_ref())?;
        }
        let trial =
            Self { at, operators: operators.each_ref().map(|key| key_text(&key.verifying_key().to_bytes())), members };
        for (number, party) in (1..).zip(PARTIES) {
            replace(&trial.file(party, "members"), &directory.encode())?;
            let text = rs::template_with(&PartyValues {
                number,
                exchange: &wanted.name,
                operators: trial.operators.each_ref().map(String::as_str),
                pin: &pins[if number == 1 { 1 } else { 0 }],
                listen: rs::default_listen(number, wanted.parties),
                link: rs::DEFAULT_LINK,
                members: "members",
                trial: Some("../operators"),
            });
            replace(&trial.configuration(party), text.as_bytes())?;
        }
        for made in &trial.members {
            trial.member(wanted, made, [&pins[0], &pins[1]])?;
        }
        Ok(trial)
    }

    /// The configurations of a member's proxy and, of four kinds, of its router.
    fn member(&self, wanted: &New, made: &Made, [first, second]: [&str; 2]) -> Outcome {
        let Made { member, slot, .. } = made;
        let id = made.proxy().to_string();
        let [one, two] = [0, 1].map(|party| SocketAddr::new(wanted.parties, MEMBERS_PORT + party).to_string());
        let text = member::template_with(&Invitation {
            name: &member.name,
            slot: *slot,
            asn: member.asn.0,
            pin: None,
            router: Some(member.router.to_string()),
            router_id: Some(&id),
            exchange: &wanted.name,
            rs_asn: wanted.rs_asn.0,
            operators: self.operators.clone(),
            parties: [(&one, first), (&two, second)],
            beside: Some(BesideRouter { proxy: made.proxy(), status: made.status }),
        });
        let rules = member.imported.as_ref().map_or("", |imported| &imported.rules);
        replace(&self.configuration(&member.name), (text + rules).as_bytes())?;
        replace(&self.file(&member.name, BIRD), bird(made, wanted.rs_asn).as_bytes())?;
        replace(&self.file(&member.name, FRR), frr(made, wanted.rs_asn).as_bytes())?;
        replace(&self.file(&member.name, GOBGP), gobgp(made, wanted.rs_asn).as_bytes())?;
        replace(&self.file(&member.name, OPENBGPD), openbgpd(made, wanted.rs_asn).as_bytes())
    }

    fn file(&self, owner: &str, name: &str) -> PathBuf {
        self.at.join(owner).join(name)
    }

    fn configuration(&self, owner: &str) -> PathBuf {
        self.file(owner, CONFIGURATION)
    }

    fn in_words(&self, wanted: &New, of_list: usize) -> String {
        let mut text = format!(
            "{}: a trial of {} member{} in {}. One person has all keys: nobody in it is neutral, and nothing of it goes into an exchange.\n\
             Its keys hold for {} days.\n\n\
             Run, each in a terminal of its own:\n",
            wanted.name,
            self.members.len(),
            if self.members.len() == 1 { "" } else { "s" },
            wanted.folder.display(),
            VALIDITY.as_secs() / 86_400,
        );
        for party in PARTIES {
            text += &format!("  wayleave run rs --config {}\n", self.configuration(party).display());
        }
        for Made { member, .. } in &self.members {
            text += &format!("  wayleave run member --config {}\n", self.configuration(&member.name).display());
        }
        text += "\nEach router has its end of the session in a file beside the proxy's configuration, for BIRD, FRR, GoBGP and OpenBGPD:\n";
        for made in &self.members {
            let Made { member, .. } = made;
            text += &format!(
                "  {} at {}: {}, {FRR}, {GOBGP} or {OPENBGPD}; it announces {}\n",
                member.name,
                member.router,
                self.file(&member.name, BIRD).display(),
                made.prefix()
            );
        }
        if let Some(file) = &wanted.import {
            let (count, file) = (self.members.len(), file.display());
            text += &format!(
                "The first {count} of {of_list} members of {file}. Their routers have local addresses, for which this machine needs:\n"
            );
            text += &format!("  for n in $(seq {count}); do ip address add 192.0.2.$n/32 dev lo; done\n");
        }
        text += if wanted.parties.is_loopback() {
            "Two routers of one machine do not use each other's routes, whose next hops are addresses of their own machine. For more \
             than a look, give each member a machine or network namespace, and --parties an address that all reach.\n"
        } else {
            "Each member's folder goes to its router's machine.\n"
        };
        if let [first, second, ..] = &self.members[..] {
            let (config, prefix) = (self.configuration(&second.member.name), first.prefix());
            text += &format!("\nThen: wayleave why {prefix} --config {}\n", config.display());
        }
        text
    }
}

/// BIRD's end of the session with a proxy on the same machine.
fn bird(made: &Made, rs_asn: Asn) -> String {
    let (router, proxy, prefix) = (made.member.router, made.proxy(), made.prefix());
    let (asn, rs_asn) = (made.member.asn.0, rs_asn.0);
    let listed = made.listed("#");
    format!(
        "# The router of {name}, BIRD 2: the session with the proxy beside it.\n\
         {listed}\
         router id {router};\n\
         protocol device {{ }}\n\
         # What this machine's networks are: next hops are found there.\n\
         protocol direct {{ ipv4; }}\n\
         # What it announces: an example.\n\
         protocol static own {{ ipv4; route {prefix} blackhole; }}\n\
         protocol bgp exchange {{\n\
         \x20 local {router} as {asn};\n\
         \x20 neighbor {proxy} port {BESIDE_PORT} as {rs_asn};\n\
         \x20 multihop;              # the neighbour is on this machine\n\
         \x20 strict bind yes;       # at this address alone: a second router of this machine has the port at its own\n\
         \x20 enforce first as off;  # a route server does not add its own number (RFC 7947)\n\
         \x20 ipv4 {{ import all; export where proto = \"own\"; }};\n\
         }}\n",
        name = made.member.name,
    )
}

/// FRR's end of the session with a proxy on the same machine.
fn frr(made: &Made, rs_asn: Asn) -> String {
    let (router, proxy, prefix) = (made.member.router, made.proxy(), made.prefix());
    let (asn, rs_asn) = (made.member.asn.0, rs_asn.0);
    let listed = made.listed("!");
    format!(
        "! The router of {name}, FRR: the session with the proxy beside it.\n\
         {listed}\
         ! What this network originates, and nothing that it learns elsewhere, goes to the exchange: an example.\n\
         ip prefix-list own seq 5 permit {prefix}\n\
         bgp as-path access-list originated-here seq 5 permit ^$\n\
         route-map to-exchange permit 10\n\
         \x20match as-path originated-here\n\
         \x20match ip address prefix-list own\n\
         exit\n\
         route-map from-exchange permit 10\n\
         exit\n\
         !\n\
         router bgp {asn}\n\
         \x20bgp router-id {router}\n\
         \x20no bgp network import-check\n\
         \x20neighbor {proxy} remote-as {rs_asn}\n\
         \x20! It connects: FRR itself looks for a route to an address on loopback, and finds none.\n\
         \x20neighbor {proxy} passive\n\
         \x20neighbor {proxy} update-source {router}\n\
         \x20! The neighbour is on this machine.\n\
         \x20neighbor {proxy} ebgp-multihop\n\
         \x20! A route server does not add its own number (RFC 7947).\n\
         \x20no neighbor {proxy} enforce-first-as\n\
         \x20address-family ipv4 unicast\n\
         \x20 network {prefix}\n\
         \x20 neighbor {proxy} send-community all\n\
         \x20 neighbor {proxy} route-map from-exchange in\n\
         \x20 neighbor {proxy} route-map to-exchange out\n\
         \x20exit-address-family\n",
        name = made.member.name,
    )
}

/// GoBGP's end of the session with a proxy on the same machine.
fn gobgp(made: &Made, rs_asn: Asn) -> String {
    let (router, proxy, prefix) = (made.member.router, made.proxy(), made.prefix());
    let (asn, rs_asn) = (made.member.asn.0, rs_asn.0);
    let listed = made.listed("#");
    let to_exchange =
        "[policy-definitions.statements.conditions.match-neighbor-set]\nneighbor-set = \"exchange\"".to_owned();
    format!(
        "# The router of {name}, GoBGP: the session with the proxy beside it.\n\
         {listed}\
         # What it announces is told to it each time that it has started; an example:\n\
         #   gobgp global rib add {prefix} -a ipv4 origin igp\n\
         [global.config]\n\
         as = {asn}\n\
         router-id = \"{router}\"\n\
         # At this address alone: a second router of this machine has the port at its own.\n\
         local-address-list = [\"{router}\"]\n\
         [[neighbors]]\n\
         [neighbors.config]\n\
         neighbor-address = \"{proxy}\"\n\
         peer-as = {rs_asn}\n\
         [neighbors.transport.config]\n\
         local-address = \"{router}\"\n\
         remote-port = {BESIDE_PORT}\n\
         # The neighbour is on this machine.\n\
         [neighbors.ebgp-multihop.config]\n\
         enabled = true\n\
         multihop-ttl = 2\n\
         [[neighbors.afi-safis]]\n\
         [neighbors.afi-safis.config]\n\
         afi-safi-name = \"ipv4-unicast\"\n\
         # What this network originates, and nothing that it learns elsewhere, goes to the exchange.\n\
         [[defined-sets.neighbor-sets]]\n\
         neighbor-set-name = \"exchange\"\n\
         neighbor-info-list = [\"{proxy}\"]\n\
         [[policy-definitions]]\n\
         name = \"to-exchange\"\n\
         [[policy-definitions.statements]]\n\
         name = \"own\"\n\
         {to_exchange}\n\
         [policy-definitions.statements.conditions.bgp-conditions]\n\
         route-type = \"local\"\n\
         [policy-definitions.statements.actions]\n\
         route-disposition = \"accept-route\"\n\
         [[policy-definitions.statements]]\n\
         name = \"learnt\"\n\
         {to_exchange}\n\
         [policy-definitions.statements.actions]\n\
         route-disposition = \"reject-route\"\n\
         [global.apply-policy.config]\n\
         export-policy-list = [\"to-exchange\"]\n\
         default-export-policy = \"accept-route\"\n",
        name = made.member.name,
    )
}

/// OpenBGPD's end of the session with a proxy on the same machine.
fn openbgpd(made: &Made, rs_asn: Asn) -> String {
    let (router, proxy, prefix) = (made.member.router, made.proxy(), made.prefix());
    let (asn, rs_asn) = (made.member.asn.0, rs_asn.0);
    let listed = made.listed("#");
    format!(
        "# The router of {name}, OpenBGPD: the session with the proxy beside it.\n\
         # It refuses a file that others may read: chmod 600.\n\
         {listed}\
         AS {asn}\n\
         router-id {router}\n\
         # At this address alone: a second router of this machine has the port at its own.\n\
         listen on {router}\n\
         # What it announces: an example.\n\
         network {prefix}\n\
         neighbor {proxy} {{\n\
         \x20 remote-as {rs_asn}\n\
         \x20 local-address {router}\n\
         \x20 port {BESIDE_PORT}\n\
         \x20 multihop 2            # the neighbour is on this machine\n\
         \x20 enforce neighbor-as no # a route server does not add its own number (RFC 7947)\n\
         \x20 announce IPv4 unicast\n\
         }}\n\
         # What this network originates, and nothing that it learns elsewhere, goes to the exchange.\n\
         allow from {proxy}\n\
         allow to {proxy} prefix {prefix}\n\
         deny to {proxy} max-as-len 0\n",
        name = made.member.name,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A router that passes on what it learns elsewhere would defeat the policy that the trial is to show.
    #[test]
    fn either_routers_file_announces_what_its_network_originates_and_nothing_else() {
        let member: NewMember = "bravo=64498@192.0.2.2".parse().expect("a member");
        let made = Made { member, slot: 1, status: STATUS + 1 };
        let (bird, frr) = (bird(&made, Asn(64_496)), frr(&made, Asn(64_496)));
        for line in ["protocol static own ", "export where proto = \"own\"", "strict bind yes;"] {
            assert!(bird.contains(line), "{line}: {bird}");
        }
        for line in [
            "ip prefix-list own seq 5 permit 203.0.113.16/28\n",
            "route-map to-exchange permit 10\n match as-path originated-here\n match ip address prefix-list own\nexit\n",
            "  neighbor 127.0.0.3 route-map from-exchange in\n",
            "  neighbor 127.0.0.3 route-map to-exchange out\n",
        ] {
            assert!(frr.contains(line), "{line}: {frr}");
        }
        let (gobgp, openbgpd) = (gobgp(&made, Asn(64_496)), openbgpd(&made, Asn(64_496)));
        let read: toml::Table = gobgp.parse().expect("TOML");
        let statements = read["policy-definitions"][0]["statements"].as_array().expect("statements");
        let dispositions = statements.iter().map(|of| of["actions"]["route-disposition"].as_str().expect("one"));
        assert_eq!(dispositions.collect::<Vec<_>>(), ["accept-route", "reject-route"]);
        assert_eq!(statements[0]["conditions"]["bgp-conditions"]["route-type"].as_str(), Some("local"));
        for line in ["allow to 127.0.0.3 prefix 203.0.113.16/28\n", "deny to 127.0.0.3 max-as-len 0\n"] {
            assert!(openbgpd.contains(line), "{line}: {openbgpd}");
        }
        // FRR itself then sends nothing over a session that has no filter.
        assert!(!frr.contains("ebgp-requires-policy"), "{frr}");
    }

    #[test]
    fn each_member_has_a_prefix_and_addresses_of_its_own() {
        let member: NewMember = "bravo=64498@192.0.2.2".parse().expect("a member");
        let made = (0..MOST_MEMBERS as u32).map(|slot| Made { member: member.clone(), slot, status: STATUS });
        let prefixes: std::collections::BTreeSet<String> = made.map(|made| made.prefix()).collect();
        assert_eq!(prefixes.len(), MOST_MEMBERS);
        assert!(prefixes.contains("198.51.100.240/28") && prefixes.contains("203.0.113.0/28"), "{prefixes:?}");
    }

    #[test]
    fn a_member_is_a_name_an_as_and_a_routers_address() {
        let read: NewMember = "alpha=64497@192.0.2.1".parse().expect("a member");
        assert_eq!((read.name.as_str(), read.asn, read.router), ("alpha", Asn(64_497), Ipv4Addr::new(192, 0, 2, 1)));
        for bad in [
            "alpha",
            "alpha=64497",
            "=1@192.0.2.1",
            "../x=1@192.0.2.1",
            "party1=1@192.0.2.1",
            "a=1@2001:db8::1",
            "-a=1@192.0.2.1",
            "operators=1@192.0.2.1",
            "a=b@192.0.2.1",
        ] {
            assert!(bad.parse::<NewMember>().is_err(), "{bad}");
        }
    }
}
