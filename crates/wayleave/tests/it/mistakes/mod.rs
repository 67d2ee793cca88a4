//! Mistakes that operators make in configurations and the files that they name: `check` names each with its line, its cause and
//! its cure. So do commands of `cap` with mistakes on their command lines.
//!
//! OPS, mistakes: more than 170 mistakes in configurations, files, keys, addresses and permissions, here of an
//! attesting proxy and a router: each is named with line, cause and cure, for people and in JSON.
//! BGP-15: a password file that is not there, that others may read, that has none or too long a one: `check` names it.

mod capabilities;
mod exchange;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use serde_json::Value;

use super::common::{Folder, text};

/// A mistake: what is replaced by what in a good configuration, a word of the cause, and one of the cure.
#[derive(Clone, Copy)]
struct Mistake {
    good: &'static str,
    wrong: &'static str,
    cause: &'static str,
    cure: &'static str,
    /// It is named at the other one of two lines that do not fit together.
    elsewhere: bool,
}

const fn mistake(good: &'static str, wrong: &'static str, cause: &'static str, cure: &'static str) -> Mistake {
    Mistake { good, wrong, cause, cure, elsewhere: false }
}

const fn elsewhere(of: Mistake) -> Mistake {
    Mistake { elsewhere: true, ..of }
}

/// Makes each mistake by itself, and compares what `check` says, for machines and for people.
fn each_is_named(folder: &Folder, good: &str, mistakes: &[Mistake]) {
    folder.write("good.toml", good);
    let said = folder.ok(&["check", "--example", "good.toml"]);
    assert!(said.contains("fine"), "{said}");
    let faults: Vec<String> = mistakes
        .iter()
        .filter_map(|mistake| {
            let fault = is_named(folder, good, mistake).err()?;
            Some(format!("{:?} for {:?}: {fault}", mistake.wrong, mistake.good))
        })
        .collect();
    assert!(faults.is_empty(), "{} of {} mistakes:\n{}", faults.len(), mistakes.len(), faults.join("\n"));
}

/// Makes one mistake, and says what `check` lacks.
fn is_named(folder: &Folder, good: &str, mistake: &Mistake) -> Result<(), String> {
    let Mistake { good: from, wrong, cause, cure, elsewhere } = mistake;
    let at = good.find(from).ok_or_else(|| format!("{from} is not in the configuration"))?;
    folder.write("wrong.toml", &good.replacen(from, wrong, 1));
    let Output { stdout, .. } = folder.run(&["check", "wrong.toml", "--json"]);
    let said: Value = serde_json::from_slice(&stdout).map_err(|error| error.to_string())?;
    let found: Vec<&Value> = ["errors", "warnings"].iter().flat_map(|kind| said[kind].as_array()).flatten().collect();
    let words = |fault: &Value, fields: &[&str]| {
        fields.iter().filter_map(|field| fault[field].as_str()).collect::<Vec<_>>().join(" ")
    };
    let names = |fault: &&&Value| {
        words(fault, &["message", "reason"]).contains(cause) && words(fault, &["expected", "help"]).contains(cure)
    };
    let fault = found.iter().find(names).ok_or_else(|| format!("{cause}, {cure}: {said:#}"))?;
    // Within a line of what was changed: what is missing is missed where its table begins.
    let first = good[..at].matches('\n').count() as u64;
    let last = first + wrong.matches('\n').count() as u64 + 2;
    let line = fault["line"].as_u64().ok_or_else(|| format!("no line: {said:#}"))?;
    if !elsewhere && !(first..=last).contains(&line) {
        return Err(format!("line {line}, expected {first} to {last}: {said:#}"));
    }
    let shown = folder.run(&["check", "wrong.toml"]);
    let shown = text(&shown.stdout) + &text(&shown.stderr);
    if shown.contains(&format!("wrong.toml:{line}:")) { Ok(()) } else { Err(shown) }
}

fn with_mode(folder: &Folder, name: &str, content: &str, mode: u32) {
    folder.write(name, content);
    fs::set_permissions(folder.0.join(name), PermissionsExt::from_mode(mode)).expect("set");
}

