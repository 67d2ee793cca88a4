//! `members data`: what the routing registries have of an exchange's members, put together, signed by a machine of each operator, and
//! compared by the second one with its own.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wayleave_core::{Asn, Prefix};
use wayleave_import::{MAX_REGISTRY_OCTETS, RegistryLists, one_line, parse_registry};
use wayleave_route_server::data::{Data, DataObject, MAX_ENCODED, MemberLists, PrefixList, PrefixRange, family};
use wayleave_route_server::directory::{DataRules, Directory};
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::identity::Identity;

use super::member_lists::SelectionArgs;
use crate::failure::{Failure, Outcome};
use crate::key_files::member_set::{read as read_members, replace};
use crate::key_files::signing_key;
use crate::output::{objects, print, print_json};

/// Entries of a list that may be added or lost whatever the share is, unless the list is short; and so many prefixes of 24 or 48 bits.
const FEW: u64 = 10;
/// Entries of a list of less than [`FEW`] that may be added or lost.
const FEW_OF_SHORT: u64 = 2;
/// Bits of the prefixes that address space is counted in.
const UNIT_BITS: [u8; 2] = [24, 48];
/// Bits of the shortest prefix that may be in one build alone, where there is no profile.
const SHORTEST: [u8; 2] = [8, 12];
/// How far the number of data may be ahead of those before. Each number that is skipped is lost.
const MAX_SKIPPED: u64 = 1_000;
/// Differences that are named.
const MOST_NAMED: usize = 20;
/// Octets of a list of bogons.
const MAX_BOGON_OCTETS: u64 = 4 << 20;
/// How far ahead of this machine's clock data may have been made.
const CLOCK_SECS: u64 = 600;

#[derive(Subcommand, Debug)]
pub enum MembersData {
    /// Put data together from files of bgpq4 or arouteserver.
    Build(Box<Build>),
    /// Sign data with the machine key of one operator. The second one compares them with its own build first.
    Sign(Sign),
    /// Print what data say.
    Show {
        /// The data.
        file: PathBuf,
        /// This AS alone, with its lists.
        #[arg(long, value_name = "AS")]
        asn: Option<Asn>,
        #[arg(long)]
        json: bool,
    },
    /// Check that data are this exchange's, signed by both operators' machines, and current.
    Check {
        /// The data.
        file: PathBuf,
        /// The member set.
        #[arg(long)]
        members: PathBuf,
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args, Debug)]
pub struct Build {
    /// The file to write, without a signature.
    pub out: PathBuf,
    /// The member set. What the files have of other ASes is left out.
    #[arg(long)]
    pub members: PathBuf,
    /// A folder of lists (may be repeated): each file's name begins with the member's AS, as `AS64497.ipv4.json`, and it has what
    /// `bgpq4 -j` or arouteserver's cache has of it, origins or prefixes.
    #[arg(long, required = true, value_name = "FOLDER")]
    pub irr: Vec<PathBuf>,
    /// An AS that is no member yet, and whose lists are taken over too (may be repeated).
    #[arg(long, value_name = "AS")]
    pub also: Vec<Asn>,
    /// How many prefixes each member may announce: arouteserver's `clients.yml`, or a member export of IX-F.
    #[arg(long, value_name = "FILE")]
    pub limits: Option<PathBuf>,
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// Prefixes that nobody may announce, beside those that no proxy takes: one in a line, `#` begins a comment.
    #[arg(long, value_name = "FILE")]
    pub bogons: Option<PathBuf>,
    /// The data that are in force: the new ones have the next number. Without it the number is 1.
    #[arg(long, value_name = "FILE", conflicts_with = "number")]
    pub after: Option<PathBuf>,
    /// The number of the data, which must rise. A high one uses up all those below it.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
    pub number: Option<u64>,
    /// For how many hours they are current; then every proxy says that they are old, and goes on with them.
    #[arg(long, value_name = "HOURS", default_value_t = 72, value_parser = clap::value_parser!(u64).range(1..=8_760))]
    pub valid: u64,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Sign {
    /// The data, which get the signature.
    pub file: PathBuf,
    /// The member set.
    #[arg(long)]
    pub members: PathBuf,
    /// The machine key's file.
    #[arg(long)]
    pub key: PathBuf,
    /// Data that you built yourself: those of the other operator are signed only if they differ from them by no more than allowed.
    #[arg(long, value_name = "FILE", required_unless_present = "first")]
    pub compare: Option<PathBuf>,
    /// Sign your own build, which the other operator is to compare. What the other one has signed needs --compare.
    #[arg(long, conflicts_with = "compare")]
    pub first: bool,
    /// With --compare: by how many hundredths of its entries a list may grow, and by how many it may shrink. 10 entries always may, but
    /// never more than half of the list, nor more than 2 of a list of less than 10.
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=100))]
    pub most_percent: u64,
    /// With --compare: how many members' lists may differ at all.
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    pub most_members: usize,
    /// The data that are in force: others with the same number, a lower one, or one that is higher by more than 1,000 are not signed.
    #[arg(long, value_name = "FILE")]
    pub after: Option<PathBuf>,
    /// The longest time for which you sign, in hours.
    #[arg(long, value_name = "HOURS", default_value_t = 168, value_parser = clap::value_parser!(u64).range(1..=8_760))]
    pub most_valid: u64,
    #[arg(long)]
    pub json: bool,
}

