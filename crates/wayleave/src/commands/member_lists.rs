//! Lists of members as operators have them: files of other programs, and `members.csv`, with which requests are compared.

use std::fs::File;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use wayleave_core::Asn;
use wayleave_import::{ExpectedMember, Faults, Import, ImportError, MAX_OCTETS, Selection, parse, parse_list};
use wayleave_route_server::directory::{Change, Claim, MemberSet, Slot, Step};

use crate::failure::{Failure, Failures, Outcome};

/// Which members of a list are taken.
#[derive(Args, Clone, Debug)]
pub struct SelectionArgs {
    /// Of a list of members: those of this AS alone (may be repeated).
    #[arg(long, value_name = "AS")]
    pub asn: Vec<Asn>,
    /// Of an IX-F export: also connections of which it does not say that they use the route server.
    #[arg(long)]
    pub all: bool,
    /// Of an IX-F export: the exchange with this `ixp_id` alone.
    #[arg(long, value_name = "ID")]
    pub ixp: Option<String>,
    /// Of an IX-F export: the LAN with this `vlan_id` alone (may be repeated: a LAN for IPv4, and one for IPv6).
    #[arg(long, value_name = "ID")]
    pub vlan: Vec<String>,
}

impl SelectionArgs {
    pub fn is_empty(&self) -> bool {
        self.asn.is_empty() && !self.all && self.ixp.is_none() && self.vlan.is_empty()
    }

    /// Reads a list, and keeps what was chosen of it. Names are those of the whole list.
    pub fn read(&self, file: &Path) -> Outcome<Import> {
        let selection = Selection { all: self.all, ixp: self.ixp.clone(), vlans: self.vlan.clone() };
        let mut import = read(file, &selection)?;
        if let Some(absent) = self.asn.iter().find(|asn| import.members.iter().all(|member| member.asn != **asn)) {
            return Err(Failure::usage(format!("{} has no member of {absent}", file.display()))
                .help("`wayleave members import FILE --dry-run` prints those that it has")
                .into());
        }
        if !self.asn.is_empty() {
            import.members.retain(|member| self.asn.contains(&member.asn));
        }
        Ok(import)
    }
}

/// Reads a list that another program made.
fn read(file: &Path, selection: &Selection) -> Outcome<Import> {
    parse(&octets(file)?, selection).map_err(|error| failures(&error, file))
}

fn octets(file: &Path) -> Outcome<Vec<u8>> {
    let failed = |error: std::io::Error| Failure::system(file.display(), &error);
    let mut octets = Vec::new();
    let opened = File::open(file).map_err(failed)?;
    opened.take(MAX_OCTETS + 1).read_to_end(&mut octets).map_err(failed)?;
    if octets.len() as u64 > MAX_OCTETS {
        return Err(Failure::new(format!("{}: longer than {} MiB", file.display(), MAX_OCTETS >> 20)).into());
    }
    Ok(octets)
}

fn read_expected(file: &Path) -> Outcome<Vec<ExpectedMember>> {
    let octets = octets(file)?;
    let text = str::from_utf8(&octets).map_err(|_| {
        Failure::new(format!("{}: no UTF-8 text", file.display())).help("save it as UTF-8, with commas between columns")
    })?;
    parse_list(text).map_err(|faults| of_faults(&faults, file))
}

/// What is printed of a list that gives no members.
fn failures(error: &ImportError, at: &Path) -> Failures {
    let file = at.display();
    match error {
        ImportError::Faults(faults) => of_faults(faults, at),
        ImportError::SeveralLans(lans) => {
            let all: Vec<String> = lans
                .iter()
                .map(|((ixp, vlan), count)| format!("VLAN {vlan} of exchange {ixp} (addresses: {count})"))
                .collect();
            Failure::usage(format!("{file} has connections on several LANs, expected one: {}", all.join(", ")))
                .help("choose by --vlan ID, or --ixp ID and --vlan ID; where a LAN is for IPv4 and another one for IPv6, by --vlan for each")
                .into()
        }
        ImportError::Nothing(left_out) => {
            let why: Vec<String> = left_out.iter().map(|(why, count)| format!("{count} {why}")).collect();
            let why = if why.is_empty() { String::new() } else { format!("; addresses left out: {}", why.join(", ")) };
            Failure::new(format!("{file} has no connection to take{why}"))
                .help(
                    "--all also takes connections of which an IX-F export does not say that they use the route server",
                )
                .into()
        }
    }
}

