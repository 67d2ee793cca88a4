//! `members`: who is a member. Both parties' operators sign a set, the member signs its slot, and one operator alone removes.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{IsTerminal, stdin};
use std::path::Path;
use std::str::FromStr;

use serde_json::{Value, json};
use wayleave_attestation::leaf::LeafKey;
use wayleave_core::Asn;
use wayleave_crypto::sign::SigningKey;
use wayleave_route_server::directory::{
    AttestKey, ChainError, Change, Claim, Consent, Directory, Proposal, ProposalError, Request, Slot, Step,
};
use wayleave_route_server::policy::validate::can_be_next_hop;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::identity::{Fingerprint, Identity, from_hex};

use super::member_lists::Expected;
use super::members_data::{self, MembersData};
use super::members_import::{MemberFile, MembersImport};
use super::pki::attest_key;
use crate::config::PublicKey;
use crate::config::kinds::{TextKind, refusal};
use crate::config::parse::argument;
use crate::config::profile;
use crate::config::rs::{MAX_PREFIX_LIMIT, TRIAL};
use crate::failure::{Failure, Outcome};
use crate::key_files::member_set::{
    describe, describe_change, digest_text, key_text, locked, proposal, read, replace, request as read_request, trust,
};
use crate::key_files::signed_steps::remember;
use crate::key_files::signing_key;
use crate::output::{cell, fields, objects, print, print_json};
use clap::{Args, Subcommand};
use std::net::IpAddr;
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum Members {
    /// Begin a member set, without members. Both operators do this with the same keys and get the same file.
    Init(Box<MemberInit>),
    /// As an operator: from the list of members that an exchange has today, what its operators and members begin with.
    Import(MembersImport),
    /// As a member: sign what the exchange is to know of you, for both operators.
    Request(MemberRequest),
    /// As a member: sign, with a key of your AS, for a slot of your AS that is held. The file that it writes goes to both operators.
    Endorse(Endorse),
    /// As an operator: propose the next set. It counts once the other party's operator has countersigned it.
    Propose(Propose),
    /// As the other operator: show what a proposal changes, and sign it. Writes the member set's file.
    Countersign(Countersign),
    /// As an operator, alone: remove a member. Its slot and its keys cannot be used again.
    Remove {
        /// The member set.
        file: PathBuf,
        /// Your key file.
        #[arg(long)]
        operator: PathBuf,
        /// The member to remove.
        #[arg(long)]
        name: String,
        #[arg(long)]
        json: bool,
    },
    /// Check a profile's file and print what it says; with --print-default, a file with every rule and its default.
    Profile {
        /// The file.
        #[arg(required_unless_present = "print_default", conflicts_with = "print_default")]
        file: Option<PathBuf>,
        /// Print a profile's file with the defaults.
        #[arg(long)]
        print_default: bool,
        #[arg(long, conflicts_with = "print_default")]
        json: bool,
    },
    /// As an operator: the exchange's data, of what members may announce by the routing registries. A machine of each operator signs them.
    #[command(subcommand)]
    Data(MembersData),
    /// Print a set, after checking all its signatures.
    Show {
        /// The member set.
        file: PathBuf,
        /// Party 1's operator's public key (`sign:ed25519:...`), and party 2's, which must have signed the set.
        #[arg(long, num_args = 2, value_names = ["KEY1", "KEY2"])]
        operators: Vec<PublicKey>,
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args, Debug)]
pub struct MemberInit {
    /// The file to create.
    file: PathBuf,
    /// The exchange's name, as configurations have it.
    #[arg(long)]
    exchange: String,
    /// The public key (`sign:ed25519:...`) of party 1's operator, from its `wayleave keys new`.
    #[arg(long)]
    operator1: PublicKey,
    /// The same of party 2's operator.
    #[arg(long)]
    operator2: PublicKey,
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
pub struct MemberRequest {
    /// The file to write, which goes to both operators.
    pub file: PathBuf,
    /// Your key file, from `wayleave keys new`.
    #[arg(long)]
    pub key: PathBuf,
    /// What the exchange sent you of your connection: `member.toml` of `wayleave members import`. Other options count before it.
    #[arg(long, value_name = "FILE")]
    pub member: Option<PathBuf>,
    /// The name of the exchange.
    #[arg(long, required_unless_present = "member")]
    pub exchange: Option<String>,
    /// Your AS.
    #[arg(long, required_unless_present = "member")]
    pub asn: Option<Asn>,
    /// Your name at the exchange.
    #[arg(long, required_unless_present = "member")]
    pub name: Option<String>,
    /// IPv4 address of your router on the exchange's network (may be repeated).
    #[arg(long)]
    pub address: Vec<IpAddr>,
    /// IPv6 address of your router on the exchange's network (may be repeated).
    #[arg(long)]
    pub address6: Vec<IpAddr>,
    /// A public key of `wayleave keys attest` as SUITE:HEX (may be repeated, one for each suite).
    #[arg(long)]
    pub attest: Vec<String>,
    /// The key file that your slot has now: the request changes that slot, in place. It may be the same file as --key.
    #[arg(long, value_name = "KEY", conflicts_with = "beside")]
    pub instead_of: Option<PathBuf>,
    /// The key file of another slot of your AS: the request is for a further slot. Without it others may hold the new slot.
    #[arg(long, value_name = "KEY")]
    pub beside: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Endorse {
    /// The file to write, which goes to both operators.
    pub file: PathBuf,
    /// The member set's file, from an operator.
    #[arg(long)]
    pub members: PathBuf,
    /// The name of the slot that is held.
    #[arg(long)]
    pub name: String,
    /// The key file of another slot of your AS, which is not held.
    #[arg(long)]
    pub key: PathBuf,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Propose {
    /// The member set's file.
    pub file: PathBuf,
    /// Your key file.
    #[arg(long)]
    pub operator: PathBuf,
    /// The proposal's file, which goes to the other operator.
    #[arg(long)]
    pub out: PathBuf,
    /// A member's request (may be repeated).
    #[arg(long)]
    pub request: Vec<PathBuf>,
    /// Whom you expect: `members.csv` of `wayleave members import`. A request with another AS, name or addresses is refused, and a new
    /// slot has the list's limit where --max-prefix has none.
    #[arg(long, value_name = "FILE")]
    pub expect: Option<PathBuf>,
    /// With --expect: take the request of this name as it is (may be repeated).
    #[arg(long, value_name = "NAME", requires = "expect")]
    pub unexpected: Vec<String>,
    /// How many prefixes a member may announce, as NAME=NUMBER: with each new slot (may be repeated).
    #[arg(long, value_name = "NAME=NUMBER")]
    pub max_prefix: Vec<String>,
    /// A member's addresses, as NAME=ADDRESS,ADDRESS (may be repeated).
    #[arg(long, value_name = "NAME=ADDRESSES")]
    pub addresses: Vec<String>,
    /// The exchange's profile: what every route must be. `wayleave members profile --print-default` prints one to start from.
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Your next key file, in place of --operator.
    #[arg(long, value_name = "KEY")]
    pub new_operator: Option<PathBuf>,
    /// The fingerprints of both parties' certificates (`pin` of `wayleave keys show`): no member may have them.
    #[arg(long, num_args = 2, value_names = ["PIN1", "PIN2"], value_parser = argument::<Fingerprint>)]
    pub parties: Vec<Fingerprint>,
    /// The largest limit that you agree to: `max_prefix_limit` of your party.
    #[arg(long, value_name = "NUMBER", default_value_t = MAX_PREFIX_LIMIT)]
    pub max_prefix_limit: u32,
    /// You signed another set of this number before, which both operators gave up; no party has it.
    #[arg(long)]
    pub given_up: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Countersign {
    /// The member set's file.
    pub file: PathBuf,
    /// The proposal, from `members propose` of the other operator.
    pub proposal: PathBuf,
    /// Your key file.
    #[arg(long)]
    pub operator: PathBuf,
    /// What a member told you of its claim (`claim:...`), or the other operator of its new key (`sign:ed25519:...`): one for each in the
    /// proposal. What the operators decide (limits, addresses, who is held no more) is confirmed at the terminal, or with --yes.
    #[arg(long, value_name = "DIGEST")]
    pub confirm: Vec<Confirmation>,
    /// Whom you expect: `members.csv` of `wayleave members import`. What differs from it, in limits too, is not signed.
    #[arg(long, value_name = "FILE")]
    pub expect: Option<PathBuf>,
    /// With --expect: take what is proposed for this name as it is (may be repeated).
    #[arg(long, value_name = "NAME", requires = "expect")]
    pub unexpected: Vec<String>,
    /// The fingerprints of both parties' certificates (`pin` of `wayleave keys show`): no member may have them.
    #[arg(long, num_args = 2, value_names = ["PIN1", "PIN2"], value_parser = argument::<Fingerprint>)]
    pub parties: Vec<Fingerprint>,
    /// The largest limit that you agree to: `max_prefix_limit` of your party.
    #[arg(long, value_name = "NUMBER", default_value_t = MAX_PREFIX_LIMIT)]
    pub max_prefix_limit: u32,
    /// Sign without being asked: you have compared everything.
    #[arg(long)]
    pub yes: bool,
    /// You signed another set of this number before, which both operators gave up; no party has it.
    #[arg(long)]
    pub given_up: bool,
    #[arg(long)]
    pub json: bool,
}

/// What somebody tells an operator over a channel of their own, to be found in a proposal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Confirmation {
    /// The digest of a member's claim.
    Claim([u8; 32]),
    /// The other operator's new key.
    Operator([u8; 32]),
}

impl FromStr for Confirmation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "`claim:` or `sign:ed25519:`, and 64 hexadecimal digits";
        match TextKind::of(text) {
            Some(TextKind::Certificate) => {
                return Err("this is the fingerprint of a certificate, which says nothing of the member's other keys; expected `claim:...`, which `wayleave members request` and `wayleave keys show` print for the member".to_owned());
            }
            Some(TextKind::Claim | TextKind::Signing | TextKind::Ed25519) => {}
            _ => return Err(refusal(text, expected)),
        }
        if let Some(digest) = text.strip_prefix("claim:").and_then(from_hex) {
            return Ok(Self::Claim(digest));
        }
        let key = text.parse::<PublicKey>();
        key.map(|key| Self::Operator(key.0.to_bytes())).map_err(|_| format!("expected {expected}"))
    }
}

impl fmt::Display for Confirmation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(digest) => f.write_str(&digest_text(digest)),
            Self::Operator(key) => write!(f, "{} (an operator's new key)", key_text(key)),
        }
    }
}

