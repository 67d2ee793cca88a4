//! `members`: who is a member. Both parties' operators sign a set, the member signs its slot, and one operator alone removes.

use std::collections::BTreeMap;
use std::io::{IsTerminal, stdin};
use std::path::Path;

use serde_json::{Value, json};
use wayleave_attestation::leaf::LeafKey;
use wayleave_core::Asn;
use wayleave_crypto::sign::SigningKey;
use wayleave_route_server::directory::{AttestKey, Change, Claim, Consent, Directory, Proposal, ProposalError, Step};
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::identity::{Fingerprint, Identity};

use super::pki::attest_key;
use crate::config::PublicKey;
use crate::failure::{Failure, Outcome};
use crate::key_files::member_set::{
    describe, describe_change, key_text, proposal, read, replace, request as read_request, sign_once, trust,
};
use crate::key_files::signing_key;
use crate::output::{fields, objects, print, print_json};
use clap::{Args, Subcommand};
use std::net::IpAddr;
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum Members {
    /// Begin a member set, without members. Both operators do this with the same keys and get the same file.
    Init(Box<MemberInit>),
    /// As a member: sign what the exchange is to know of you, for both operators.
    Request(MemberRequest),
    /// As an operator: propose the next set. It counts once the other party's operator has countersigned it.
    Propose(Propose),
    /// As the other operator: show what a proposal changes, and sign it. Writes the member set's file.
    Countersign(Countersign),
    /// As an operator, alone: remove a member. Its slot and its keys cannot be used again.
    Remove {
        file: PathBuf,
        /// Your key file.
        #[arg(long)]
        operator: PathBuf,
        #[arg(long)]
        name: String,
        #[arg(long)]
        json: bool,
    },
    /// Print a set, after checking all its signatures.
    Show {
        file: PathBuf,
        /// Party 1's operator's public key (`ed25519:...`), and party 2's, which must have signed the set.
        #[arg(long, num_args = 2, value_names = ["KEY1", "KEY2"])]
        operators: Vec<PublicKey>,
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args, Debug)]
pub struct MemberInit {
    file: PathBuf,
    #[arg(long)]
    exchange: String,
    /// The public key (`ed25519:...`) of party 1's operator, from its `wayleave keys new`.
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
    #[arg(long)]
    pub exchange: String,
    #[arg(long)]
    pub asn: Asn,
    #[arg(long)]
    pub name: String,
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
    /// How many prefixes a member may announce, as NAME=NUMBER; 0 means no limit (may be repeated).
    #[arg(long, value_name = "NAME=NUMBER")]
    pub max_prefix: Vec<String>,
    /// A member's addresses, as NAME=ADDRESS,ADDRESS (may be repeated).
    #[arg(long, value_name = "NAME=ADDRESSES")]
    pub addresses: Vec<String>,
    /// Your next key file, in place of --operator.
    #[arg(long, value_name = "KEY")]
    pub new_operator: Option<PathBuf>,
    /// You signed another set of this number, and nobody can countersign it any more.
    #[arg(long)]
    pub instead: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Countersign {
    /// The member set's file.
    pub file: PathBuf,
    pub proposal: PathBuf,
    /// Your key file.
    #[arg(long)]
    pub operator: PathBuf,
    /// The fingerprint (`sha256:...`) of a new certificate in the proposal, as the member told you (one for each).
    #[arg(long, value_name = "FINGERPRINT")]
    pub confirm: Vec<Fingerprint>,
    /// Sign without being asked: you have compared everything.
    #[arg(long)]
    pub yes: bool,
    /// You signed another set of this number, and nobody can countersign it any more.
    #[arg(long)]
    pub instead: bool,
    #[arg(long)]
    pub json: bool,
}

pub fn run(command: &Members) -> Outcome {
    match command {
        Members::Init(begin) => init(begin),
        Members::Request(request) => self::request(request),
        Members::Propose(proposal) => propose(proposal),
        Members::Countersign(countersign) => self::countersign(countersign),
        Members::Remove { file, operator, name, json } => remove(file, operator, name, *json),
        Members::Show { file, operators, json } => show(file, operators, *json),
    }
}

fn init(begin: &MemberInit) -> Outcome {
    let (file, operators) = (&begin.file, [begin.operator1, begin.operator2]);
    if file.exists() {
        let failure = Failure::new(format!("{} exists", file.display()));
        return Err(failure.help("`wayleave members propose` changes it; or choose another name").into());
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
    let claim = Claim {
        serial: unix_now().0,
        asn: wanted.asn,
        name: wanted.name.clone(),
        tls: identity.fingerprint().0,
        sign: key.verifying_key().to_bytes(),
        attest,
        addresses: wanted.address.iter().chain(&wanted.address6).copied().collect(),
    };
    let mut request = claim.sign(&wanted.exchange, &key);
    for (file, consent) in [(&wanted.instead_of, Consent::Renewal), (&wanted.beside, Consent::Further)] {
        if let Some(file) = file {
            request = request.with_consent(consent, &signing_key(&Identity::load(file)?));
        }
    }
    replace(&wanted.file, &request.encode())?;
    let (tls, sign) = (identity.fingerprint().to_string(), key_text(&request.claim.sign));
    if wanted.json {
        print_json(json!({ "file": wanted.file, "name": wanted.name, "asn": wanted.asn, "tls": tls, "sign": sign }));
    } else {
        let file = wanted.file.display();
        print(&format!(
            "tls   {tls}\nsign  {sign}\nsend {file} to both operators, and tell each of them the fingerprint\n"
        ));
    }
    Ok(())
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
    let mut addresses: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for text in &wanted.addresses {
        let (name, list) = assignment(text)?;
        let list: Result<Vec<IpAddr>, _> = list.split(',').map(str::parse).collect();
        let list = list.map_err(|_| Failure::usage(format!("`{text}`: expected NAME=ADDRESS,ADDRESS")))?;
        addresses.insert(name, list);
    }
    let mut changes = Vec::new();
    for file in &wanted.request {
        let request = read_request(file)?;
        let limit = match request.consent {
            Some((Consent::Renewal, ..)) => 0,
            _ => limits.remove(&request.claim.name).unwrap_or(0),
        };
        changes.push(directory.requested(&request, limit)?);
    }
    let amended: std::collections::BTreeSet<String> = limits.keys().chain(addresses.keys()).cloned().collect();
    for name in amended {
        let slot = set.slot_by_name(&name).ok_or_else(|| Failure::new(format!("no active member `{name}`")))?;
        let Some(before) = set.slot(slot) else { continue };
        let addresses = addresses.remove(&name).unwrap_or_else(|| before.addresses.clone());
        let max_prefix = limits.get(&name).copied().unwrap_or(before.max_prefix);
        changes.push(Change::Amend { slot, addresses, max_prefix });
    }
    if let Some(file) = &wanted.new_operator {
        let public = key.verifying_key().to_bytes();
        let party = directory.party_of(&public).ok_or(ProposalError::NoOperator)?;
        changes.push(Change::operator(&directory, party, &operator(file)?));
    }
    let step = directory.propose(changes);
    directory.check_step(&step)?;
    sign_once(&wanted.operator, &directory, &step, wanted.instead)?;
    let proposal = Proposal::sign(&directory, step, &key)?;
    replace(&wanted.out, &proposal.encode())?;
    let described = described(&directory, &proposal.step);
    if wanted.json {
        print_json(json!({ "file": wanted.out, "party": proposal.party, "changes": described }));
    } else {
        print(&in_words(&described));
        print(&format!(
            "signed for party {}; the other party's operator now runs: wayleave members countersign {} {} --operator KEY\n",
            proposal.party,
            wanted.file.display(),
            wanted.out.display()
        ));
    }
    Ok(())
}

fn countersign(wanted: &Countersign) -> Outcome {
    let (directory, key) = (read(&wanted.file)?, operator(&wanted.operator)?);
    let proposal = proposal(&wanted.proposal)?;
    proposal.check(&directory)?;
    let changes = described(&directory, &proposal.step);
    if !wanted.json {
        print(&in_words(&changes));
    }
    let to_confirm: Vec<Fingerprint> = proposal.step.changes.iter().filter_map(new_certificate).collect();
    if !wanted.confirm.is_empty() {
        if let Some(missing) = to_confirm.iter().find(|tls| !wanted.confirm.contains(tls)) {
            let failure = Failure::new(format!("the proposal has a certificate that you did not confirm: {missing}"));
            return Err(failure.help("compare it with what the member told you; if it is another, do not sign").into());
        }
    } else if !wanted.yes && !asked()? {
        let failure = Failure::new("not signed: nobody confirmed what the proposal changes");
        return Err(failure
            .help("compare each fingerprint with what its member told you over a channel of your own, then repeat with --confirm FINGERPRINT for each, or with --yes")
            .into());
    }
    let party = directory.party_of(&key.verifying_key().to_bytes()).ok_or(ProposalError::NoOperator)?;
    if party == proposal.party {
        return Err(ProposalError::OwnProposal(party).into());
    }
    sign_once(&wanted.operator, &directory, &proposal.step, wanted.instead)?;
    let next = proposal.countersign(&directory, &key)?;
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

/// The certificate that a change brings in.
fn new_certificate(change: &Change) -> Option<Fingerprint> {
    match change {
        Change::Join { claim, .. } | Change::Renew { claim, .. } => Some(Fingerprint(claim.tls)),
        _ => None,
    }
}

/// Whether the person at the terminal says yes; without a terminal nobody does.
fn asked() -> Outcome<bool> {
    if !stdin().is_terminal() {
        return Ok(false);
    }
    print("Did you compare each fingerprint with what its member told you? Type yes to sign: ");
    let mut line = String::new();
    stdin().read_line(&mut line).map_err(|error| Failure::system("the terminal", &error))?;
    Ok(line.trim() == "yes")
}

fn remove(file: &Path, key: &Path, name: &str, json: bool) -> Outcome {
    let (directory, key_file) = (read(file)?, key);
    let key = operator(key)?;
    let slot = directory.set().slot_by_name(name).ok_or_else(|| Failure::new(format!("no active member `{name}`")))?;
    let Some(party) = directory.party_of(&key.verifying_key().to_bytes()) else {
        let failure = Failure::new(format!("{} is not the key of an operator of this set", key_file.display()));
        return Err(failure.help("`wayleave members show` prints the operators' keys").into());
    };
    let next = directory.without(slot, &key)?;
    replace(file, &next.encode())?;
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
    changes.iter().map(|change| format!("{}\n", fields(change))).collect()
}
