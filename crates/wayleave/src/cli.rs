//! The command line: nouns after `show`, verbs elsewhere.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use wayleave_core::{Asn, Prefix};
use wayleave_runtime::identity::Fingerprint;

use crate::config::{HostPort, PublicKey};
use crate::key_files::revocation::Entry;

/// Routes chosen in private: a route server for Internet exchanges that learns nothing of its members' policies.
#[derive(Parser, Debug)]
#[command(name = "wayleave", version = crate::VERSION, max_term_width = 120)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Print a commented configuration that passes `check`.
    Init(Init),
    /// Check a configuration: exit code 0 if it is fine, 1 if not.
    Check(Check),
    /// Run a role until SIGTERM; SIGHUP reads the configuration again.
    Run(Run),
    /// Show what a running role knows.
    Show(Show),
    /// Say why a prefix has the route that it has, or none (of a member or an attesting proxy).
    Why(Why),
    /// Check ICING nodes' signed reports on a path, and say between which nodes packets vanished.
    Locate(Locate),
    /// Print the configuration that a member needs, from a party's own.
    Invite(Invite),
    /// Make key files, print their public parts, sign profiles and records.
    #[command(visible_alias = "key", subcommand)]
    Keys(Keys),
    /// Edit the signed member set of an exchange.
    #[command(subcommand)]
    Members(Members),
    /// Laboratory tools.
    #[command(subcommand)]
    Lab(Lab),
    /// Play a whole exchange with real routers, step by step.
    Demo(Demo),
    /// Measure; one JSON object per benchmark.
    Bench(Bench),
    /// Print a completion script for a shell.
    Completions { shell: clap_complete::Shell },
    /// Print the manual page.
    Man,
}