pub fn run(command: &MembersData) -> Outcome {
    match command {
        MembersData::Build(wanted) => build(wanted),
        MembersData::Sign(wanted) => sign(wanted),
        MembersData::Show { file, asn, json } => show(file, *asn, *json),
        MembersData::Check { file, members, json } => check(file, members, *json),
    }
}

/// At most so many octets of a file.
fn octets(file: &Path, most: u64) -> Outcome<Vec<u8>> {
    let failed = |error: std::io::Error| Failure::system(file.display(), &error);
    let mut octets = Vec::new();
    File::open(file).map_err(failed)?.take(most + 1).read_to_end(&mut octets).map_err(failed)?;
    if octets.len() as u64 > most {
        return Err(Failure::new(format!("{}: longer than {} MiB", file.display(), most >> 20)).into());
    }
    Ok(octets)
}

fn object(file: &Path) -> Outcome<DataObject> {
    let octets = octets(file, MAX_ENCODED as u64)?;
    Ok(DataObject::decode(&octets).map_err(|error| {
        let failure = Failure::new(format!("{} is no data of an exchange: {error}", file.display()));
        failure.help("`wayleave members data build` makes them")
    })?)
}

/// The member set of a file, and what its profile says of data.
fn members(file: &Path) -> Outcome<(Directory, DataRules)> {
    let directory = read_members(file)?;
    let Some(rules) = directory.set().data.clone() else {
        let failure = Failure::new(format!("the profile of {} names no machine keys", file.display()));
        return Err(failure
            .help("add `[profile.data]` with both machine keys to the profile, and sign it: `wayleave members propose --profile`")
            .into());
    };
    Ok((directory, rules))
}

/// The AS that a file's name begins with: `AS64497.json`, `AS64497-ipv4.json`.
fn asn_of(file: &Path) -> Option<Asn> {
    let name = file.file_name()?.to_str()?;
    let rest = name.strip_prefix("AS").or_else(|| name.strip_prefix("as"))?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok().map(Asn)
}

/// What the files of an AS have, and of what there is a file, whether it has an entry or none.
#[derive(Default)]
struct FoundLists {
    lists: RegistryLists,
    has_origins: bool,
    has_prefixes: bool,
}

impl FoundLists {
    /// Takes in what a file has. One without entries does not say what it is a list of: of prefixes if its name has `ipv4` or `ipv6`, and
    /// otherwise of both.
    fn add(&mut self, file: &Path, read: RegistryLists) {
        let name = file.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let is_empty = read.origins.is_empty() && read.prefixes.is_empty();
        let is_of_prefixes = name.contains("ipv4") || name.contains("ipv6");
        self.has_origins |= !read.origins.is_empty() || (is_empty && !is_of_prefixes);
        self.has_prefixes |= !read.prefixes.is_empty() || is_empty;
        self.lists.origins.extend(read.origins);
        self.lists.prefixes.extend(read.prefixes);
    }
}