/// Who confirms a change to the operator that countersigns it.
enum Confirmed {
    By(Confirmation),
    /// The operator's own file says so already.
    Known,
    /// The operator decides.
    ByOperator,
}

fn confirmed_by(directory: &Directory, change: &Change) -> Confirmed {
    let set = directory.set();
    match change {
        Change::Join { claim, .. } | Change::Renew { claim, .. } => {
            Confirmed::By(Confirmation::Claim(claim.digest(&set.exchange)))
        }
        Change::Operator { key, .. } => Confirmed::By(Confirmation::Operator(*key)),
        Change::Left { slot } if set.active(*slot).is_none() => Confirmed::Known,
        Change::Left { .. } | Change::Amend { .. } | Change::Endorse { .. } | Change::Profile(_) | Change::Data(_) => {
            Confirmed::ByOperator
        }
    }
}

/// No claim of the step has a key that is a party's: the parties would refuse the set, and not start with it.
fn refuse_parties_keys(step: &Step, parties: &[Fingerprint]) -> Outcome {
    for change in &step.changes {
        let (Change::Join { claim, .. } | Change::Renew { claim, .. }) = change else { continue };
        let keys = [claim.tls, claim.sign].into_iter().chain(claim.attest.iter().map(|key| key.key));
        if let Some(party) = keys.into_iter().map(Fingerprint).find(|key| parties.contains(key)) {
            let failure =
                Failure::new(format!("{} claims a party's certificate as a key of its own: {party}", claim.name));
            return Err(failure.help("do not sign it: no party would take the set, or start with it").into());
        }
    }
    Ok(())
}

