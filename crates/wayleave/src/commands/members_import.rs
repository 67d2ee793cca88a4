//! `members import`: from the list of members that an exchange has today, what its operators and members begin with. Keys are each
//! member's own: an import makes no member set.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};
use wayleave_core::Asn;
use wayleave_import::{Import, ImportedMember, NotTaken, one_line, write_list};

use super::member_lists::SelectionArgs;
use super::realm::write_new;
use crate::config::Source;
use crate::failure::{Failure, Outcome};
use crate::output::{objects, print, print_json};

/// What an import writes.
const LIST: &str = "members.csv";
const RECEIVE: &str = "receive.toml";
pub const MEMBER: &str = "member.toml";
const POLICY: &str = "policy.toml";
/// Names that are listed where several are meant.
const MOST_NAMED: usize = 4;

#[derive(Args, Debug)]
pub struct MembersImport {
    /// The list: arouteserver's `clients.yml`, or a member export of IX-F (JSON, versions 0.6 to 1.0), as IXP Manager has it.
    pub file: PathBuf,
    /// The folder to make: a folder of each member, and `members.csv`.
    #[arg(long, required_unless_present = "dry_run", value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// The name of the exchange, for the members' requests.
    #[arg(long, value_name = "NAME")]
    pub exchange: Option<String>,
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// Print what would be made, and write nothing.
    #[arg(long)]
    pub dry_run: bool,
    #[arg(long)]
    pub json: bool,
}

pub fn run(wanted: &MembersImport) -> Outcome {
    let import = wanted.selection.read(&wanted.file)?;
    let out = wanted.out.as_deref().filter(|_| !wanted.dry_run);
    if let Some(folder) = out {
        let failed = |error: std::io::Error| Failure::system(folder.display(), &error);
        fs::create_dir(folder).map_err(failed)?;
        if let Err(failures) = write(wanted, &import, folder) {
            // It was made just now, and nobody has used it.
            let _ = fs::remove_dir_all(folder);
            return Err(failures);
        }
    }
    let members: Vec<Value> = import.members.iter().map(described).collect();
    if wanted.json {
        print_json(json!({
            "file": wanted.file, "format": import.format.name(), "out": out, "addresses": import.addresses,
            "members": members, "left_out": import.left_out, "not_taken": not_taken(&import),
        }));
    } else {
        print(&in_words(wanted, &import, &members, out));
    }
    Ok(())
}

fn described(member: &ImportedMember) -> Value {
    json!({
        "name": member.name, "asn": member.asn, "addresses": member.addresses(), "max_prefix": member.max_prefix(),
        "max_prefix_ipv4": member.limits[0], "max_prefix_ipv6": member.limits[1], "as_sets": member.as_sets,
        "description": member.description, "policy": !member.refused.is_empty(),
        "places": member.places.iter().map(|place| json!({ "line": place.line, "path": place.path })).collect::<Vec<_>>(),
    })
}

/// The settings that nothing was made of, with the members that have them.
fn not_taken(import: &Import) -> Vec<Value> {
    let mut all: BTreeMap<&str, (&NotTaken, Vec<&str>)> = BTreeMap::new();
    for member in &import.members {
        for setting in &member.not_taken {
            let (_, members) = all.entry(&setting.setting).or_insert_with(|| (setting, Vec::new()));
            if members.last() != Some(&member.name.as_str()) {
                members.push(&member.name);
            }
        }
    }
    let rows = all
        .into_iter()
        .map(|(setting, (of, members))| json!({ "setting": setting, "members": members, "instead": of.instead() }));
    rows.collect()
}