fn of_faults(faults: &Faults, file: &Path) -> Failures {
    let file = file.display();
    let mut all: Vec<Failure> = faults.shown().iter().map(|fault| Failure::new(format!("{file}{fault}"))).collect();
    let more = faults.count() - faults.shown().len();
    if more > 0 {
        all.push(Failure::new(format!("{file}: {more} more faults")));
    }
    if let Some(last) = all.pop() {
        all.push(last.help("nothing was written: mend the file, or what makes it, and repeat"));
    }
    Failures(all)
}

/// The members that operators expect, and the names of those that may differ.
pub struct Expected<'a> {
    file: &'a Path,
    members: Vec<ExpectedMember>,
    unexpected: &'a [String],
}

impl<'a> Expected<'a> {
    /// Reads a list, if there is one.
    pub fn read(file: Option<&'a PathBuf>, unexpected: &'a [String]) -> Outcome<Option<Self>> {
        let Some(file) = file else { return Ok(None) };
        Ok(Some(Self { file, members: read_expected(file)?, unexpected }))
    }

    /// The limit of a member that is in the list.
    pub fn limit(&self, name: &str) -> Option<u32> {
        self.members.iter().find(|member| member.name == name)?.max_prefix
    }

    /// Everybody whom a step behind `set` makes join, renews, amends or endorses is in the list with the same AS, name and addresses, and
    /// has its limit.
    pub fn check(&self, set: &MemberSet, step: &Step) -> Outcome {
        self.refuse(set, step, true)
    }

    /// The same of requests, but for limits: who proposes may have settled others, and other addresses.
    pub fn check_requests(&self, set: &MemberSet, step: &Step) -> Outcome {
        self.refuse(set, step, false)
    }

    fn refuse(&self, set: &MemberSet, step: &Step, is_others: bool) -> Outcome {
        // What a slot is after the changes so far: operators amend one by its number alone.
        let known = |slot: &Slot| Member { name: slot.name.clone(), asn: slot.asn, addresses: slot.addresses.clone() };
        let mut slots: Vec<Member> = set.slots.iter().map(known).collect();
        let mut differs = Vec::new();
        for change in &step.changes {
            match change {
                Change::Join { claim, max_prefix, .. } => {
                    let member = Member::of(claim);
                    differs.extend(self.request(&member, is_others.then_some(*max_prefix)));
                    slots.push(member);
                }
                Change::Renew { slot, claim, .. } => {
                    let member = Member::of(claim);
                    differs.extend(self.request(&member, None));
                    slots.get_mut(*slot as usize).into_iter().for_each(|of| *of = member.clone());
                }
                Change::Amend { slot, addresses, max_prefix } => {
                    let Some(member) = slots.get_mut(*slot as usize) else { continue };
                    member.addresses.clone_from(addresses);
                    if is_others {
                        differs.extend(self.amended(member, Some(*max_prefix)));
                    }
                }
                Change::Endorse { slot, .. } => {
                    differs.extend(slots.get(*slot as usize).and_then(|member| self.amended(member, None)));
                }
                Change::Left { .. } | Change::Operator { .. } | Change::Profile(_) | Change::Data(_) => {}
            }
        }
        if differs.is_empty() { Ok(()) } else { Err(Failures(differs)) }
    }

    fn request(&self, member: &Member, limit: Option<u32>) -> Option<Failure> {
        let name = &member.name;
        let help = format!(
            "ask the member which is right: then it signs another request, or the list is mended; --unexpected {name} takes the request as it is"
        );
        self.difference(&format!("the request of `{name}`"), member, limit).map(|failure| failure.help(help))
    }

    fn amended(&self, member: &Member, limit: Option<u32>) -> Option<Failure> {
        let name = &member.name;
        let help = format!(
            "ask the operator who proposed it which is right: then another proposal is made, or the list is mended; --unexpected {name} \
             takes the change as it is"
        );
        self.difference(&format!("the change of `{name}`"), member, limit).map(|failure| failure.help(help))
    }