pub fn run(command: &Members) -> Outcome {
    match command {
        Members::Init(begin) => init(begin),
        Members::Import(import) => super::members_import::run(import),
        Members::Request(request) => self::request(request),
        Members::Endorse(endorse) => self::endorse(endorse),
        Members::Propose(proposal) => propose(proposal),
        Members::Countersign(countersign) => self::countersign(countersign),
        Members::Remove { file, operator, name, json } => remove(file, operator, name, *json),
        Members::Data(command) => members_data::run(command),
        Members::Profile { file, json, .. } => profile(file.as_deref(), *json),
        Members::Show { file, operators, json } => show(file, operators, *json),
    }
}

/// Each slot that the step makes or amends has a prefix limit, of at most what this operator agrees to.
fn refuse_limits(directory: &Directory, step: &Step, most: u32) -> Outcome {
    for change in &step.changes {
        let (name, limit) = match change {
            Change::Join { claim, max_prefix, .. } => (Some(claim.name.clone()), *max_prefix),
            Change::Amend { slot, max_prefix, .. } => {
                (directory.set().slot(*slot).map(|slot| slot.name.clone()), *max_prefix)
            }
            _ => continue,
        };
        let name = name.unwrap_or_default();
        if limit == 0 {
            return Err(Failure::usage(format!("no prefix limit for `{name}`: a member may not announce without one"))
                .help(format!("propose it with --max-prefix {name}=NUMBER: what it announces today, with room to grow"))
                .into());
        }
        if limit > most {
            return Err(Failure::usage(format!("`{name}` could announce {limit} prefixes, and you agree to {most} at most"))
                .help("settle a lower limit with the other operator; or both raise --max-prefix-limit, and `max_prefix_limit` of both parties")
                .into());
        }
    }
    Ok(())
}