fn in_words(wanted: &MembersImport, import: &Import, members: &[Value], out: Option<&Path>) -> String {
    let count = |number: usize, of: &str| format!("{number} {of}{}", if number == 1 { "" } else { "s" });
    let mut text = format!("{}: {}\n", wanted.file.display(), import.format.name());
    if out.is_none() {
        text += &objects(members, &["name", "asn", "addresses", "max_prefix"]);
    }
    let ases: BTreeSet<Asn> = import.members.iter().map(|member| member.asn).collect();
    let limited = import.members.iter().filter(|member| member.max_prefix().is_some()).count();
    let _ = writeln!(
        text,
        "{} of {}; {limited} with a prefix limit",
        count(import.members.len(), "member"),
        if ases.len() == 1 { "1 AS".to_owned() } else { format!("{} ASes", ases.len()) },
    );
    for (why, number) in &import.left_out {
        let _ = writeln!(
            text,
            "left out: {} {why}",
            if *number == 1 { "1 address".to_owned() } else { format!("{number} addresses") }
        );
    }
    for row in not_taken(import) {
        let names: Vec<&str> = row["members"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let more = names.len().saturating_sub(MOST_NAMED);
        let mut of = names.iter().take(MOST_NAMED).copied().collect::<Vec<_>>().join(", ");
        if more > 0 {
            let _ = write!(of, " and {more} more");
        }
        let (setting, instead) =
            (row["setting"].as_str().unwrap_or_default(), row["instead"].as_str().unwrap_or_default());
        let _ = writeln!(text, "not taken over: `{setting}` of {of}: {instead}");
    }
    match out {
        None => text += "nothing was written\n",
        Some(folder) => {
            let folder = folder.display();
            let _ = writeln!(
                text,
                "{folder}/NAME/{MEMBER} goes to each member, for `wayleave members request --member`; the operators propose with --expect {folder}/{LIST}"
            );
            if import.members.iter().any(|member| !member.refused.is_empty()) {
                let _ = writeln!(
                    text,
                    "{folder}/NAME/{POLICY} has rules for that member's own proxy, {folder}/{RECEIVE} for those of all others"
                );
            }
        }
    }
    text
}

fn write(wanted: &MembersImport, import: &Import, folder: &Path) -> Outcome {
    const MODE: u32 = 0o644;
    let file = one_line(&wanted.file.file_name().unwrap_or_default().to_string_lossy());
    write_new(&folder.join(LIST), &write_list(&import.members), MODE)?;
    for member in &import.members {
        let at = folder.join(&member.name);
        fs::create_dir(&at).map_err(|error| Failure::system(at.display(), &error))?;
        write_new(&at.join(MEMBER), &member_text(member, &file, wanted.exchange.as_deref()), MODE)?;
        if !member.refused.is_empty() {
            let head = format!(
                "# Rules for {}'s own configuration: its proxy does not announce what the exchange's route server refused of it. Others\n\
                 # refuse that themselves, by ../{RECEIVE}.\n",
                member.name
            );
            write_new(&at.join(POLICY), &(head + &export_rules(member)), MODE)?;
        }
    }
    let rules = import_rules(&import.members.iter().collect::<Vec<_>>());
    if !rules.is_empty() {
        let head = format!(
            "# Rules for every member's configuration, from {file}: they refuse what the exchange's route server refused of these members,\n\
             # whatever the announcer's proxy does.\n"
        );
        write_new(&folder.join(RECEIVE), &(head + &rules), MODE)?;
    }
    Ok(())
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn list(items: impl IntoIterator<Item = impl ToString>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| quoted(&item.to_string())).collect();
    format!("[{}]", items.join(", "))
}

fn member_text(member: &ImportedMember, file: &str, exchange: Option<&str>) -> String {
    let name = &member.name;
    let places: Vec<String> = member.places.iter().map(ToString::to_string).collect();
    let mut text = format!(
        "# {name}'s connection, from {file}: {}.\n\
         # The member compares this with what its router has, makes a key, and signs its request:\n\
         #   wayleave keys new {name}.key --name {name}\n\
         #   wayleave members request {name}.request --key {name}.key --member {MEMBER}{}\n",
        places.join("; "),
        if exchange.is_some() { "" } else { " --exchange NAME" },
    );
    if let Some(exchange) = exchange {
        let _ = writeln!(text, "exchange = {}", quoted(exchange));
    }
    let _ = writeln!(text, "name = {}\nasn = {}", quoted(name), member.asn.0);
    if let Some(description) = &member.description {
        let _ = writeln!(text, "description = {}", quoted(description));
    }
    text += "# The router's own addresses on the exchange's network, and further ones that its routes may have as their next hop.\n";
    let _ = writeln!(text, "addresses = {}", list(member.addresses()));
    match member.max_prefix() {
        Some(limit) => {
            let _ = writeln!(text, "# Of IPv4 and IPv6 together, as the operators expect it.\nmax_prefix = {limit}");
        }
        None => {
            text += "# The list has no limit for each family in use: the operators ask the member how many prefixes it announces.\n"
        }
    }
    if !member.as_sets.is_empty() {
        let _ = writeln!(text, "# AS sets: {}", member.as_sets.join(" "));
    }
    if !member.not_taken.is_empty() {
        text += "# Not taken over:\n";
    }
    for setting in &member.not_taken {
        let value = setting.value.as_ref().map_or(String::new(), |value| format!(" = {value}"));
        let _ = writeln!(text, "#   {}{value}: {}", setting.setting, setting.instead());
    }
    text
}

/// What a member's own proxy does not announce.
pub fn export_rules(member: &ImportedMember) -> String {
    let rules = member.refused.iter().map(|refused| {
        let (setting, prefixes) = (refused.setting, list(&refused.prefixes));
        format!("\n# {setting}\n[[rule]]\ndirection = \"export\"\nprefix = {prefixes}\nannounce = \"none\"\n")
    });
    rules.collect()
}

/// What everybody refuses of these members: one rule for those of which the same is refused. Rules name an AS: what its routers differ in
/// is in none.
pub fn import_rules(members: &[&ImportedMember]) -> String {
    let mut of: BTreeMap<(&str, &[String]), BTreeSet<Asn>> = BTreeMap::new();
    for member in members {
        let routers = || members.iter().filter(|other| other.asn == member.asn);
        for refused in member.refused.iter().filter(|of| routers().all(|router| router.refused.contains(of))) {
            of.entry((refused.setting, &refused.prefixes[..])).or_default().insert(member.asn);
        }
    }
    let rules = of.into_iter().map(|((setting, prefixes), ases)| {
        let peers: Vec<String> = ases.iter().map(|asn| asn.0.to_string()).collect();
        let (prefixes, peers) = (list(prefixes), peers.join(", "));
        format!(
            "\n# {setting}\n[[rule]]\ndirection = \"import\"\npeer = [{peers}]\nprefix = {prefixes}\nreject = true\n"
        )
    });
    rules.collect()
}

/// A member's connection, as `members import` writes it and `members request --member` reads it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberFile {
    pub exchange: Option<String>,
    pub name: String,
    pub asn: Asn,
    pub addresses: Vec<IpAddr>,
    /// For the operators.
    #[serde(rename = "max_prefix")]
    _max_prefix: Option<u32>,
    #[serde(rename = "description")]
    _description: Option<String>,
}