const ATTEST: &str = r#"[attest]
asn = 64497
state = "attest.redb"
[keys]
signing = "attest.key"
anchor = "anchor.pub"
objects = "objects"
[policy]
invalid = { reject = true, log = true }
[[pair]]
name = "bravo"
inside = { listen = "127.0.0.1:1790", address = "127.0.0.1" }
outside = { connect = "127.0.0.2:179", asn = 64498 }
[status]
listen = "127.0.0.1:8485"
"#;

#[test]
fn check_names_each_mistake_at_an_attesting_proxy() {
    let folder = Folder::new("mistakes-attest");
    folder.ok(&["keys", "anchor", "anchor.key", "--name", "lab"]);
    folder.ok(&["keys", "attest", "attest.key", "--asn", "64497"]);
    let shown: Value = serde_json::from_str(&folder.ok(&["keys", "show", "attest.key", "--json"])).expect("JSON");
    let key = format!("attest:{}", shown["attest"][0].as_str().expect("a key"));
    folder.sign(&["profile", "--asn", "64497", "--key", &key]);
    folder.ok(&["keys", "attest", "other.key", "--asn", "64498"]);
    folder.ok(&["keys", "attest", "unlisted.key", "--asn", "64497"]);
    folder.ok(&["keys", "attest", "hbs.key", "--asn", "64497", "--suite", "kc-hbs", "--parts", "2"]);
    folder.ok(&["keys", "new", "tls.key", "--name", "x"]);
    let whole = fs::read_to_string(folder.0.join("attest.key")).expect("a file");
    with_mode(&folder, "half.key", &whole[..whole.len() / 2], 0o600);
    with_mode(&folder, "open.key", &whole, 0o644);
    with_mode(&folder, "file", "", 0o600);
    with_mode(&folder, "long.password", &"x".repeat(81), 0o600);
    with_mode(&folder, "open.password", "x", 0o644);
    fs::create_dir(folder.0.join("folder")).expect("made");
    each_is_named(
        &folder,
        ATTEST,
        &[
            mistake("asn = 64497", "asn = 0", "AS0 is reserved", "may appear in a route"),
            mistake("asn = 64497", "asn = 23456", "AS23456 is reserved", "may appear in a route"),
            mistake("asn = 64497", "asn = \"AS64497\"", "invalid type", "a number from 0 to 4294967295"),
            mistake("asn = 64497", "as = 64497", "unknown field `as`", "`asn`"),
            mistake("asn = 64497\n", "", "missing field `asn`", ""),
            mistake("\"attest.redb\"", "attest.redb", "must be quoted", "text in quotes"),
            mistake("state = \"attest.redb\"", "state = \"a\"\nstate = \"a\"", "duplicate key", "remove one"),
            mistake("attest.redb", "gone/attest.redb", "no folder", "mkdir -p"),
            mistake("attest.redb", "folder", "is a folder", "the path of a file"),
            mistake("attest.key", "none.key", "does not exist", "wayleave keys attest"),
            mistake("attest.key", "open.key", "can be read by others", "chmod 600"),
            mistake("attest.key", "tls.key", "is not a file of attestation keys", "wayleave keys attest"),
            mistake("attest.key", "half.key", "is not a file of attestation keys", "wayleave keys attest"),
            mistake("attest.key", "anchor.key", "has keys for `anchor`", "wayleave keys attest"),
            mistake("attest.key", "other.key", "AS64498's", "keys of AS64497"),
            mistake("attest.key", "unlisted.key", "does not list the kc-ed25519 key", "wayleave keys profile"),
            mistake("attest.key", "folder", "is a folder", "a file"),
            mistake("attest.key", "hbs.key", "created for 2 hosts", "`part`"),
            mistake("\"attest.key\"", "\"hbs.key\"\npart = 2", "there is no part 2", "0 to 1"),
            mistake("\"attest.key\"", "\"attest.key\"\npart = 1", "no few-time key", "remove"),
            mistake("anchor.pub", "none.pub", "does not exist", "wayleave keys anchor"),
            mistake("anchor.pub", "anchor.key", "is the private file of a trust anchor", "anchor.pub"),
            mistake("anchor.pub", "file", "is not a trust anchor", "wayleave keys anchor"),
            mistake("anchor = \"anchor.pub\"\n", "", "only one of `anchor` and `objects`", "both or neither"),
            mistake("\"objects\"", "\"none\"", "does not exist", "wayleave keys profile"),
            mistake("\"objects\"", "\"file\"", "is a file", "a folder"),
            mistake(
                "signing = \"attest.key\"\nanchor = \"anchor.pub\"\nobjects = \"objects\"",
                "signing = \"attest.key\"\nanchor = \"anchor.pub\"\nobjects = \"folder\"",
                "no profile of AS64497",
                "wayleave keys profile",
            ),
            mistake("invalid =", "bogus =", "unknown field `bogus`", "`invalid`"),
            mistake("log = true", "med = 3", "cannot be changed too", "`reject` alone"),
            mistake("reject = true, log = true", "large_community = \"1:2\"", "1:2", "a large community"),
            mistake("name = \"bravo\"\n", "", "missing field `name`", ""),
            mistake("listen = \"127.0.0.1:1790\", ", "", "no way to reach this end", "`listen` or `connect`"),
            mistake("127.0.0.1:1790", "203.0.113.9:1790", "no address 203.0.113.9", "ip address"),
            mistake("127.0.0.2:179", "127.0.0.2", "127.0.0.2", "an address and port"),
            mistake("asn = 64498", "asn = 64498, password_file = \"none\"", "does not exist", "create it"),
            mistake("asn = 64498", "asn = 64498, password_file = \"open.password\"", "can be read by others", "chmod"),
            mistake("asn = 64498", "asn = 64498, password_file = \"file\"", "no password in it", "1 to 80 octets"),
            mistake("asn = 64498", "asn = 64498, password_file = \"long.password\"", "81 octets", "1 to 80 octets"),
            mistake("asn = 64498", "asn = 64498, ttl_security = 0", "integer `0`", "from 1 (the same link)"),
            mistake("asn = 64498", "asn = 64498, ttl_security = true, ttl = 3", "`ttl` is 3", "only one"),
            mistake(
                "[status]",
                "[[pair]]\nname = \"bravo\"\ninside = { connect = \"127.0.0.3:179\" }\noutside = { connect = \"127.0.0.4:179\" }\n[status]",
                "pair `bravo` exists",
                "another name",
            ),
            mistake(
                "[status]",
                "[[pair]]\nname = \"c\"\ninside = { listen = \"127.0.0.1:1790\" }\noutside = { connect = \"127.0.0.4:179\" }\n[status]",
                "another end listens",
                "an address of its own",
            ),
            mistake("[status]", "keys = \"granted\"\n[status]", "not protected", "IPsec"),
            mistake("[policy]", "[rpki]\ncache = \"127.0.0.1\"\n[policy]", "127.0.0.1", "a host and port"),
            mistake("[policy]", "[rpki]\nanchors = [\"ta.cer\"]\n[policy]", "without certificates", "`certificates`"),
            mistake("[keys]", "attribute = 2\n[keys]", "2 is out of range", "64 to 255"),
            mistake("[keys]", "attribute = 254\n[keys]", "BIRD", "without a meaning"),
            mistake("[keys]", "lifetime_minutes = 1\n[keys]", "1 is out of range", "2 to 10080 minutes"),
            mistake("[keys]", "originate = [\"192.0.2.1/24\"]\n[keys]", "beyond the prefix length", "192.0.2.0/24"),
            mistake("127.0.0.1:8485", "0.0.0.0:8485", "from other machines", "anyone who can connect"),
            mistake("127.0.0.1:8485", "127.0.0.1:1790", "in use by this configuration", "another port"),
        ],
    );
}