/// What a folder has of each AS, and how many of its files are of none of these.
fn lists_in(folder: &Path, wanted: &BTreeSet<Asn>, lists: &mut BTreeMap<Asn, FoundLists>) -> Outcome<usize> {
    let failed = |error: std::io::Error| Failure::system(folder.display(), &error);
    let (mut files, mut others) = (Vec::new(), 0);
    for entry in fs::read_dir(folder).map_err(failed)? {
        files.push(entry.map_err(failed)?.path());
    }
    files.sort();
    for file in files {
        let Some(asn) = asn_of(&file).filter(|asn| wanted.contains(asn)) else {
            others += 1;
            continue;
        };
        let read = parse_registry(&octets(&file, MAX_REGISTRY_OCTETS)?).map_err(|why| {
            let failure = Failure::new(format!("{}: {why}", one_line(&file.to_string_lossy())));
            failure.help("expected what `bgpq4 -j` prints, or a file of arouteserver's cache; nothing was written")
        })?;
        lists.entry(asn).or_default().add(&file, read);
    }
    Ok(others)
}

fn bogons(file: &Path) -> Outcome<PrefixList> {
    let octets = octets(file, MAX_BOGON_OCTETS)?;
    let text = String::from_utf8_lossy(&octets);
    let mut ranges = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let prefix: Prefix = line.parse().map_err(|error: wayleave_core::ParsePrefixError| {
            Failure::new(format!("{}:{number}: {}", file.display(), one_line(&error.to_string())))
        })?;
        ranges.push(PrefixRange { prefix, least: prefix.len(), most: prefix.afi().bits() });
    }
    Ok(PrefixList::of(ranges).unwrap_or_default())
}

fn build(wanted: &Build) -> Outcome {
    let (directory, _) = members(&wanted.members)?;
    let mut asns: BTreeSet<Asn> =
        directory.set().iter().filter(|(_, slot)| slot.active).map(|(_, slot)| slot.asn).collect();
    asns.extend(&wanted.also);
    let (mut lists, mut others) = (BTreeMap::new(), 0);
    for folder in &wanted.irr {
        others += lists_in(folder, &asns, &mut lists)?;
    }
    let mut all: BTreeMap<Asn, MemberLists> = BTreeMap::new();
    for (asn, FoundLists { lists: RegistryLists { mut origins, prefixes }, has_origins, has_prefixes }) in lists {
        origins.sort_unstable();
        origins.dedup();
        let too_many = |range: PrefixRange| Failure::new(format!("{asn}: {} has no lengths", range.prefix));
        let prefixes = PrefixList::of(prefixes).map_err(too_many)?;
        let of = all.entry(asn).or_default();
        of.origins = has_origins.then(|| origins.into());
        of.prefixes = has_prefixes.then_some(prefixes);
    }
    if let Some(file) = &wanted.limits {
        for member in wanted.selection.read(file)?.members.iter().filter(|member| asns.contains(&member.asn)) {
            let of = all.entry(member.asn).or_default();
            for (most, limit) in of.max_prefixes.iter_mut().zip(member.limits) {
                *most = (*most).max(limit.unwrap_or(0));
            }
        }
    }
    let bogons = wanted.bogons.as_deref().map(bogons).transpose()?.unwrap_or_default();
    let after = wanted.after.as_deref().map(object).transpose()?;
    let number = after.map_or(wanted.number.unwrap_or(1), |object| object.data.number.saturating_add(1));
    let made = unix_now().secs();
    let (exchange, until) = (directory.origin(), made + wanted.valid * 3_600);
    let without: Vec<Asn> = asns
        .iter()
        .filter(|asn| all.get(asn).is_none_or(|lists| lists.origins.is_none() || lists.prefixes.is_none()))
        .copied()
        .collect();
    let data = Data { exchange, number, made, until, bogons, members: all };
    let object = DataObject::new(data).map_err(|error| Failure::new(format!("the data exceed a limit: {error}")))?;
    let octets = object.encode();
    replace(&wanted.out, &octets)?;
    if wanted.json {
        let mut value = described(&object);
        value["file"] = json!(wanted.out);
        value["octets"] = json!(octets.len());
        value["without_lists"] = json!(without);
        value["other_files"] = json!(others);
        print_json(value);
        return Ok(());
    }
    print(&summary(&object));
    if !without.is_empty() {
        let names: Vec<String> = without.iter().take(MOST_NAMED).map(ToString::to_string).collect();
        let more = without.len() - names.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        print(&format!("without a list of origins or of prefixes: {}{more}\n", names.join(", ")));
    }
    print(&format!(
        "now: wayleave members data sign {} --members {} --key KEY --first\n",
        wanted.out.display(),
        wanted.members.display()
    ));
    Ok(())
}