    fn difference(&self, what: &str, member: &Member, limit: Option<u32>) -> Option<Failure> {
        if self.unexpected.contains(&member.name) {
            return None;
        }
        let differs = differences(&self.members, member, limit);
        let is_same = differs.is_empty();
        (!is_same)
            .then(|| Failure::new(format!("{what} is not what {} has: {}", self.file.display(), differs.join("; "))))
    }
}

/// A member as a change makes it.
#[derive(Clone, Debug)]
struct Member {
    name: String,
    asn: Asn,
    addresses: Vec<IpAddr>,
}

impl Member {
    fn of(claim: &Claim) -> Self {
        Self { name: claim.name.clone(), asn: claim.asn, addresses: claim.addresses.clone() }
    }
}

/// How a member differs from what is expected of it.
fn differences(expected: &[ExpectedMember], claim: &Member, limit: Option<u32>) -> Vec<String> {
    let list = |addresses: &[IpAddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let Some(member) = expected.iter().find(|member| member.name == claim.name) else {
        let shares =
            |member: &&ExpectedMember| member.addresses.iter().any(|address| claim.addresses.contains(address));
        let of_as = |member: &&ExpectedMember| member.asn == claim.asn;
        let other = expected.iter().find(shares).or_else(|| expected.iter().find(of_as));
        return vec![match other {
            Some(other) => {
                format!("no `{}`, but `{}`, {} at {}", claim.name, other.name, other.asn, list(&other.addresses))
            }
            None => format!("no `{}`, and nobody else of {} or with an address of it", claim.name, claim.asn),
        }];
    };
    let mut differs = Vec::new();
    if member.asn != claim.asn {
        differs.push(format!("{}, expected {}", claim.asn, member.asn));
    }
    let beyond = |of: &[IpAddr], other: &[IpAddr]| -> Vec<IpAddr> {
        of.iter().filter(|address| !other.contains(address)).copied().collect()
    };
    let (more, missing) = (beyond(&claim.addresses, &member.addresses), beyond(&member.addresses, &claim.addresses));
    if !more.is_empty() {
        differs.push(format!("addresses that are not in the list: {}", list(&more)));
    }
    if !missing.is_empty() {
        differs.push(format!("addresses of the list that are missing: {}", list(&missing)));
    }
    if let Some((limit, expected)) = limit.zip(member.max_prefix).filter(|(limit, expected)| limit != expected) {
        differs.push(format!("a limit of {limit} prefixes, expected {expected}"));
    }
    differs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str, asn: u32, addresses: &[&str]) -> Member {
        let addresses = addresses.iter().map(|text| text.parse().expect("an address")).collect();
        Member { name: name.to_owned(), asn: Asn(asn), addresses }
    }

    #[test]
    fn what_operators_amend_is_compared_by_the_slot_that_it_names() {
        let addresses =
            |texts: &[&str]| -> Vec<IpAddr> { texts.iter().map(|text| text.parse().expect("an address")).collect() };
        let slot = Slot {
            active: true,
            asn: Asn(64_497),
            name: "alpha".to_owned(),
            addresses: addresses(&["192.0.2.1"]),
            tls: [1; 32],
            sign: [2; 32],
            max_prefix: 100,
            held: true,
        };
        let set = MemberSet {
            exchange: "example-ix".to_owned(),
            number: 1,
            slots: vec![slot],
            attest: std::collections::BTreeMap::new(),
            profile: None,
            data: None,
        };
        let file = Path::new("members.csv");
        let expected = |unexpected| Expected {
            file,
            members: vec![ExpectedMember {
                name: "alpha".to_owned(),
                asn: Asn(64_497),
                addresses: addresses(&["192.0.2.1"]),
                max_prefix: Some(100),
            }],
            unexpected,
        };
        let alpha = ["alpha".to_owned()];
        let step = |list: &[&str], max_prefix| Step {
            number: 2,
            previous: [0; 32],
            changes: vec![Change::Amend { slot: 0, addresses: addresses(list), max_prefix }],
        };
        expected(&[]).check(&set, &step(&["192.0.2.1"], 100)).expect("as the list has it");
        for (list, max_prefix, differs) in [
            (&["192.0.2.1"][..], 0, "a limit of 0 prefixes, expected 100"),
            (&["192.0.2.1", "192.0.2.9"], 100, "addresses that are not in the list: 192.0.2.9"),
        ] {
            let failures = expected(&[]).check(&set, &step(list, max_prefix)).expect_err(differs);
            let text = failures.to_string();
            assert!(
                text.contains("the change of `alpha` is not what members.csv has") && text.contains(differs),
                "{text}"
            );
            expected(&alpha).check(&set, &step(list, max_prefix)).expect("taken as it is");
            expected(&[]).check_requests(&set, &step(list, max_prefix)).expect("it is the proposer's own");
        }
        let endorse = Change::Endorse { slot: 0, by: 0, signature: [0; 64] };
        let endorsed = Step { number: 2, previous: [0; 32], changes: vec![endorse] };
        expected(&[]).check(&set, &endorsed).expect("as the list has it");
        let mut other = set.clone();
        other.slots[0].asn = Asn(64_498);
        assert!(expected(&[]).check(&other, &endorsed).is_err());
    }

    #[test]
    fn a_claim_that_differs_from_the_list_is_told_how() {
        let expected = [ExpectedMember {
            name: "alpha".to_owned(),
            asn: Asn(64_497),
            addresses: ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().expect("an address")).to_vec(),
            max_prefix: Some(100),
        }];
        let same = claim("alpha", 64_497, &["2001:db8::1", "192.0.2.1"]);
        assert_eq!(differences(&expected, &same, Some(100)), Vec::<String>::new());
        assert_eq!(differences(&expected, &same, None), Vec::<String>::new());
        for (claim, limit, differs) in [
            (same, Some(200), &["a limit of 200 prefixes, expected 100"][..]),
            (
                claim("alpha", 64_498, &["192.0.2.1", "192.0.2.9"]),
                Some(100),
                &[
                    "AS64498, expected AS64497",
                    "addresses that are not in the list: 192.0.2.9",
                    "addresses of the list that are missing: 2001:db8::1",
                ],
            ),
            (
                claim("bravo", 64_500, &["192.0.2.1"]),
                None,
                &["no `bravo`, but `alpha`, AS64497 at 192.0.2.1, 2001:db8::1"],
            ),
            (
                claim("bravo", 64_497, &["192.0.2.7"]),
                None,
                &["no `bravo`, but `alpha`, AS64497 at 192.0.2.1, 2001:db8::1"],
            ),
            (
                claim("bravo", 64_500, &["192.0.2.7"]),
                None,
                &["no `bravo`, and nobody else of AS64500 or with an address of it"],
            ),
        ] {
            assert_eq!(differences(&expected, &claim, limit), differs, "{claim:?}");
        }
    }

    #[test]
    fn twenty_faults_are_shown_and_the_rest_is_counted() {
        let file = Path::new("clients.yml");
        let text: String = (0..30).map(|_| "- {asn: 0, ip: 192.0.2.1}\n").collect();
        let error = parse(format!("clients:\n{text}").as_bytes(), &Selection::default()).expect_err("it is wrong");
        let failures = failures(&error, file);
        assert_eq!((failures.0.len(), failures.exit_code()), (21, 1));
        assert_eq!(failures.0[20].to_string(), "clients.yml: 10 more faults");
        assert!(failures.0[20].remedy().is_some_and(|help| help.contains("nothing was written")));
    }

    #[test]
    fn several_lans_are_a_choice_that_is_to_be_made() {
        let lans = vec![(("1".to_owned(), "2".to_owned()), 30), (("1".to_owned(), "3".to_owned()), 1)];
        let failures = failures(&ImportError::SeveralLans(lans), Path::new("export.json"));
        assert_eq!(failures.exit_code(), 2);
        assert!(failures.to_string().contains("VLAN 2 of exchange 1 (addresses: 30), VLAN 3"), "{failures}");
    }

    #[test]
    fn a_file_is_bounded_before_it_is_read() {
        let file = std::env::temp_dir().join(format!("wayleave-import-{}", std::process::id()));
        File::create(&file).and_then(|file| file.set_len(MAX_OCTETS + 1)).expect("a sparse file");
        let failures = read(&file, &Selection::default()).expect_err("it is too long");
        std::fs::remove_file(&file).expect("removed");
        assert!(failures.to_string().contains("longer than 16 MiB"), "{failures}");
    }
}