#[test]
fn check_names_a_file_that_is_no_configuration() {
    let folder = Folder::new("mistakes-files");
    fs::write(folder.0.join("utf16.toml"), [0xff, 0xfe, 0x5b]).expect("written");
    fs::create_dir(folder.0.join("folder")).expect("made");
    folder.write("empty.toml", "");
    let files = [
        ("utf16.toml", "valid UTF-8", "save it as such"),
        ("folder", "directory", "wayleave init ROLE"),
        ("none.toml", "No such file", "wayleave init ROLE"),
        ("empty.toml", "no role has these sections", "`attest` has [attest]"),
    ];
    let faults: Vec<String> = files
        .iter()
        .filter_map(|(file, cause, cure)| {
            let Output { status, stderr, .. } = folder.run(&["check", *file]);
            let said = text(&stderr);
            let is_named = status.code() == Some(1) && said.contains(*cause) && said.contains(*cure);
            (!is_named).then(|| format!("{file}: {status}, expected 1, {cause}, {cure}: {said}"))
        })
        .collect();
    assert!(faults.is_empty(), "{} of {} files:\n{}", faults.len(), files.len(), faults.join("\n"));
}

const SCION: &str = r#"[forwarding]
format = "scion"
keys = "router.key"
[scion]
isd_as = "1-64497"
internal = "127.0.0.1:30042"
[[interface]]
id = 1
link = "child"
neighbor = "1-64498"
local = "127.0.0.1:50000"
remote = "127.0.0.2:50000"
[status]
listen = "127.0.0.1:8486"
"#;