fn sign(wanted: &Sign) -> Outcome {
    let (directory, rules) = members(&wanted.members)?;
    let mut object = object(&wanted.file)?;
    let key = signing_key(&Identity::load(&wanted.key)?);
    let public = key.verifying_key().to_bytes();
    let now = unix_now().secs();
    let data = &object.data;
    if let Some(file) = &wanted.after {
        let before = self::object(file)?.data.number;
        check_number(&wanted.file, data.number, before, &format!("{before} is in force"))?;
        if data.number <= before {
            return Err(Failure::new(format!(
                "{} has number {}, and {before} is in force: it must rise",
                wanted.file.display(),
                data.number
            ))
            .help("`wayleave members data build --after` takes the next number")
            .into());
        }
    }
    if data.made > now + CLOCK_SECS || data.until <= now || data.until > now + wanted.most_valid * 3_600 {
        return Err(Failure::new(format!(
            "{} was made {} and is current until {}, expected an end within {} hours from now",
            wanted.file.display(),
            utc(data.made),
            utc(data.until),
            wanted.most_valid
        ))
        .help("compare the clocks of both operators' machines; --most-valid sets another time")
        .into());
    }
    let others: Vec<u8> = [1, 2].into_iter().filter(|party| rules.keys[usize::from(*party == 2)] != public).collect();
    let is_second = others.iter().any(|party| object.is_signed(&rules, *party));
    let differences = match &wanted.compare {
        Some(file) => {
            let own = self::object(file)?.data;
            check_number(&wanted.file, data.number, own.number, &format!("your own build has {}", own.number))?;
            let profile = directory.set().profile.as_ref();
            let shortest = profile.map_or(SHORTEST, |profile| [profile.ipv4.shortest, profile.ipv6.shortest]);
            Differences::of(&own, data, wanted.most_percent, shortest)
        }
        None if is_second => {
            return Err(Failure::usage(format!(
                "the other operator signed {}: expected --compare with data that you built yourself",
                wanted.file.display()
            ))
            .help("`wayleave members data build` builds them from your own registry lists, at about the same time")
            .into());
        }
        None => Differences::default(),
    };
    differences.refuse(&wanted.file, wanted.most_members)?;
    let party = object.sign(&directory.origin(), &rules, &key).map_err(|error| {
        Failure::new(format!("{}: {error}", wanted.file.display()))
            .help("`wayleave members show` prints the machine keys of the profile (`data_keys`)")
    })?;
    replace(&wanted.file, &object.encode())?;
    let is_whole = object.check(&directory.origin(), &rules).is_ok();
    if wanted.json {
        print_json(json!({
            "file": wanted.file, "party": party, "number": object.data.number, "signed_by_both": is_whole,
            "differing_members": differences.differing.len(),
        }));
    } else if is_whole {
        let differing = differences.differing.len();
        print(&format!(
            "data {} count: both operators' machines signed them; {differing} members' lists differ from yours, within your bounds. \
             Members' proxies read the file that `[data] file` names\n",
            object.data.number
        ));
    } else {
        print(&format!(
            "signed for party {party}; the other operator's machine now runs: wayleave members data sign {} --members {} --key KEY --compare OWN\n",
            wanted.file.display(),
            wanted.members.display()
        ));
    }
    Ok(())
}

/// A number that is far ahead uses up all those below it, and the highest one all that there are: no data could follow.
fn check_number(file: &Path, number: u64, before: u64, why: &str) -> Outcome {
    let most = before.saturating_add(MAX_SKIPPED);
    if number <= most {
        return Ok(());
    }
    let failure = Failure::new(format!("{} has number {number}, and {why}: expected at most {most}", file.display()));
    Err(failure.help("both operators build with `--after` and the data that are in force").into())
}

/// In what data differ from one's own.
#[derive(Default)]
struct Differences {
    /// Members whose lists differ.
    differing: BTreeSet<Asn>,
    /// Those of them that differ by more than may be, and what else must not differ.
    refused: Vec<String>,
}