/// A request with a key that was removed, or that another slot has: whose it is, and what to do.
fn refuse_removed_keys(directory: &Directory, request: &Request) -> Outcome {
    let (claim, set) = (&request.claim, directory.set());
    let renews = matches!(request.consent, Some((Consent::Renewal, ..)));
    let has = |slot: &Slot| (slot.tls == claim.tls || slot.sign == claim.sign) && !(renews && slot.active);
    // A slot that is held is signed for with the keys that it has.
    let is_other = |(_, slot): &(u32, &Slot)| has(slot) && !(slot.active && slot.held);
    let Some((id, slot)) = set.iter().find(is_other) else { return Ok(()) };
    let (name, by) = (&slot.name, directory.removals().find(|removal| removal.slot == id));
    let failure = match (slot.active, by) {
        (true, _) => Failure::new(format!("the key of this request is that of slot {id} (`{name}`), which is active"))
            .help("`wayleave members request --instead-of KEY` changes a slot; a further slot needs a key of its own"),
        (false, by) => {
            let by = by.map_or(String::new(), |removal| format!(" by party {}'s operator", removal.party));
            Failure::new(format!("{name}'s key was removed with slot {id}{by}, and is never used again")).help(format!(
                "`{name}` makes a new key (`wayleave keys new`) and a new request with it, signed with the old one too \
                     (`wayleave members request --beside OLD.key`), or other members hold the new slot"
            ))
        }
    };
    Err(failure.into())
}

fn init(begin: &MemberInit) -> Outcome {
    let (file, operators) = (&begin.file, [begin.operator1, begin.operator2]);
    if file.exists() {
        let failure = Failure::new(format!("{} exists", file.display()));
        return Err(failure.help("`wayleave members propose` changes it; or choose another name").into());
    }
    if begin.exchange.starts_with(TRIAL) {
        return Err(Failure::usage(format!(
            "names that begin with `{TRIAL}` are those of trials, expected another one"
        ))
        .help("members see by such a name that one person has all keys; `wayleave exchange new` makes a trial")
        .into());
    }
    if begin.operator1 == begin.operator2 {
        return Err(Failure::usage("--operator1 and --operator2 are one key, expected those of two operators")
            .help("each operator makes a key of its own (`wayleave keys new`) and tells the other the line `sign`")
            .into());
    }
    let directory = Directory::new(&begin.exchange, operators.map(|key| key.0.to_bytes()))?;
    replace(file, &directory.encode())?;
    let operators = operators.map(|key| key.to_string());
    if begin.json {
        print_json(json!({ "file": file, "number": 0, "operators": operators }));
    } else {
        print(&format!("operators = [\"{}\", \"{}\"]\n", operators[0], operators[1]));
    }
    Ok(())
}