#[test]
fn check_names_each_mistake_at_a_router() {
    let folder = Folder::new("mistakes-router");
    folder.ok(&["keys", "forwarding", "router.key", "--format", "scion"]);
    folder.ok(&["keys", "forwarding", "icing.key", "--format", "icing"]);
    folder.ok(&["keys", "new", "tls.key", "--name", "x"]);
    let whole = fs::read_to_string(folder.0.join("router.key")).expect("a file");
    with_mode(&folder, "open.key", &whole, 0o640);
    with_mode(&folder, "half.key", &whole[..whole.len() - 20], 0o600);
    each_is_named(
        &folder,
        SCION,
        &[
            mistake("format = \"scion\"", "format = \"ip\"", "unknown variant `ip`", "`platypus`"),
            mistake("router.key", "none.key", "does not exist", "wayleave keys forwarding"),
            mistake("router.key", "open.key", "can be read by others", "chmod 600"),
            mistake("router.key", "icing.key", "icing", "scion"),
            mistake("router.key", "tls.key", "tls.key", "wayleave keys forwarding"),
            mistake("router.key", "half.key", "half.key", "wayleave keys forwarding"),
            mistake(
                "keys = \"router.key\"",
                "keys = \"router.key\"\nworkers = 0",
                "0 is out of range",
                "1 to 256 threads",
            ),
            mistake("keys = \"router.key\"", "keys = \"router.key\"\ncores = [0, 1]", "2 cores", "one for each thread"),
            mistake("keys = \"router.key\"", "keys = \"router.key\"\nstate = \"none/x\"", "no folder", "mkdir -p"),
            mistake("1-64497", "64497", "64497", "an ISD and AS"),
            mistake("127.0.0.1:50000", "127.0.0.1:30042", "in use by another", "of its own"),
            mistake("127.0.0.1:30042", "203.0.113.9:30042", "no address 203.0.113.9", "ip address"),
            mistake("id = 1", "id = 0", "0 is the AS itself", "1"),
            mistake("child", "customer", "unknown variant `customer`", "`child`"),
            mistake("neighbor = \"1-64498\"", "neighbor = \"1-64497\"", "this AS itself", "the other end"),
            mistake(
                "id = 1\nlink = \"child\"\nneighbor = \"1-64498\"\nlocal = \"127.0.0.1:50000\"\n",
                "id = 1\nlink = \"child\"\nneighbor = \"1-64498\"\n",
                "interface 1",
                "`local` and `remote`",
            ),
            mistake("127.0.0.1:50000", "0.0.0.0:50000", "is not one address", "this machine's"),
            mistake("127.0.0.2:50000", "[::1]:50000", "cannot be reached from", "the other end's address"),
            mistake("[status]", "backend = \"af-xdp\"\n[status]", "incomplete", "`device`"),
            mistake(
                "[status]",
                "[[link]]\nlocal = \"127.0.0.1:1\"\nremote = \"127.0.0.2:1\"\n[status]",
                "has no meaning",
                "no such section",
            ),
            mistake(
                "[status]",
                "[[interface]]\nid = 1\nlink = \"child\"\nneighbor = \"1-64499\"\nlocal = \"127.0.0.1:2\"\nremote = \"127.0.0.2:2\"\n[status]",
                "interface 1 exists",
                "another number",
            ),
            mistake("127.0.0.1:8486", "127.0.0.1", "127.0.0.1", "an address and port"),
        ],
    );
}