impl Command {
    /// Whether it answers in JSON, its failures too.
    pub fn json(&self) -> bool {
        match self {
            Command::Init(Init { json, .. })
            | Command::Check(Check { json, .. })
            | Command::Show(Show { json, .. })
            | Command::Why(Why { json, .. })
            | Command::Locate(Locate { json, .. })
            | Command::Invite(Invite { json, .. })
            | Command::Keys(
                Keys::New { json, .. }
                | Keys::Show { json, .. }
                | Keys::Attest(AttestKeys { json, .. })
                | Keys::Anchor(AnchorKeys { json, .. })
                | Keys::Profile(ProfileKeys { objects: ObjectKeys { json, .. }, .. })
                | Keys::Record(RecordKeys { objects: ObjectKeys { json, .. }, .. })
                | Keys::Identity { json, .. }
                | Keys::Addition(AdditionKeys { json, .. })
                | Keys::Routers { json, .. }
                | Keys::Objects { json, .. }
                | Keys::Forwarding(ForwardingKeys { json, .. })
                | Keys::Capability(CapabilityKeys { json, .. })
                | Keys::Delegate(DelegateKeys { json, .. })
                | Keys::Revoke(RevokeKeys { json, .. })
                | Keys::Revoked(RevokedKeys { json, .. }),
            )
            | Command::Members(
                Members::Init { json, .. }
                | Members::Add(AddMember { json, .. })
                | Members::Attest { json, .. }
                | Members::Remove { json, .. }
                | Members::Show { json, .. },
            )
            | Command::Lab(Lab::Speak(Speak { json, .. }))
            | Command::Bench(Bench { json, .. }) => *json,
            Command::Run(_) | Command::Demo(_) | Command::Completions { .. } | Command::Man => false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum RoleName {
    /// A party of the route server.
    Rs,
    /// A member's proxy.
    Member,
    /// An attesting proxy between BGP speakers and their neighbours.
    Attest,
    /// A router that verifies every packet: SCION, Platypus, ICING.
    Router,
}

#[derive(Args, Debug)]
pub struct Init {
    pub role: RoleName,
    /// Which party, for `rs`: 1 (the exchange) or 2 (the neutral organisation).
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub party: u8,
    /// Write to this file instead; it must not exist.
    #[arg(long, short)]
    pub out: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Check {
    /// The configuration; its role is known by its sections.
    #[arg(default_value = "wayleave.toml")]
    pub file: PathBuf,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Run {
    pub role: RoleName,
    #[arg(long, short)]
    pub config: PathBuf,
    /// Level or directives, as in `info,wayleave_runtime::links=debug`; else WAYLEAVE_LOG counts.
    #[arg(long)]
    pub log: Option<String>,
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Which running role.
#[derive(Args, Debug, Clone)]
pub struct Target {
    /// Its status page, as in http://127.0.0.1:8481.
    #[arg(long, conflicts_with = "config")]
    pub url: Option<String>,
    /// Its configuration, whose `[status]` says where the page is.
    #[arg(long, short)]
    pub config: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Show {
    pub what: Noun,
    #[command(flatten)]
    pub target: Target,
    /// Of routes and reports, show so many.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub most: usize,
    /// Of reports, those of the path whose handle begins so.
    #[arg(long, value_name = "HEX", default_value = "", hide_default_value = true)]
    pub handle: String,
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Noun {
    Status,
    Peers,
    Routes,
    Members,
    Events,
    Keys,
    /// What principals have sent, of a router.
    Accounts,
    /// What came on each path in the last closed windows, signed, of an ICING node.
    Reports,
}

impl Noun {
    /// Its view's path.
    pub fn path(self) -> &'static str {
        match self {
            Noun::Status => "/api/v1/status",
            Noun::Peers => "/api/v1/peers",
            Noun::Routes => "/api/v1/routes",
            Noun::Members => "/api/v1/members",
            Noun::Events => "/api/v1/events",
            Noun::Keys => "/api/v1/keys",
            Noun::Accounts => "/api/v1/accounts",
            Noun::Reports => "/api/v1/reports",
        }
    }
}

#[derive(Args, Debug)]
pub struct Why {
    pub prefix: Prefix,
    #[command(flatten)]
    pub target: Target,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Locate {
    /// A node's signing key and a file of its reports, as `wayleave show reports --json` prints them, as ed25519:HEX=FILE.
    #[arg(required = true, value_name = "KEY=FILE")]
    pub reports: Vec<NodeReports>,
    /// The beginning of the path's handle; needed if the nodes report on several paths.
    #[arg(long, value_name = "HEX", default_value = "", hide_default_value = true)]
    pub handle: String,
    /// The window (Unix seconds divided by 16); the last one that all files have, if not given.
    #[arg(long)]
    pub window: Option<u32>,
    /// Packets that the sender stamped in the window; else counting begins at the first node.
    #[arg(long)]
    pub sent: Option<u64>,
    #[arg(long)]
    pub json: bool,
}

/// Who signed a file of reports.
#[derive(Clone, Debug)]
pub struct NodeReports {
    pub key: PublicKey,
    pub file: PathBuf,
}

impl std::str::FromStr for NodeReports {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (key, file) = text.split_once('=').ok_or("expected KEY=FILE")?;
        Ok(Self { key: key.parse()?, file: file.into() })
    }
}

#[derive(Args, Debug)]
pub struct Invite {
    /// The member's name in the member set.
    pub name: String,
    /// Either party's configuration.
    #[arg(long, short)]
    pub config: PathBuf,
    /// The AS number of the exchange's route server, which its communities name.
    #[arg(long)]
    pub rs_asn: Asn,
    /// Where members reach party 1, if not at its own `listen` address.
    #[arg(long)]
    pub party1: Option<HostPort>,
    /// Where members reach party 2, if not at its own `listen` address.
    #[arg(long)]
    pub party2: Option<HostPort>,
    /// The configuration as the text of one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand, Debug)]
pub enum Keys {
    /// Make a key file: a TLS key with its certificate, and a signing key. Prints the public parts.
    New {
        file: PathBuf,
        /// A name for people, in the certificate.
        #[arg(long)]
        name: Option<String>,
        /// How long the certificate is valid.
        #[arg(long, default_value_t = 3650)]
        days: u32,
        #[arg(long)]
        json: bool,
    },
    /// Print the public parts of a key file.
    Show {
        file: PathBuf,
        #[arg(long)]
        json: bool,
    },
    /// Make the private keys with which an AS attests. Prints the public parts.
    Attest(AttestKeys),
    /// Make forwarding keys, or add the next one to a file of them.
    Forwarding(ForwardingKeys),
    /// Mint what a stamper stamps with, from the key of a Platypus waypoint.
    Capability(CapabilityKeys),
    /// Hand capabilities on, for some destinations alone.
    Delegate(DelegateKeys),
    /// Sign the next list of what Platypus routers let pass no more.
    Revoke(RevokeKeys),
    /// Print such a list.
    Revoked(RevokedKeys),
    /// Make a trust anchor: a private file, and a public one beside it with the ending `.pub`.
    Anchor(AnchorKeys),
    /// Sign an AS's profile, which lists its key for each role.
    Profile(ProfileKeys),
    /// Sign an AS's record: what it may originate, and since when it attests.
    Record(RecordKeys),
    /// Make an AS's identity key, with which it signs its own additions to its profile.
    Identity {
        file: PathBuf,
        #[arg(long)]
        asn: Asn,
        #[arg(long)]
        json: bool,
    },
    /// Add keys to an AS's profile with its identity key, without the anchor: a new tree of a few-time suite.
    Addition(AdditionKeys),
    /// List the router keys (RFC 8209) of a folder of certificates and revocation lists.
    Routers {
        /// A trust anchor's certificate (may be repeated).
        #[arg(long, required = true)]
        anchor: Vec<PathBuf>,
        /// The folder of certificates (.cer) and revocation lists (.crl).
        #[arg(long)]
        certificates: PathBuf,
        #[arg(long)]
        json: bool,
    },
    /// List the profiles and records of a folder that an anchor has signed.
    Objects {
        /// The anchor's public file.
        #[arg(long)]
        anchor: PathBuf,
        #[arg(long)]
        objects: PathBuf,
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args, Debug)]
pub struct AttestKeys {
    pub file: PathBuf,
    #[arg(long)]
    pub asn: Asn,
    /// A suite, the preferred first (may be repeated).
    #[arg(long, default_value = "kc-ed25519")]
    pub suite: Vec<String>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct ForwardingKeys {
    pub file: PathBuf,
    #[arg(long, value_enum)]
    pub format: FormatName,
    /// Add a key to the file that counts from this second (since 1970) on; routers must hold it before then.
    #[arg(long, value_name = "SECONDS")]
    pub next: Option<u64>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct CapabilityKeys {
    pub file: PathBuf,
    /// The waypoint's file of forwarding keys.
    #[arg(long)]
    pub key: PathBuf,
    /// The waypoint's address.
    #[arg(long)]
    pub waypoint: IpAddr,
    /// Who pays: a number of 24 bits.
    #[arg(long)]
    pub principal: u32,
    /// A key epoch lasts two to this power of seconds.
    #[arg(long, default_value_t = 12)]
    pub interval: u8,
    /// For so many key epochs, from the current one on.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=crate::key_files::capability::MOST_EPOCHS as i64))]
    pub epochs: u32,
    /// Bindings of 64 bits, where the waypoint accepts them.
    #[arg(long)]
    pub narrow: bool,
    /// In the place of the file that is there.
    #[arg(long)]
    pub replace: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct DelegateKeys {
    pub file: PathBuf,
    /// The file of capabilities that are handed on.
    #[arg(long)]
    pub of: PathBuf,
    /// Destinations that may be reached with them.
    #[arg(long)]
    pub prefix: Prefix,
    /// What the delegation is called, by who hands it on: a number of 24 bits. A delegation may be made narrower without.
    #[arg(long)]
    pub id: Option<u32>,
    /// In the place of the file that is there.
    #[arg(long)]
    pub replace: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct RevokeKeys {
    /// The list; one that is there is added to, and replaced in one step.
    pub file: PathBuf,
    /// Who signs: a key file, made by `wayleave keys new`.
    #[arg(long)]
    pub key: PathBuf,
    /// What is revoked: PRINCIPAL, PRINCIPAL/DELEGATION or PRINCIPAL/DELEGATION/SUB-DELEGATION, in all key epochs, or with
    /// @INTERVAL:EPOCH in one.
    pub entries: Vec<Entry>,
    /// More of them, one on a line; - is the standard input.
    #[arg(long)]
    pub from: Option<PathBuf>,
    /// Revoked no more (may be repeated).
    #[arg(long, value_name = "ENTRY")]
    pub lift: Vec<Entry>,
    /// Only what is named now is revoked, nothing of the list before.
    #[arg(long)]
    pub replace: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct RevokedKeys {
    pub file: PathBuf,
    /// Who must have signed it (`ed25519:...`, from `wayleave keys show`).
    #[arg(long)]
    pub key: PublicKey,
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum FormatName {
    Scion,
    Platypus,
    Icing,
}

#[derive(Args, Debug)]
pub struct AnchorKeys {
    pub file: PathBuf,
    /// A name for people.
    #[arg(long, default_value = "anchor")]
    pub name: String,
    /// How long it holds.
    #[arg(long, default_value_t = 3650)]
    pub days: u32,
    #[arg(long)]
    pub json: bool,
}

/// Which anchor signs, and where the object goes.
#[derive(Args, Debug)]
pub struct ObjectKeys {
    /// The anchor's private file; the public one lies beside it.
    #[arg(long)]
    pub anchor: PathBuf,
    /// The folder of signed objects.
    #[arg(long)]
    pub objects: PathBuf,
    /// How long the object holds.
    #[arg(long, default_value_t = 365)]
    pub days: u32,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct ProfileKeys {
    #[command(flatten)]
    pub objects: ObjectKeys,
    #[arg(long)]
    pub asn: Option<Asn>,
    /// The AS's file of attestation keys, if it is at hand.
    #[arg(long)]
    pub attest: Option<PathBuf>,
    /// A public key as ROLE:SUITE:HEX (may be repeated).
    #[arg(long)]
    pub key: Vec<String>,
}

#[derive(Args, Debug)]
pub struct AdditionKeys {
    /// The AS's private identity key, which its profile lists.
    #[arg(long)]
    pub identity: PathBuf,
    /// The folder of signed objects.
    #[arg(long)]
    pub objects: PathBuf,
    /// The AS's file of attestation keys, all of which are added.
    #[arg(long)]
    pub attest: Option<PathBuf>,
    /// A public key as attest:SUITE:HEX (may be repeated).
    #[arg(long)]
    pub key: Vec<String>,
    /// How long the addition holds.
    #[arg(long, default_value_t = 365)]
    pub days: u32,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct RecordKeys {
    #[command(flatten)]
    pub objects: ObjectKeys,
    #[arg(long)]
    pub asn: Asn,
    /// A prefix that it may originate, with the longest length if that is another, as 192.0.2.0/24-26 (may be repeated).
    #[arg(long)]
    pub prefix: Vec<OwnedPrefix>,
    /// Its routes carry attestations, and this is what a missing one means.
    #[arg(long, value_enum)]
    pub attested: Option<StrictnessName>,
    /// Since when, in seconds since 1970; from now on if not given.
    #[arg(long)]
    pub since: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum StrictnessName {
    /// Such a route is invalid.
    Strict,
    /// Such a route is less preferred.
    Prefer,
}

/// A prefix and the longest length within it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnedPrefix {
    pub prefix: Prefix,
    pub max_length: u8,
}

impl std::str::FromStr for OwnedPrefix {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (prefix, most) = text.split_once('-').map_or((text, None), |(prefix, most)| (prefix, Some(most)));
        let prefix: Prefix = prefix.parse().map_err(|error| format!("{error}"))?;
        let max_length = most.map_or(Ok(prefix.len()), str::parse);
        let fits = |most: &u8| (prefix.len()..=prefix.afi().bits()).contains(most);
        let max_length = max_length.ok().filter(fits);
        max_length.map(|max_length| Self { prefix, max_length }).ok_or_else(|| {
            format!("the longest length of {prefix} is a number from {} to {}", prefix.len(), prefix.afi().bits())
        })
    }
}

#[derive(Subcommand, Debug)]
pub enum Members {
    /// Make an empty set, signed by the operator's key file (made if it is not there).
    Init {
        file: PathBuf,
        #[arg(long)]
        exchange: String,
        #[arg(long)]
        operator: PathBuf,
        #[arg(long)]
        json: bool,
    },
    /// Append a member's slot.
    Add(AddMember),
    /// Set the keys with which a member's AS attests paths; without a key it attests nothing.
    Attest {
        file: PathBuf,
        #[arg(long)]
        operator: PathBuf,
        #[arg(long)]
        asn: Asn,
        /// A public key as SUITE:HEX, from `wayleave keys show` (may be repeated, one for each suite).
        #[arg(long)]
        key: Vec<String>,
        #[arg(long)]
        json: bool,
    },
    /// Let a member leave; its slot is dead for ever.
    Remove {
        file: PathBuf,
        #[arg(long)]
        operator: PathBuf,
        #[arg(long)]
        name: String,
        #[arg(long)]
        json: bool,
    },
    /// Print a set.
    Show {
        file: PathBuf,
        /// The operator's public key (`ed25519:...`), which must have signed it.
        #[arg(long)]
        operator: PublicKey,
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args, Debug)]
pub struct AddMember {
    pub file: PathBuf,
    #[arg(long)]
    pub operator: PathBuf,
    #[arg(long)]
    pub asn: Asn,
    #[arg(long)]
    pub name: String,
    /// An IPv4 address of the member's router on the exchange's network (may be repeated).
    #[arg(long)]
    pub address: Vec<IpAddr>,
    /// An IPv6 address likewise.
    #[arg(long)]
    pub address6: Vec<IpAddr>,
    /// Fingerprint of the member's certificate, from `wayleave keys show`.
    #[arg(long)]
    pub tls: Fingerprint,
    /// The member's signing key, from `wayleave keys show`.
    #[arg(long)]
    pub sign: PublicKey,
    /// Prefixes that it may announce at a time; 0 sets no limit.
    #[arg(long, default_value_t = 0)]
    pub max_prefix: u32,
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand, Debug)]
pub enum Lab {
    /// Replay the UPDATEs of an MRT file as a BGP speaker.
    Speak(Speak),
}

#[derive(Args, Debug)]
pub struct Speak {
    /// The file, also compressed by gzip or bzip2.
    #[arg(long)]
    pub mrt: PathBuf,
    /// The peer.
    #[arg(long)]
    pub connect: SocketAddr,
    /// The speaker's AS, prepended to every path.
    #[arg(long)]
    pub asn: Asn,
    /// The peer's AS; any if not given.
    #[arg(long)]
    pub peer_asn: Option<Asn>,
    #[arg(long)]
    pub router_id: Ipv4Addr,
    /// Next hop of IPv4 routes; the router identifier if not given.
    #[arg(long)]
    pub next_hop: Option<Ipv4Addr>,
    /// Next hop of IPv6 routes; without it IPv6 routes are left out.
    #[arg(long)]
    pub next_hop6: Option<std::net::Ipv6Addr>,
    /// The local address to connect from.
    #[arg(long)]
    pub bind: Option<IpAddr>,
    /// UPDATEs per second; as recorded with `real-time`; as fast as the peer reads if not given.
    #[arg(long)]
    pub rate: Option<Rate>,
    /// Stop after so many UPDATEs.
    #[arg(long)]
    pub limit: Option<u64>,
    /// End the session when all is sent, rather than keep it up until interrupted.
    #[arg(long)]
    pub once: bool,
    #[arg(long)]
    pub json: bool,
}

/// How fast to replay.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Rate {
    /// UPDATEs a second.
    PerSecond(f64),
    /// With the recorded pauses.
    RealTime,
}

impl std::str::FromStr for Rate {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "real-time" {
            return Ok(Rate::RealTime);
        }
        let number = text.strip_suffix("/s").unwrap_or(text).parse::<f64>().ok();
        let positive = number.filter(|number| number.is_finite() && *number > 0.0);
        positive.map(Rate::PerSecond).ok_or_else(|| "a number of UPDATEs per second, or real-time".to_owned())
    }
}

#[derive(Args, Debug)]
pub struct Demo {
    /// No console, words and ticks on the terminal only.
    #[arg(long)]
    pub headless: bool,
    /// End at the first step that does not hold.
    #[arg(long)]
    pub assert: bool,
    /// JSON lines on standard output.
    #[arg(long)]
    pub json: bool,
    /// The rung to use; the highest that works if not given.
    #[arg(long)]
    pub rung: Option<RungName>,
    /// Prefixes of the recorded table that one member announces.
    #[arg(long)]
    pub prefixes: Option<usize>,
    /// A recorded table (MRT, also compressed).
    #[arg(long)]
    pub table: Option<PathBuf>,
    /// Leave configurations, state and logs in this folder.
    #[arg(long)]
    pub keep: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum RungName {
    /// Real routers in namespaces, with root.
    Root,
    /// Real routers in namespaces, without root.
    Rootless,
    /// Processes on loopback, speakers of our own.
    Simulated,
}

#[derive(Args, Debug)]
pub struct Bench {
    /// Which; see --list.
    #[arg(required_unless_present = "list")]
    pub name: Option<String>,
    /// Name all benchmarks.
    #[arg(long)]
    pub list: bool,
    /// One JSON object on one line.
    #[arg(long)]
    pub json: bool,
    /// A minute at most.
    #[arg(long)]
    pub short: bool,
    #[arg(long)]
    pub members: Option<usize>,
    #[arg(long)]
    pub routes: Option<usize>,
    #[arg(long, value_enum)]
    pub output: Option<BenchOutput>,
    #[arg(long, value_enum)]
    pub mode: Option<BenchMode>,
    #[arg(long)]
    pub mrt: Option<PathBuf>,
    /// Milliseconds; 0 evaluates at once.
    #[arg(long)]
    pub tick: Option<u64>,
    /// Prefixes of the trace that are played.
    #[arg(long)]
    pub prefixes: Option<usize>,
    #[arg(long)]
    pub repetitions: Option<usize>,
    /// Of forward and stamp: packets begin with their slots of 2 KiB, instead of a cache line further each.
    #[arg(long)]
    pub aligned: bool,
    /// Attestation suites, or baselines, to measure; may be given several times. All if not given.
    #[arg(long)]
    pub suite: Vec<String>,
    /// Of attest-trace: all but `table` if not given.
    #[arg(long, value_enum)]
    pub workload: Option<AttestWorkload>,
    /// Of attest-trace: whether verdicts are kept.
    #[arg(long, value_parser = clap::builder::BoolishValueParser::new())]
    pub cache: Option<bool>,
    /// Of forward and stamp: cores of the results that end in `.cores`; all if not given.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Of forward, stamp and forward-io: only results whose names begin so; may be given several times.
    #[arg(long)]
    pub only: Vec<String>,
    /// Draw what the paper drew into this SVG file, with its points beside ours.
    #[arg(long)]
    pub plot: Option<PathBuf>,
}

impl Bench {
    /// Whether the result of this name is asked for.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|begin| name.starts_with(begin.as_str()))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum AttestWorkload {
    Normal,
    Pathological,
    Heavy,
    /// A whole table at once, from --mrt.
    Table,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum BenchOutput {
    Index,
    Key,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum BenchMode {
    Mpc,
    Direct,
}