fn request(wanted: &MemberRequest) -> Outcome {
    let identity = Identity::load(&wanted.key)?;
    let key = signing_key(&identity);
    let mut attest = Vec::new();
    for text in &wanted.attest {
        let LeafKey { suite, key } = attest_key(text)?;
        attest.push(AttestKey { suite, key });
    }
    attest.sort_unstable();
    let given = wanted.member.as_deref().map(MemberFile::read).transpose()?;
    let mut addresses: Vec<IpAddr> = wanted.address.iter().chain(&wanted.address6).copied().collect();
    if let Some(given) = given.as_ref().filter(|_| addresses.is_empty()) {
        addresses.clone_from(&given.addresses);
    }
    check_addresses(&addresses)?;
    let no_exchange = || {
        Failure::usage("no exchange is named, neither in --member nor by --exchange")
            .help("add --exchange NAME, as the exchange's operators name it")
    };
    let exchange = wanted.exchange.clone().or_else(|| given.as_ref()?.exchange.clone()).ok_or_else(no_exchange)?;
    let of_both = wanted.asn.or_else(|| Some(given.as_ref()?.asn));
    let of_both = of_both.zip(wanted.name.clone().or_else(|| Some(given.as_ref()?.name.clone())));
    let (asn, name) = of_both.ok_or_else(|| Failure::usage("no AS and no name, expected --asn and --name"))?;
    let claim = Claim {
        serial: unix_now().0,
        asn,
        name,
        tls: identity.fingerprint().0,
        sign: key.verifying_key().to_bytes(),
        attest,
        addresses,
    };
    let mut request = claim.sign(&exchange, &key);
    for (file, consent) in [(&wanted.instead_of, Consent::Renewal), (&wanted.beside, Consent::Further)] {
        if let Some(file) = file {
            request = request.with_consent(consent, &signing_key(&Identity::load(file)?));
        }
    }
    replace(&wanted.file, &request.encode())?;
    let (tls, sign) = (identity.fingerprint().to_string(), key_text(&request.claim.sign));
    let claim = digest_text(&request.claim.digest(&request.exchange));
    if wanted.json {
        print_json(json!({
            "file": wanted.file, "name": request.claim.name, "asn": request.claim.asn, "tls": tls, "sign": sign, "claim": claim,
        }));
    } else {
        let file = wanted.file.display();
        print(&format!(
            "pin    {tls}\nsign   {sign}\nclaim  {claim}\nsend {file} to both operators, and tell each of them the claim (claim:...) yourself: `wayleave keys show {file}` prints it again\n"
        ));
    }
    Ok(())
}

fn endorse(wanted: &Endorse) -> Outcome {
    let (directory, key) = (read(&wanted.members)?, signing_key(&Identity::load(&wanted.key)?));
    let set = directory.set();
    let slot = set.slot_by_name(&wanted.name).filter(|slot| set.active(*slot).is_some_and(|slot| slot.held));
    let request = slot.and_then(|slot| directory.request_of(slot)).ok_or_else(|| {
        Failure::new(format!("no slot `{}` is held in {}", wanted.name, wanted.members.display()))
            .help("`wayleave members show` prints which slots are held; the file may be older than the slot")
    })?;
    let request = request.with_consent(Consent::Further, &key);
    directory.check_step(&directory.propose(vec![directory.requested(&request, 0)?]))?;
    replace(&wanted.file, &request.encode())?;
    if wanted.json {
        print_json(json!({ "file": wanted.file, "name": wanted.name, "slot": slot }));
    } else {
        print(&format!("send {} to both operators\n", wanted.file.display()));
    }
    Ok(())
}

/// No router has such an address, so that no next hop may be it.
pub(super) fn check_addresses(addresses: &[IpAddr]) -> Outcome {
    match addresses.iter().find(|address| !can_be_next_hop(**address)) {
        Some(address) => Err(Failure::usage(format!(
            "{address} cannot be a router's address on the exchange's network, so that no member may have it as a next hop"
        ))
        .help("give the address of the router's interface on the exchange's network; `ip address` shows it")
        .into()),
        None => Ok(()),
    }
}

