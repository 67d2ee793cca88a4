//! `link`: the neighbours of a node in its configuration.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::{Value, json};
use wayleave_control::advert::Endpoint;

use crate::config::check::check;
use crate::config::links::FIRST_OPEN;
use crate::config::overlay::{NodeRef, OverlaySection, RelationshipName};
use crate::config::replace::replace;
use crate::config::{Source, choices};
use crate::failure::{Failure, Failures, Outcome};
use crate::output::{objects, print, print_json, warn};

#[derive(Subcommand, Debug)]
pub enum Link {
    /// Add a neighbour to a configuration. Both ends do, unless the provider is open.
    Add(Add),
    /// Remove a neighbour from a configuration.
    Remove(Remove),
    /// List the neighbours of a configuration; `show neighbours` says which a running role knows.
    List(List),
}

#[derive(Args, Debug)]
pub struct Add {
    /// The neighbour, by its name or key.
    pub node: String,
    /// What it is to this node.
    #[arg(value_parser = relationships())]
    pub relationship: String,
    /// Address and port of this machine at which its packets arrive; without it only this node begins.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub local: Option<SocketAddr>,
    /// The same as the neighbour reaches it, an address or a name, if it differs.
    #[arg(long, value_name = "HOST:PORT")]
    pub endpoint: Option<Endpoint>,
    /// Do not tell others of the link.
    #[arg(long)]
    pub private: bool,
    /// The configuration of a router or gateway.
    #[arg(long, short, default_value = "wayleave.toml")]
    pub config: PathBuf,
}

#[derive(Args, Debug)]
pub struct Remove {
    /// The neighbour, by its name or key as the configuration has it.
    pub node: String,
    /// The configuration of a router or gateway.
    #[arg(long, short, default_value = "wayleave.toml")]
    pub config: PathBuf,
}

#[derive(Args, Debug)]
pub struct List {
    /// The configuration of a router or gateway.
    #[arg(long, short, default_value = "wayleave.toml")]
    pub config: PathBuf,
    #[arg(long)]
    pub json: bool,
}

fn relationships() -> PossibleValuesParser {
    let value = |name: &'static str, help: &'static str| PossibleValue::new(name).help(help);
    PossibleValuesParser::new([
        value("provider", "It carries this node's packets."),
        value("peer", "Each carries its own customers' packets to the other."),
        value("customer", "This node carries its packets."),
    ])
}

pub fn run(command: &Link) -> Outcome {
    match command {
        Link::Add(command) => add(command),
        Link::Remove(command) => remove(command),
        Link::List(command) => list(command),
    }
}

/// What matters here of a configuration with `[overlay]`.
#[derive(Deserialize)]
struct File {
    overlay: Option<OverlaySection>,
    #[serde(default)]
    link: Vec<Numbered>,
}

/// A `[[link]]` of a router.
#[derive(Deserialize)]
struct Numbered {
    id: Option<u16>,
}

fn section(source: &Source) -> Outcome<(OverlaySection, Vec<Numbered>)> {
    let File { overlay, link } = source.parse()?;
    let none = || Failure::new("no section [overlay]: only nodes of a realm have neighbours");
    Ok((overlay.ok_or_else(|| none().help("`wayleave join TOKEN` writes one"))?, link))
}

const TAKE_OVER: &str = "a running role takes it over at a reload (SIGHUP)";

fn add(command: &Add) -> Outcome {
    let source = Source::read(&command.config)?;
    let (overlay, links) = section(&source)?;
    let node = choices::node(&command.node)?.0;
    let numbers: Vec<u16> =
        overlay.neighbour.iter().map(|neighbour| *neighbour.get_ref().interface.get_ref()).collect();
    let is_free = |number: &u16| !numbers.contains(number) && links.iter().all(|link| link.id != Some(*number));
    let number = (1..FIRST_OPEN).find(is_free).ok_or_else(|| Failure::new("no number is left for another link"))?;
    let end = match source.text() {
        "" => "",
        text if text.ends_with("\n\n") => "",
        text if text.ends_with('\n') => "\n",
        _ => "\n\n",
    };
    let mut text = format!(
        "{}{end}[[overlay.neighbour]]\nnode = \"{node}\"\nrelationship = \"{}\"\ninterface = {number}\n",
        source.text(),
        command.relationship
    );
    if command.private {
        text += "public = false\n";
    }
    // Neither an address nor an endpoint has what a TOML string would have to escape.
    text += &command.local.map(|local| format!("local = \"{local}\"\n")).unwrap_or_default();
    text += &command.endpoint.as_ref().map(|endpoint| format!("endpoint = \"{endpoint}\"\n")).unwrap_or_default();
    save(&source, text)?;
    if let (NodeRef::Name(name), Some(known)) = (&node, overlay.known_names(&source))
        && !known.contains(name)
    {
        warn(&format!("no member of which this node knows is called `{name}`"));
    }
    print(&format!("{node} is a {} over interface {number}; {TAKE_OVER}\n", command.relationship));
    if command.relationship != "provider" {
        print("the other end lists this node too\n");
    } else {
        print("the other end lists this node too, unless it is open\n");
    }
    Ok(())
}

fn remove(command: &Remove) -> Outcome {
    let source = Source::read(&command.config)?;
    let (overlay, _) = section(&source)?;
    let node = choices::node(&command.node)?.0;
    let position = overlay.neighbour.iter().position(|neighbour| neighbour.get_ref().node.get_ref().0 == node);
    let position = position.ok_or_else(|| {
        let named: Vec<String> =
            overlay.neighbour.iter().map(|neighbour| neighbour.get_ref().node.get_ref().0.to_string()).collect();
        let failure = Failure::new(format!("{node} is no neighbour in {}", command.config.display()));
        failure.help(if named.is_empty() {
            "there are none".to_owned()
        } else {
            format!("it has {}", named.join(", "))
        })
    })?;
    let text = without(source.text(), position).ok_or_else(|| {
        Failure::new(format!("{}: the section of {node} cannot be told from the rest", command.config.display()))
            .help("remove it by hand: it is not written as [[overlay.neighbour]]")
    })?;
    save(&source, text)?;
    print(&format!("{node} is no neighbour any more; {TAKE_OVER}\n"));
    Ok(())
}