impl MemberFile {
    pub fn read(file: &Path) -> Outcome<Self> {
        let source = Source::read(file);
        source
            .map_err(|failure| failure.help("the exchange's operators send it; `wayleave members import` makes it"))?
            .parse()
    }
}

#[cfg(test)]
mod tests {
    use wayleave_import::Refused;

    use super::*;

    #[test]
    fn rules_that_are_written_compile_and_refuse_at_both_ends() {
        let member = ImportedMember {
            name: "alpha".to_owned(),
            asn: Asn(64_497),
            places: Vec::new(),
            description: Some("A \"quoted\" \\ name".to_owned()),
            router: ["192.0.2.1".parse().ok(), None],
            next_hops: vec!["192.0.2.9".parse().expect("an address")],
            limits: [Some(10), None],
            as_sets: Vec::new(),
            refused: vec![
                Refused {
                    setting: "filtering.black_list_pref",
                    prefixes: vec!["192.0.2.0/24+".to_owned(), "10.0.0.0/8{16,24}".to_owned()],
                },
                Refused { setting: "filtering.ipv4_pref_len", prefixes: vec!["0.0.0.0/0{25,32}".to_owned()] },
            ],
            not_taken: vec![NotTaken { setting: "password".to_owned(), value: None }],
        };
        let other = ImportedMember { name: "bravo".to_owned(), asn: Asn(64_498), ..member.clone() };
        let (own, received) = (export_rules(&member), import_rules(&[&member, &other]));
        assert!(received.contains("peer = [64497, 64498]"), "{received}");
        let rules: wayleave_route_server::policy::PolicyConfig = toml::from_str(&(own + &received)).expect("rules");
        assert_eq!(rules.rules.len(), 4);
        wayleave_route_server::policy::Policy::compile(&rules).expect("a policy");
        // Another router of the AS, of which less is refused: a rule by AS would be too much for it.
        let mut less = ImportedMember { name: "alpha-2".to_owned(), ..member.clone() };
        less.refused.pop();
        let received = import_rules(&[&member, &less, &other]);
        assert!(received.contains("peer = [64498]\nprefix = [\"0.0.0.0/0{25,32}\"]"), "{received}");
        assert_eq!(received.matches("peer = [64497, 64498]").count(), 1, "{received}");
        let text = member_text(&member, "clients.yml", Some("example-ix"));
        let file: MemberFile = toml::from_str(&text).expect("a file");
        assert_eq!((file.name.as_str(), file.asn, file.addresses.len()), ("alpha", Asn(64_497), 2));
        assert!(text.contains("password: not copied"), "{text}");
    }
}