fn propose(wanted: &Propose) -> Outcome {
    let (directory, key) = (read(&wanted.file)?, operator(&wanted.operator)?);
    let set = directory.set();
    let mut limits: BTreeMap<String, u32> = BTreeMap::new();
    for text in &wanted.max_prefix {
        let (name, number) = assignment(text)?;
        let number = number.parse().map_err(|_| Failure::usage(format!("`{text}`: expected NAME=NUMBER")))?;
        limits.insert(name, number);
    }
    let expected = Expected::read(wanted.expect.as_ref(), &wanted.unexpected)?;
    let mut addresses: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for text in &wanted.addresses {
        let (name, list) = assignment(text)?;
        let list: Result<Vec<IpAddr>, _> = list.split(',').map(str::parse).collect();
        let list = list.map_err(|_| Failure::usage(format!("`{text}`: expected NAME=ADDRESS,ADDRESS")))?;
        check_addresses(&list)?;
        addresses.insert(name, list);
    }
    let mut changes = Vec::new();
    for file in &wanted.request {
        let request = read_request(file)?;
        check_addresses(&request.claim.addresses)?;
        let limit = match request.consent {
            Some((Consent::Renewal, ..)) => 0,
            _ => {
                let of_list = || expected.as_ref()?.limit(&request.claim.name);
                limits.remove(&request.claim.name).or_else(of_list).unwrap_or(0)
            }
        };
        if request.exchange != set.exchange {
            let (file, of) = (file.display(), &request.exchange);
            return Err(Failure::new(format!(
                "{file} is a request for the exchange `{of}`, and {} is the member set of `{}`",
                wanted.file.display(),
                set.exchange
            ))
            .help(format!(
                "its member signs it again with `--exchange {}`, or this is another exchange's",
                set.exchange
            ))
            .into());
        }
        refuse_removed_keys(&directory, &request)?;
        changes
            .push(directory.requested(&request, limit).map_err(|error| perhaps_old(&wanted.file, set.number, &error))?);
    }
    let amended: std::collections::BTreeSet<String> = limits.keys().chain(addresses.keys()).cloned().collect();
    for name in amended {
        let slot = set.slot_by_name(&name).ok_or_else(|| Failure::new(format!("no active member `{name}`")))?;
        let Some(before) = set.slot(slot) else { continue };
        let renewed = changes.iter().find_map(|change| match change {
            Change::Renew { slot: of, claim, .. } if *of == slot => Some(claim.addresses.clone()),
            _ => None,
        });
        let held = renewed.unwrap_or_else(|| before.addresses.clone());
        let addresses = addresses.remove(&name).unwrap_or_else(|| held.clone());
        let max_prefix = limits.get(&name).copied().unwrap_or(before.max_prefix);
        // What is in force already is no change, which would make the whole step one that changes nothing.
        if (&addresses, max_prefix) == (&held, before.max_prefix) {
            continue;
        }
        changes.push(Change::Amend { slot, addresses, max_prefix });
    }
    if let Some(file) = &wanted.profile {
        let (profile, data) = profile::read(file)?;
        let is_other = set.profile.as_ref() != Some(&profile);
        if !is_other && set.data == data {
            return Err(Failure::new(format!("{} is the profile that is in force already", file.display()))
                .help("`wayleave members show` prints it; propose without --profile, or change the file")
                .into());
        }
        let other_data = (set.data != data).then_some(Change::Data(data));
        changes.extend(is_other.then_some(Change::Profile(profile)).into_iter().chain(other_data));
    }
    if let Some(file) = &wanted.new_operator {
        let public = key.verifying_key().to_bytes();
        let party = directory.party_of(&public).ok_or(ProposalError::NoOperator)?;
        changes.push(Change::operator(&directory, party, &operator(file)?));
    }
    let step = directory.propose(changes);
    if let Some(expected) = &expected {
        expected.check_requests(set, &step)?;
    }
    refuse_limits(&directory, &step, wanted.max_prefix_limit)?;
    let proposal =
        Proposal::sign(&directory, step, &key).map_err(|error| not_a_proposal(&wanted.file, set.number, &error))?;
    refuse_parties_keys(&proposal.step, &wanted.parties)?;
    remember(&wanted.operator, &directory, &proposal.step, wanted.given_up)?;
    replace(&wanted.out, &proposal.encode())?;
    let described = described(&directory, &proposal.step);
    if wanted.json {
        print_json(json!({ "file": wanted.out, "party": proposal.party, "changes": described }));
    } else {
        print(&in_words(&described));
        print(&format!(
            "signed for party {}; the other party's operator now runs: wayleave members countersign {} {} --operator KEY --confirm CLAIM... --parties PIN PIN\n",
            proposal.party,
            wanted.file.display(),
            wanted.out.display()
        ));
    }
    Ok(())
}