/// Writes what `check` takes.
fn save(source: &Source, text: String) -> Outcome {
    let changed = source.with_text(text);
    let checked = check(&changed);
    if !checked.errors.is_empty() {
        return Err(Failures(checked.errors));
    }
    replace(changed.path(), changed.text())
}

/// The text without its neighbour number `position`, from the section's header to its last key. `None` if what is left does not mean the
/// same but for that.
fn without(text: &str, position: usize) -> Option<String> {
    let is_header = |line: &str| line.trim_start().starts_with('[');
    let is_neighbour = |line: &str| {
        let name = line.trim_start().strip_prefix("[[").and_then(|rest| rest.split_once("]]"));
        name.is_some_and(|(name, _)| name.replace([' ', '\t', '"', '\''], "") == "overlay.neighbour")
    };
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let (begin, _) = lines.iter().enumerate().filter(|(_, line)| is_neighbour(line)).nth(position)?;
    let end = lines[begin + 1..].iter().position(|line| is_header(line)).map_or(lines.len(), |at| begin + 1 + at);
    // What is behind the last key belongs to what follows.
    let is_key = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let last = lines[begin..end].iter().rposition(is_key)? + begin;
    let is_empty = |line: Option<&&str>| line.is_none_or(|line| line.trim().is_empty());
    let (mut head, rest) = (&lines[..begin], &lines[last + 1..]);
    // One of the empty lines around it is enough.
    if !head.is_empty() && is_empty(head.last()) && is_empty(rest.first()) {
        head = &head[..head.len() - 1];
    }
    let left = head.concat() + &rest.concat();
    let mut expected: toml::Table = text.parse().ok()?;
    let overlay = expected.get_mut("overlay")?.as_table_mut()?;
    let neighbours = overlay.get_mut("neighbour")?.as_array_mut()?;
    neighbours.remove(position);
    if neighbours.is_empty() {
        overlay.remove("neighbour");
    }
    (left.parse::<toml::Table>().ok()? == expected).then_some(left)
}

fn list(command: &List) -> Outcome {
    let source = Source::read(&command.config)?;
    let (overlay, _) = section(&source)?;
    let row = |neighbour: &toml::Spanned<crate::config::overlay::NeighbourSection>| {
        let neighbour = neighbour.get_ref();
        json!({
            "node": neighbour.node.get_ref().0.to_string(),
            "relationship": match neighbour.relationship {
                RelationshipName::Provider => "provider",
                RelationshipName::Peer => "peer",
                RelationshipName::Customer => "customer",
            },
            "interface": neighbour.interface.get_ref(),
            "public": neighbour.public,
            "local": neighbour.local.as_ref().map(|local| local.get_ref().0.to_string()),
            "endpoint": neighbour.endpoint().map(|endpoint| endpoint.to_string()),
        })
    };
    let rows: Vec<Value> = overlay.neighbour.iter().map(row).collect();
    if command.json {
        print_json(json!({ "neighbours": rows, "open": overlay.open.as_ref().map(|open| open.describe()) }));
        return Ok(());
    }
    if rows.is_empty() {
        print("no neighbours: `wayleave link add NODE provider` adds one\n");
    } else {
        print(&objects(&rows, &["node", "relationship", "interface", "public", "local", "endpoint"]));
    }
    if let Some(open) = &overlay.open {
        print(&format!("{}\n", open.describe()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# A node.\n[overlay]\nmtu = 1\n\n# To b.\n[[overlay.neighbour]]\nnode = \"b\"   # by name\n\
                        # inside\ninterface = 1\n\n# To c.\n[[ overlay . \"neighbour\" ]]\nnode = \"c\"\n\n# Pages.\n[status]\nlisten = \"x\"\n";

    #[test]
    fn a_section_is_cut_out_and_everything_else_stays_with_its_comments() {
        assert_eq!(
            without(TEXT, 0).unwrap(),
            "# A node.\n[overlay]\nmtu = 1\n\n# To b.\n\n# To c.\n[[ overlay . \"neighbour\" ]]\nnode = \"c\"\n\n# Pages.\n[status]\nlisten = \"x\"\n"
        );
        let one = without(TEXT, 1).unwrap();
        assert!(one.ends_with("interface = 1\n\n# To c.\n\n# Pages.\n[status]\nlisten = \"x\"\n"), "{one}");
        assert_eq!(without(&one, 0).unwrap().matches("neighbour").count(), 0);
    }

    #[test]
    fn what_cannot_be_cut_out_is_left_to_its_owner() {
        for text in [
            "[overlay]\nneighbour = [{ node = \"b\" }]\n",
            "overlay = { neighbour = [{ node = \"b\" }] }\n",
            // A header in a text is none.
            "[overlay]\nmeaning = \"\"\"\n[[overlay.neighbour]]\nnode = \"x\"\n\"\"\"\n[[overlay.neighbour]]\nnode = \"b\"\n",
        ] {
            assert_eq!(without(text, 0), None, "{text}");
        }
        // Nor is a line of a list.
        let list = "[overlay]\n[[overlay.neighbour]]\nlist = [\n[1],\n]\nnode = \"b\"\n[status]\n";
        assert_eq!(without(list, 0), None);
    }
}