impl Differences {
    /// `shortest`: bits of the shortest prefixes of IPv4 and of IPv6 that may be in the other one alone.
    fn of(own: &Data, other: &Data, most_percent: u64, shortest: [u8; 2]) -> Self {
        let mut differences = Self::default();
        if own.bogons != other.bogons {
            differences.refused.push("the list of prefixes that nobody may announce".to_owned());
        }
        let nothing = MemberLists::default();
        let asns: BTreeSet<Asn> = own.members.keys().chain(other.members.keys()).copied().collect();
        for asn in asns {
            let [a, b] = [own, other].map(|data| data.of(asn).unwrap_or(&nothing));
            if a == b {
                continue;
            }
            differences.differing.insert(asn);
            let is_list_lost =
                a.origins.is_some() != b.origins.is_some() || a.prefixes.is_some() != b.prefixes.is_some();
            if is_list_lost {
                differences.refused.push(format!("{asn}: one of the two has no list"));
            } else {
                let refused = refused_changes(a, b, most_percent, shortest);
                differences.refused.extend(refused.into_iter().map(|what| format!("{asn}: {what}")));
            }
            if a.max_prefixes != b.max_prefixes {
                let ([a4, a6], [b4, b6]) = (a.max_prefixes, b.max_prefixes);
                differences.refused.push(format!("{asn}: limits {b4} and {b6}, yours are {a4} and {a6}"));
            }
        }
        differences
    }

    /// They are not signed if they differ by more than is allowed.
    fn refuse(&self, file: &Path, most_members: usize) -> Outcome {
        let (count, mut refused) = (self.differing.len(), self.refused.clone());
        if count > most_members {
            refused.insert(0, format!("the lists of {count} members, at most {most_members}"));
        }
        if refused.is_empty() {
            return Ok(());
        }
        let more = refused.len().saturating_sub(MOST_NAMED);
        refused.truncate(MOST_NAMED);
        if more > 0 {
            refused.push(format!("{more} more"));
        }
        let failure =
            Failure::new(format!("not signed: {} differs from yours in {}", file.display(), refused.join("; ")));
        Err(failure
            .help("build yours anew, at about the same time and from the same sources; if they differ still, ask the other operator why before you sign (--most-percent, --most-members; where a person vouches for all of it, --compare with the file itself)")
            .into())
    }
}

/// What of a member's lists differs from one's own by more than may be. What is added counts apart from what is lost: otherwise a short
/// list could be replaced.
fn refused_changes(own: &MemberLists, other: &MemberLists, most_percent: u64, shortest: [u8; 2]) -> Vec<String> {
    let mut refused = Vec::new();
    let mut count = |what: &str, [added, lost]: [usize; 2], all: usize| {
        let may = may_change(all as u64, most_percent);
        if added as u64 > may {
            refused.push(format!("{added} {what} added to your {all}, at most {may}"));
        }
        if lost as u64 > may {
            refused.push(format!("{lost} of your {all} {what} missing, at most {may}"));
        }
    };
    let origins = |lists: &MemberLists| lists.origins.as_deref().map_or(Vec::new(), <[Asn]>::to_vec);
    let (a, b) = (origins(own), origins(other));
    let (added, lost) = unequal(&a, &b);
    count("origins", [added.len(), lost.len()], a.len());
    let none = PrefixList::default();
    let list = own.prefixes.as_ref().unwrap_or(&none);
    let a: Vec<PrefixRange> = list.ranges().collect();
    let b: Vec<PrefixRange> = other.prefixes.iter().flat_map(PrefixList::ranges).collect();
    let (added, lost) = unequal(&a, &b);
    count("prefixes", [added.len(), lost.len()], a.len());
    // An entry is not more than another because it is one: what it covers counts.
    let is_short = |range: &&PrefixRange| range.prefix.len() < shortest[family(range.prefix.afi())];
    if let Some(range) = added.iter().copied().find(is_short) {
        refused.push(format!(
            "{}, which is shorter than this exchange takes, and which yours does not have",
            range.prefix
        ));
    }
    let (mut has, mut adds) = ([0_u64; 2], [0_u64; 2]);
    let add = |space: &mut [u64; 2], prefix: &Prefix| {
        let at = family(prefix.afi());
        space[at] = space[at].saturating_add(1 << UNIT_BITS[at].saturating_sub(prefix.len()));
    };
    a.iter()
        .filter(|range| list.covering(&range.prefix) == Some(range.prefix))
        .for_each(|range| add(&mut has, &range.prefix));
    let news = added.iter().filter(|range| list.covering(&range.prefix).is_none());
    news.for_each(|range| add(&mut adds, &range.prefix));
    for ((has, adds), bits) in has.into_iter().zip(adds).zip(UNIT_BITS) {
        let may = may_cover(has, most_percent);
        if adds > may {
            refused.push(format!("what is added covers {adds} prefixes of {bits} bits, yours {has}: at most {may}"));
        }
    }
    refused
}