/// Why a change may not follow the set of a file, which may be older than what is in force.
fn perhaps_old(file: &Path, number: u64, error: &ChainError) -> Failure {
    let failure = Failure::from_error(error);
    match error {
        ChainError::Set { .. } | ChainError::Number { .. } | ChainError::Previous(_) => failure.help(format!(
            "{} has member set {number}: if a member was removed since, or another set signed, take the file of your party and repeat; \
             `wayleave members show` prints what a file has",
            file.display()
        )),
        _ => failure,
    }
}

/// The same of a whole proposal.
fn not_a_proposal(file: &Path, number: u64, error: &ProposalError) -> Failure {
    match error {
        ProposalError::Chain(error) => perhaps_old(file, number, error),
        error => Failure::from_error(error),
    }
}

fn countersign(wanted: &Countersign) -> Outcome {
    let (directory, key) = (read(&wanted.file)?, operator(&wanted.operator)?);
    let proposal = proposal(&wanted.proposal)?;
    proposal.check(&directory).map_err(|error| not_a_proposal(&wanted.file, directory.set().number, &error))?;
    let changes = described(&directory, &proposal.step);
    if !wanted.json {
        print(&in_words(&changes));
    }
    refuse_parties_keys(&proposal.step, &wanted.parties)?;
    if let Some(expected) = Expected::read(wanted.expect.as_ref(), &wanted.unexpected)? {
        expected.check(directory.set(), &proposal.step)?;
    }
    refuse_limits(&directory, &proposal.step, wanted.max_prefix_limit)?;
    let by: Vec<Confirmed> = proposal.step.changes.iter().map(|change| confirmed_by(&directory, change)).collect();
    let missing = by.iter().find_map(|by| match by {
        Confirmed::By(claim) if !wanted.confirm.contains(claim) => Some(claim),
        _ => None,
    });
    if let Some(missing) = missing.filter(|_| !wanted.confirm.is_empty()) {
        let failure = Failure::new(format!("the proposal has something that you did not confirm: {missing}"));
        return Err(failure
            .help("compare it with what the member, or the other operator, told you; if it differs, do not sign")
            .into());
    }
    let decides = by.iter().any(|by| matches!(by, Confirmed::ByOperator));
    if (missing.is_some() || decides) && !wanted.yes && !is_confirmed_at_terminal()? {
        let failure = Failure::new("not signed: nobody confirmed what the proposal changes");
        let help = if missing.is_some() {
            "compare each `claim:...` with what its member told you over a channel of your own, then repeat with --confirm DIGEST for each, or with --yes"
        } else {
            "it also changes what no member confirms (addresses, limits, the profile, who has left or is held no more): compare that with what you agreed on, then repeat at a terminal, or with --yes"
        };
        return Err(failure.help(help).into());
    }
    // Not before: somebody may sit at the terminal for long, while the party writes the file.
    let _lock = locked(&wanted.file)?;
    if read(&wanted.file)? != directory {
        return Err(Failure::new(format!("{} was changed meanwhile", wanted.file.display())).help("repeat").into());
    }
    let step = proposal.step.clone();
    let next = proposal.countersign(&directory, &key)?;
    remember(&wanted.operator, &directory, &step, wanted.given_up)?;
    replace(&wanted.file, &next.encode())?;
    let number = next.set().number;
    if wanted.json {
        print_json(json!({ "file": wanted.file, "number": number, "changes": changes }));
    } else {
        print(&format!(
            "set {number} counts: both operators signed it. Send SIGHUP to your party; the other one takes it over from yours\n"
        ));
    }
    Ok(())
}

/// Whether the person at the terminal says yes; without a terminal nobody does.
fn is_confirmed_at_terminal() -> Outcome<bool> {
    if !stdin().is_terminal() {
        return Ok(false);
    }
    print("Did you compare each claim with what its member told you, and is all else as agreed? Type yes to sign: ");
    let mut line = String::new();
    stdin().read_line(&mut line).map_err(|error| Failure::system("the terminal", &error))?;
    Ok(line.trim() == "yes")
}

fn remove(file: &Path, key: &Path, name: &str, json: bool) -> Outcome {
    let _lock = locked(file)?;
    let (directory, key_file) = (read(file)?, key);
    let key = operator(key)?;
    let slot = directory.set().slot_by_name(name).ok_or_else(|| Failure::new(format!("no active member `{name}`")))?;
    let Some(party) = directory.party_of(&key.verifying_key().to_bytes()) else {
        let failure = Failure::new(format!("{} is not the key of an operator of this set", key_file.display()));
        return Err(failure.help("`wayleave members show` prints the operators' keys").into());
    };
    let next = directory.without(slot, &key)?;
    replace(file, &next.encode())?;
    if read(file)?.set().active(slot).is_some() {
        return Err(
            Failure::new(format!("{} was written meanwhile and lacks the removal; repeat", file.display())).into()
        );
    }
    let number = next.set().number;
    if json {
        print_json(json!({ "name": name, "slot": slot, "number": number, "party": party }));
    } else {
        print(&format!(
            "{name} removed from slot {slot}; the set is now number {number}. Send SIGHUP to party {party}: both parties take it\n"
        ));
    }
    Ok(())
}

fn show(file: &Path, operators: &[PublicKey], json: bool) -> Outcome {
    let directory = read(file)?;
    if let [first, second] = operators {
        let trust = trust(&directory.set().exchange, &[*first, *second]);
        directory.check(&trust).map_err(|error| Failure::new(format!("{}: {error}", file.display())))?;
    }
    let mut value = describe(directory.set());
    value["operators"] = json!(directory.operators().map(|key| key_text(&key)));
    value["signed_sets"] = json!(directory.steps().len());
    value["removals"] = directory
        .removals()
        .map(|removal| json!({ "slot": removal.slot, "asn": removal.asn, "by_party": removal.party }))
        .collect();
    if json {
        print_json(value);
    } else {
        let [one, two] = directory.operators().map(|key| key_text(&key));
        let set = directory.set();
        print(&format!("{} set {}\nsigned by {one} (party 1) and {two} (party 2)\n", set.exchange, set.number));
        let columns = ["slot", "active", "name", "asn", "addresses", "max_prefix", "held", "attest", "tls"];
        print(&objects(value["members"].as_array().map_or(&[], Vec::as_slice), &columns));
        for removal in directory.removals() {
            print(&format!("slot {} was removed by party {}'s operator\n", removal.slot, removal.party));
        }
        match profile::describe_set(set) {
            Some(described) => {
                print(&format!("\nprofile\n{}{}\n", fields(&described), profile::RESTS_ON_ANNOUNCERS));
            }
            None => print("no profile\n"),
        }
    }
    Ok(())
}

/// A profile's file, or the one with the defaults.
fn profile(file: Option<&Path>, json: bool) -> Outcome {
    let Some(file) = file else {
        print(&profile::template());
        return Ok(());
    };
    let (profile, data) = profile::read(file)?;
    let described = profile::describe(&profile, data.as_ref());
    if json {
        print_json(json!({ "file": file, "profile": described }));
    } else {
        print(&fields(&described));
    }
    Ok(())
}

fn operator(file: &Path) -> Outcome<SigningKey> {
    Ok(signing_key(&Identity::load(file)?))
}

fn assignment(text: &str) -> Outcome<(String, &str)> {
    let (name, value) = text.split_once('=').ok_or_else(|| Failure::usage(format!("`{text}`: expected NAME=VALUE")))?;
    Ok((name.to_owned(), value))
}

/// What a step does to the set in force, change by change.
fn described(directory: &Directory, step: &Step) -> Vec<Value> {
    let mut next = u32::try_from(directory.set().slots.len()).unwrap_or(u32::MAX);
    step.changes.iter().map(|change| describe_change(directory, change, &mut next)).collect()
}

fn in_words(changes: &[Value]) -> String {
    changes.iter().map(|change| format!("{}\n", fields(&old_and_new(change)))).collect()
}

/// A change whose old and new values stand in one line each.
fn old_and_new(change: &Value) -> Value {
    let mut words = change.clone();
    let changed = words.get_mut("profile").and_then(Value::as_object_mut);
    for value in changed.into_iter().flat_map(|changed| changed.values_mut()) {
        *value = json!(format!("{} -> {}", cell(&value["old"]), cell(&value["new"])));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_no_router_can_have_is_not_proposed() {
        let check = |text: &str| check_addresses(&[text.parse().expect("an address")]);
        for good in ["192.0.2.1", "2001:db8::1", "fe80::1"] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in ["::", "::1", "::ffff:192.0.2.1", "ff02::1", "0.0.0.0", "127.0.0.1", "224.0.0.5"] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