/// How many entries may be added to a list of so many, and how many may be lost.
fn may_change(all: u64, most_percent: u64) -> u64 {
    let most = if all < FEW { FEW_OF_SHORT } else { FEW.max(all.saturating_mul(most_percent) / 100) };
    most.min(all / 2)
}

/// How much address space may be added to so much, in prefixes of [`UNIT_BITS`].
fn may_cover(all: u64, most_percent: u64) -> u64 {
    FEW.max((all / 100).saturating_mul(most_percent)).min(all / 2)
}

/// The elements of two ascending lists that are in the second alone, and those that are in the first alone.
fn unequal<'a, T: Ord>(a: &'a [T], b: &'a [T]) -> (Vec<&'a T>, Vec<&'a T>) {
    let (mut i, mut j, mut added, mut lost) = (0, 0, Vec::new(), Vec::new());
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        match x.cmp(y) {
            Ordering::Equal => (i, j) = (i + 1, j + 1),
            Ordering::Less => {
                lost.push(x);
                i += 1;
            }
            Ordering::Greater => {
                added.push(y);
                j += 1;
            }
        }
    }
    added.extend(&b[j..]);
    lost.extend(&a[i..]);
    (added, lost)
}

/// Data in a few values.
fn described(object: &DataObject) -> Value {
    let data = &object.data;
    let prefixes: usize = data.members.values().filter_map(|lists| lists.prefixes.as_ref()).map(PrefixList::len).sum();
    json!({
        "number": data.number, "made": utc(data.made), "until": utc(data.until), "members": data.members.len(),
        "prefixes": prefixes, "bogons": data.bogons.len(), "signed": object.signatures.map(|signature| signature.is_some()),
    })
}

fn summary(object: &DataObject) -> String {
    let value = described(object);
    let data = &object.data;
    format!(
        "data {} made {}, current until {}: {} members, {} prefixes, {} bogons\n",
        data.number,
        utc(data.made),
        utc(data.until),
        data.members.len(),
        value["prefixes"],
        data.bogons.len()
    )
}

fn show(file: &Path, asn: Option<Asn>, json: bool) -> Outcome {
    let object = object(file)?;
    let row = |(asn, lists): (&Asn, &MemberLists)| {
        json!({
            "asn": asn, "origins": lists.origins.as_ref().map(|list| list.len()),
            "prefixes": lists.prefixes.as_ref().map(PrefixList::len),
            "max_prefix_ipv4": lists.max_prefixes[0], "max_prefix_ipv6": lists.max_prefixes[1],
        })
    };
    let mut value = described(&object);
    match asn {
        None => value["of_members"] = object.data.members.iter().map(row).collect(),
        Some(asn) => {
            let Some(lists) = object.data.of(asn) else {
                return Err(Failure::new(format!("{} has nothing of {asn}", file.display())).into());
            };
            let prefixes = lists.prefixes.iter().flat_map(PrefixList::ranges).map(|range| {
                let PrefixRange { prefix, least, most } = range;
                json!({ "prefix": prefix, "least": least, "most": most })
            });
            value["of_members"] = json!([row((&asn, lists))]);
            value["origins"] = json!(lists.origins);
            value["ranges"] = prefixes.collect();
        }
    }
    if json {
        print_json(value);
        return Ok(());
    }
    let signed = object.signatures.map(|signature| signature.is_some());
    let by: Vec<&str> =
        ["party 1's", "party 2's"].into_iter().zip(signed).filter(|(_, is)| *is).map(|(of, _)| of).collect();
    let by =
        if by.is_empty() { "nobody's machine".to_owned() } else { format!("{} operator's machine", by.join(" and ")) };
    print(&format!("{}signed by {by}\n", summary(&object)));
    let rows = value["of_members"].as_array().map_or(&[][..], Vec::as_slice);
    print(&objects(rows, &["asn", "origins", "prefixes", "max_prefix_ipv4", "max_prefix_ipv6"]));
    if asn.is_some() {
        let origins = value["origins"].as_array().into_iter().flatten().map(|asn| asn.to_string());
        print(&format!("origins {}\n", origins.collect::<Vec<_>>().join(" ")));
        print(&objects(value["ranges"].as_array().map_or(&[][..], Vec::as_slice), &["prefix", "least", "most"]));
    }
    Ok(())
}

fn check(file: &Path, members: &Path, json: bool) -> Outcome {
    let ((directory, rules), object) = (self::members(members)?, object(file)?);
    object.check(&directory.origin(), &rules).map_err(|error| {
        Failure::new(format!("{} does not count: {error}", file.display()))
            .help("each operator's machine signs it: `wayleave members data sign`")
    })?;
    let until = object.data.until;
    if until <= unix_now().secs() {
        return Err(Failure::new(format!(
            "{} was current until {}: proxies go on with it, and say so",
            file.display(),
            utc(until)
        ))
        .help("build and sign new data: `wayleave members data build --after`")
        .into());
    }
    if json {
        print_json(described(&object))
    } else {
        print(&summary(&object))
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_of_the_as_that_its_name_begins_with() {
        for (name, asn) in [("AS64497.json", 64_497), ("x/as1-ipv4.json", 1), ("AS4200000000", 4_200_000_000)] {
            assert_eq!(asn_of(Path::new(name)), Some(Asn(asn)), "{name}");
        }
        for name in ["AS-FOO-as_set.json", "64497.json", "AS99999999999.json"] {
            assert_eq!(asn_of(Path::new(name)), None, "{name}");
        }
    }

    fn data(prefixes: u8, of: &[u32]) -> Data {
        let range = |third: u8| PrefixRange {
            prefix: format!("10.0.{third}.0/24").parse().expect("a prefix"),
            least: 24,
            most: 24,
        };
        let list = PrefixList::of((0..prefixes).map(range)).expect("ranges");
        let lists = MemberLists { prefixes: Some(list), ..MemberLists::default() };
        Data { members: of.iter().map(|asn| (Asn(*asn), lists.clone())).collect(), ..Data::default() }
    }

    fn refused(own: &Data, other: &Data) -> Vec<String> {
        Differences::of(own, other, 5, SHORTEST).refused
    }

    #[test]
    fn lists_may_differ_by_a_few_entries_or_a_share_and_no_list_may_be_lost() {
        assert!(refused(&data(20, &[1]), &data(30, &[1])).is_empty(), "ten entries");
        assert_eq!(
            refused(&data(20, &[1]), &data(31, &[1])),
            [
                "AS1: 11 prefixes added to your 20, at most 10",
                "AS1: what is added covers 11 prefixes of 24 bits, yours 20: at most 10"
            ]
        );
        assert_eq!(refused(&data(31, &[1]), &data(20, &[1])), ["AS1: 11 of your 31 prefixes missing, at most 10"]);
        assert!(refused(&data(255, &[1]), &data(243, &[1])).is_empty(), "a twentieth");
        assert_eq!(refused(&data(5, &[1, 2]), &data(5, &[1])), ["AS2: one of the two has no list"]);
        let mut limited = data(5, &[1]);
        limited.members.entry(Asn(1)).or_default().max_prefixes = [9, 0];
        assert_eq!(refused(&data(5, &[1]), &limited), ["AS1: limits 9 and 0, yours are 0 and 0"]);
        let three = Differences::of(&data(5, &[1, 2, 3]), &data(6, &[1, 2, 3]), 5, SHORTEST);
        assert!(three.refuse(Path::new("x"), 3).is_ok() && three.refuse(Path::new("x"), 2).is_err());
        assert_eq!(unequal(&[1, 3, 5], &[2, 3, 6, 7]), (vec![&2, &6, &7], vec![&1, &5]));
    }

    /// [`data`] of AS1, with these prefixes besides.
    fn with(prefixes: u8, more: &[(&str, u8)]) -> Data {
        let mut data = data(prefixes, &[1]);
        let lists = data.members.entry(Asn(1)).or_default();
        let range = |(prefix, most): &(&str, u8)| {
            let prefix: Prefix = prefix.parse().expect("a prefix");
            PrefixRange { prefix, least: prefix.len(), most: *most }
        };
        let all: Vec<_> = lists.prefixes.iter().flat_map(PrefixList::ranges).chain(more.iter().map(range)).collect();
        lists.prefixes = Some(PrefixList::of(all).expect("ranges"));
        data
    }

    #[test]
    fn one_entry_that_covers_much_is_not_few_and_a_short_list_is_not_replaced() {
        let own = data(100, &[1]);
        for (more, what) in [
            ("0.0.0.0/0", "AS1: 0.0.0.0/0, which is shorter than this exchange takes"),
            ("8.0.0.0/7", "AS1: 8.0.0.0/7, which is shorter than"),
            ("::/0", "AS1: ::/0, which is shorter than"),
            ("11.0.0.0/8", "AS1: what is added covers 65536 prefixes of 24 bits, yours 100: at most 10"),
            ("10.0.0.0/16", "AS1: what is added covers 256 prefixes of 24 bits, yours 100"),
            ("2001:db8::/32", "AS1: what is added covers 65536 prefixes of 48 bits, yours 0: at most 0"),
        ] {
            let bits = if more.contains(':') { 128 } else { 32 };
            let said = refused(&own, &with(100, &[(more, bits)]));
            assert!(said.iter().any(|said| said.starts_with(what)), "{more}: {said:?}");
            // What both have is nobody's trick.
            assert!(refused(&with(100, &[(more, bits)]), &with(100, &[(more, bits)])).is_empty(), "{more}");
        }
        assert!(refused(&own, &with(100, &[("11.0.0.0/21", 24)])).is_empty(), "eight of 100");
        assert!(refused(&with(4, &[]), &with(5, &[])).is_empty());
        assert!(!refused(&with(4, &[]), &with(7, &[])).is_empty(), "three of four");
        let replaced = [("11.0.0.0/24", 24), ("11.0.1.0/24", 24)];
        assert_eq!(
            refused(&with(2, &[]), &with(0, &replaced))[..2],
            ["AS1: 2 prefixes added to your 2, at most 1", "AS1: 2 of your 2 prefixes missing, at most 1"]
        );
        for (all, may) in [(0, 0), (1, 0), (2, 1), (4, 2), (9, 2), (10, 5), (20, 10), (300, 15)] {
            assert_eq!(may_change(all, 5), may, "{all}");
        }
        let origins = |asns: &[u32]| MemberLists {
            origins: Some(asns.iter().copied().map(Asn).collect()),
            ..MemberLists::default()
        };
        let of = |asns: &[u32]| Data { members: [(Asn(1), origins(asns))].into(), ..Data::default() };
        assert_eq!(refused(&of(&[1]), &of(&[1, 2])), ["AS1: 1 origins added to your 1, at most 0"]);
    }

    #[test]
    fn a_number_far_ahead_is_not_signed() {
        let check = |number, before| check_number(Path::new("x"), number, before, "y").is_ok();
        assert!(check(1_007, 7) && check(1, 7) && check(u64::MAX, u64::MAX));
        assert!(!check(1_008, 7) && !check(u64::MAX, 7));
    }

    #[test]
    fn a_file_without_entries_is_an_empty_list_and_no_file_is_none() {
        let found = |files: &[(&str, bool)]| {
            let mut found = FoundLists::default();
            for (name, has_origin) in files {
                let origins = if *has_origin { vec![Asn(1)] } else { Vec::new() };
                found.add(Path::new(name), RegistryLists { origins, ..RegistryLists::default() });
            }
            (found.has_origins, found.has_prefixes)
        };
        assert_eq!(found(&[]), (false, false));
        assert_eq!(found(&[("AS1.asns.json", true)]), (true, false));
        assert_eq!(found(&[("AS1.ipv6.json", false)]), (false, true));
        assert_eq!(found(&[("irr/AS1.asns.json", false)]), (true, true));
    }
}
