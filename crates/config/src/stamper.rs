//! The configuration of a stamper at a host.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_core::{Afi, Prefix};
use wayleave_dataplane::stamper::{ConfigError, RANKS, Rule, RuleAction};
use wayleave_packet::platypus::verify::is_martian;

use super::check::{Checked, RoleConfig};
use super::parse::Text;
use super::router::stamper::{Otherwise, RuleSection, StamperSection, UserName};
use super::rs::{FileFault, StatusSection, range, status_warning};
use super::{Fault, Source};
use crate::failure::Failures;

/// Octets of the interfaces' common name, at most: the system's names have fifteen, and a number of three digits follows.
const MAX_INTERFACE: usize = 12;
/// Senders that are told apart, at most: each has an interface.
pub const MAX_SENDERS: usize = 256;
/// Greatest number of a table or a rule that still leaves room for ours behind it.
const MAX_TABLE: u64 = u32::MAX as u64 - 2 * MAX_SENDERS as u64;
const NO_USER: &str = "this machine has no such user, expected a name of /etc/passwd or a number";
/// Octets of a control group's path.
const MAX_CGROUP: usize = 512;

/// `run stamper`.
pub const ROLE: RoleConfig = RoleConfig {
    name: "stamper",
    section: "host",
    sections: "[host] and [stamper]",
    check: HostFile::checked,
    template: |_| TEMPLATE.to_owned(),
};

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostFile {
    pub host: Spanned<HostSection>,
    pub stamper: Spanned<StamperSection>,
    pub status: Option<StatusSection>,
}

/// `[host]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSection {
    /// The TUN interfaces that the role makes have this name and a number.
    #[serde(default = "default_interface")]
    pub interface: Spanned<String>,
    /// This host's address: packets that it stamps come from there, and packets that arrive there with a Platypus header are
    /// handed to the system without it, if a waypoint that it knows sent them.
    pub address: Option<Text<Ipv4Addr>>,
    /// The same of IPv6.
    pub address6: Option<Text<Ipv6Addr>>,
    /// Networks of waypoints, besides those of its own routes, that may send it packets with a header.
    #[serde(default)]
    pub receive_from: Vec<Spanned<Prefix>>,
    /// Networks that no such packet may come from, besides the machine's addresses and `sources`: they are inside.
    #[serde(default)]
    pub refused_sources: Vec<Spanned<Prefix>>,
    /// Replies are stamped with what clients hand over for them.
    pub replies: Option<Spanned<bool>>,
    /// The waypoints that these may be for: all packets to a client go to the one that it names.
    #[serde(default)]
    pub reply_waypoints: Vec<Spanned<Prefix>>,
    /// Who is asked for the secrets of capabilities that routes name by their lines, at port 53; without any, the resolvers of
    /// `/etc/resolv.conf`.
    #[serde(default)]
    pub resolvers: Vec<Text<IpAddr>>,
    /// Where users register capabilities for their own packets; nowhere without it.
    pub socket: Option<Spanned<PathBuf>>,
    /// Who may, besides root.
    #[serde(default)]
    pub users: Vec<Spanned<UserName>>,
    /// Networks whose packets pass through this machine, and are stamped as its own.
    #[serde(default)]
    pub sources: Vec<Spanned<Prefix>>,
    /// The mark of packets that leave the stamper; control groups have the numbers behind it.
    #[serde(default = "default_mark")]
    pub mark: Spanned<u32>,
    /// The first routing table, and the priority of the first routing rule, that the role uses.
    #[serde(default = "default_table")]
    pub table: Spanned<u64>,
}

/// A host's addresses, one of a family at most.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Addresses {
    pub v4: Option<Ipv4Addr>,
    pub v6: Option<Ipv6Addr>,
}

impl Addresses {
    /// That of a family.
    pub fn of(&self, afi: Afi) -> Option<IpAddr> {
        match afi {
            Afi::Ipv4 => self.v4.map(IpAddr::V4),
            Afi::Ipv6 => self.v6.map(IpAddr::V6),
        }
    }

    /// That of the family of a peer's address.
    pub fn towards(&self, peer: IpAddr) -> Option<IpAddr> {
        self.of(if peer.is_ipv4() { Afi::Ipv4 } else { Afi::Ipv6 })
    }

    pub fn all(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let Self { v4, v6 } = *self;
        v4.map(IpAddr::V4).into_iter().chain(v6.map(IpAddr::V6))
    }
}

fn default_interface() -> Spanned<String> {
    Spanned::new(0..0, "stamp".to_owned())
}

fn default_mark() -> Spanned<u32> {
    Spanned::new(0..0, 0x5741_0000)
}

fn default_table() -> Spanned<u64> {
    Spanned::new(0..0, 22_100)
}

impl HostSection {
    /// The first table and priority.
    pub fn table(&self) -> u32 {
        u32::try_from(*self.table.get_ref()).unwrap_or(u32::MAX)
    }

    /// Where packets with a header arrive, and what stamped packets come from.
    pub fn addresses(&self) -> Addresses {
        Addresses {
            v4: self.address.as_ref().map(|address| address.0),
            v6: self.address6.as_ref().map(|address| address.0),
        }
    }

    /// Whether packets with a header are received: others' waypoints may send them, or capabilities for replies are handed over.
    pub fn receives(&self, stamper: &StamperSection) -> bool {
        let has_replies = stamper.routes.iter().any(|route| route.get_ref().reply.is_some());
        !self.receive_from.is_empty() || self.takes_replies() || has_replies
    }

    /// Whether replies are stamped with what clients hand over.
    pub fn takes_replies(&self) -> bool {
        self.replies.as_ref().is_some_and(|replies| *replies.get_ref())
    }

    fn reply_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        if let Some(replies) = self.replies.as_ref().filter(|replies| *replies.get_ref())
            && self.reply_waypoints.is_empty()
        {
            let message = "clients could have this host's packets sent to any address, expected `reply_waypoints` in [host]: the \
                           networks of the waypoints that they may pay for";
            faults.push(Fault::at(replies.span(), message));
        }
        if let Some(first) = self.reply_waypoints.first().filter(|_| !self.takes_replies()) {
            faults.push(Fault::at(first.span(), "waypoints without replies, expected `replies = true` in [host]"));
        }
        faults
    }

    /// Waypoints send from addresses that anybody may have, to this host's address of their family.
    fn waypoint_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        for named in self.receive_from.iter().chain(&self.reply_waypoints) {
            let prefix = named.get_ref();
            if is_martian(prefix.address()) {
                let message =
                    "no network of waypoints, expected one such as \"198.51.100.0/24\", and no special-purpose one";
                faults.push(Fault::at(named.span(), message));
            } else if self.addresses().of(prefix.afi()).is_none() {
                let key = if prefix.afi() == Afi::Ipv4 { "address" } else { "address6" };
                let message = format!(
                    "packets of these waypoints arrive at an address of their family, expected `{key}` in [host]"
                );
                faults.push(Fault::at(named.span(), message));
            }
        }
        faults
    }

    /// The priorities of the role's routing rules: one for what leaves the stamper, one for each rank of senders.
    pub fn priorities(&self) -> impl Iterator<Item = u32> + use<> {
        let first = self.table();
        first..=first + RANKS
    }
}

impl HostFile {
    /// Reads and checks the file, not the files that it names.
    pub fn parse(source: &Source) -> Result<Self, Failures> {
        let file: Self = source.parse()?;
        let faults = file.faults();
        if faults.is_empty() {
            return Ok(file);
        }
        Err(Failures(faults.into_iter().map(|fault| source.failure(fault)).collect()))
    }

    fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let (host, stamper) = (self.host.get_ref(), self.stamper.get_ref());
        let interface = host.interface.get_ref();
        let is_letter = |octet: u8| octet.is_ascii_alphanumeric() || octet == b'-';
        if interface.is_empty() || interface.len() > MAX_INTERFACE || !interface.bytes().all(is_letter) {
            let message = format!(
                "`{interface}` begins no interface's name, expected at most {MAX_INTERFACE} letters and digits"
            );
            faults.push(Fault::at(host.interface.span(), message));
        }
        faults.extend(range(&host.table, 256, MAX_TABLE, ""));
        if *host.mark.get_ref() == 0 || host.mark.get_ref().checked_add(MAX_SENDERS as u32).is_none() {
            let message = "every socket has mark 0, expected another number, with some free ones behind it";
            faults.push(Fault::at(host.mark.span(), message));
        }
        let has_address = host.addresses().all().next().is_some();
        if let Some(first) = host.refused_sources.first().filter(|_| !has_address) {
            faults.push(Fault::at(
                first.span(),
                "packets arrive at an address, expected `address` or `address6` in [host]",
            ));
        }
        if !has_address {
            let message =
                "capabilities for replies are handed over to an address, expected `address` or `address6` in [host]";
            let reply = stamper.routes.iter().filter_map(|route| Some(route.get_ref().reply.as_ref()?.span()));
            let replies = host.replies.iter().filter(|replies| *replies.get_ref()).map(Spanned::span);
            faults.extend(replies.chain(reply).map(|at| Fault::at(at, message)));
        }
        faults.extend(host.waypoint_faults());
        faults.extend(host.reply_faults());
        for user in host.users.iter().filter(|user| user.get_ref().number().is_none()) {
            faults.push(Fault::at(user.span(), NO_USER));
        }
        if let (None, Some(user)) = (&host.socket, host.users.first()) {
            faults.push(Fault::at(user.span(), "users without a socket, expected `socket` in [host]"));
        }
        stamper.faults(&mut faults);
        for rule in &stamper.rules {
            self.rule_faults(rule, &mut faults);
        }
        let senders: BTreeSet<_> = self.rules().iter().map(|rule| (rule.user, rule.mark)).collect();
        if senders.len() > MAX_SENDERS {
            let message = format!("rules for {} senders, expected at most {MAX_SENDERS}", senders.len());
            faults.push(Fault::at(self.stamper.span(), message));
        }
        faults
    }

    fn rule_faults(&self, rule: &Spanned<RuleSection>, faults: &mut Vec<Fault>) {
        let at = rule.span();
        let rule = rule.get_ref();
        if rule.to.is_none() && rule.user.is_none() && rule.mark.is_none() && rule.cgroup.is_none() {
            let message = "a rule for everybody's packets to anywhere, expected `to`, or who sends them";
            faults.push(Fault::at(at.clone(), message));
        }
        if let (Some(otherwise), None) = (&rule.otherwise, &rule.route) {
            let message = "packets without a route are never stamped, expected `route`, or no `otherwise`";
            faults.push(Fault::at(otherwise.span(), message));
        }
        if let Some(user) = &rule.user
            && user.get_ref().number().is_none()
        {
            faults.push(Fault::at(user.span(), NO_USER));
        }
        if let Some(mark) = &rule.mark {
            let own = *self.host.get_ref().mark.get_ref();
            if *mark.get_ref() == 0 || (own..=own.saturating_add(MAX_SENDERS as u32)).contains(mark.get_ref()) {
                let message =
                    "0 is every socket's mark, and those from [host] `mark` on are the role's, expected another";
                faults.push(Fault::at(mark.span(), message));
            }
            if rule.cgroup.is_some() {
                faults.push(Fault::at(
                    at,
                    "a mark and a control group, expected one of them: the group has a mark of its own",
                ));
            }
        }
        if let Some(cgroup) = &rule.cgroup {
            let path = cgroup.get_ref();
            let is_plain = |part: &str| {
                let is_fit = |octet: u8| octet.is_ascii_alphanumeric() || b".@_-:\\".contains(&octet);
                !part.is_empty() && part != "." && part != ".." && part.bytes().all(is_fit)
            };
            if path.len() > MAX_CGROUP || !path.split('/').all(is_plain) {
                let message = "no path of a control group, expected one such as \"system.slice/backup.service\"";
                faults.push(Fault::at(cgroup.span(), message));
            }
        }
    }

    /// The paths of control groups that rules name, each once; the mark of the first is one above the role's, and so on.
    pub fn cgroups(&self) -> Vec<&str> {
        let mut all: Vec<&str> = Vec::new();
        for cgroup in self.stamper.get_ref().rules.iter().filter_map(|rule| rule.get_ref().cgroup.as_ref()) {
            if !all.contains(&cgroup.get_ref().as_str()) {
                all.push(cgroup.get_ref());
            }
        }
        all
    }

    /// The mark of the control group with this index.
    pub fn cgroup_mark(&self, index: usize) -> u32 {
        self.host.get_ref().mark.get_ref().saturating_add(1 + index as u32)
    }

    /// The rules of the file and their destinations. One without `to` is there for each family: its IPv6 comes behind all others.
    pub fn rule_sections(&self) -> impl Iterator<Item = (Prefix, &Spanned<RuleSection>)> {
        let any = |address: IpAddr| Prefix::truncated(address, 0).ok();
        let (any_v4, any_v6) = (any(Ipv4Addr::UNSPECIFIED.into()), any(Ipv6Addr::UNSPECIFIED.into()));
        let rules = &self.stamper.get_ref().rules;
        let first = rules.iter().filter_map(move |rule| Some((rule.get_ref().to.or(any_v4)?, rule)));
        let both = rules.iter().filter(|rule| rule.get_ref().to.is_none());
        first.chain(both.filter_map(move |rule| Some((any_v6?, rule))))
    }

    /// What is wrong with routes and rules that no stamper takes, and where.
    pub fn locate(&self, error: ConfigError) -> Fault {
        let rule = match error {
            ConfigError::Twice(index) | ConfigError::NoRoute(index) | ConfigError::Delegation(index) => Some(index),
            ConfigError::Route(_) | ConfigError::Carriage(_) | ConfigError::Share(..) => None,
        };
        let mut fault = self.stamper.get_ref().locate(error);
        fault.span = rule.map_or(fault.span, |rule| self.rule_sections().nth(rule).map(|(_, section)| section.span()));
        fault
    }

    /// The rules with numbers in the place of names, in the order of [`Self::rule_sections`].
    pub fn rules(&self) -> Vec<Rule> {
        let (stamper, cgroups) = (self.stamper.get_ref(), self.cgroups());
        let rule = |(to, rule): (Prefix, &Spanned<RuleSection>)| {
            let rule = rule.get_ref();
            let route = rule.route.as_ref().and_then(|name| stamper.route(name.get_ref()));
            let action = match (route.and_then(|route| u16::try_from(route).ok()), rule.otherwise()) {
                (None, _) => RuleAction::Pass,
                (Some(route), Otherwise::Plain) => RuleAction::Take(route),
                (Some(route), Otherwise::Drop) => RuleAction::Require(route),
            };
            let group = rule.cgroup.as_ref().and_then(|path| cgroups.iter().position(|other| other == path.get_ref()));
            let mark = rule.mark.as_ref().map(|mark| *mark.get_ref()).or(group.map(|index| self.cgroup_mark(index)));
            // A name without a user is a fault; a number that nobody has keeps its packets apart in any case.
            let user = rule.user.as_ref().map(|user| user.get_ref().number().unwrap_or(u32::MAX));
            Rule { to, user, mark, action }
        };
        self.rule_sections().map(rule).collect()
    }

    /// The rules in force, each with its number in [`Self::rules`]. One without `to` is for both families, and its route for one, by
    /// `family`: what goes by the other is dropped if it may not leave unstamped; else the rule says nothing of it, and the next that fits
    /// decides.
    pub fn rules_in_force(&self, family: impl Fn(u16) -> Option<Afi>) -> Vec<(usize, Rule)> {
        let in_force = |(rule, (_, section)): (Rule, (Prefix, &Spanned<RuleSection>))| {
            let route = rule.action.route().filter(|_| section.get_ref().to.is_none());
            match (route, rule.action) {
                (Some(route), _) if family(route) == Some(rule.to.afi()) => Some(rule),
                (Some(_), RuleAction::Require(_)) => Some(Rule { action: RuleAction::Drop, ..rule }),
                (Some(_), _) => None,
                (None, _) => Some(rule),
            }
        };
        let all = self.rules().into_iter().zip(self.rule_sections()).map(in_force).enumerate();
        all.filter_map(|(number, rule)| Some((number, rule?))).collect()
    }

    /// Whether this rule is one without `to`, which is there for each family.
    pub fn is_of_both_families(&self, rule: &Rule) -> bool {
        let is_it = |other: &Rule| (other.to, other.user, other.mark) == (rule.to, rule.user, rule.mark);
        let mut all = self.rules().into_iter().zip(self.rule_sections());
        all.any(|(other, (_, section))| is_it(&other) && section.get_ref().to.is_none())
    }

    pub(super) fn checked(source: &Source) -> Checked {
        let file = match Self::parse(source) {
            Ok(file) => file,
            Err(failures) => return Checked::wrong("stamper", failures),
        };
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        match file.stamper.get_ref().file_fault(source, true) {
            // A new configuration needs no files yet.
            Some(FileFault::Missing(fault) | FileFault::Doubtful(fault)) => warnings.push(fault),
            Some(FileFault::Unusable(fault)) => errors.push(fault),
            None => {}
        }
        let host = file.host.get_ref();
        // With a socket users register their own.
        if file.stamper.get_ref().rules.is_empty() && !host.takes_replies() && host.socket.is_none() {
            let fault = Fault::at(file.stamper.span(), "no rules: no packet is stamped");
            warnings.push(fault.help("add a rule for the destinations that are to be reached through waypoints"));
        }
        warnings.extend(file.status.as_ref().and_then(status_warning));
        Checked::found("stamper", source, errors, warnings)
    }
}

/// What `wayleave init stamper` prints.
const TEMPLATE: &str = "# A stamper at a host: packets that you choose carry capabilities through waypoints; all others leave as ever.\n\
     # Run it with: wayleave run stamper --config FILE   (as root, or with CAP_NET_ADMIN and CAP_NET_RAW)\n\
     # Paths are relative to this file.\n\
     \n\
     [host]\n\
     # The TUN interfaces that the role makes: stamp0, stamp1, one for each kind of sender in the rules.\n\
     #interface = \"stamp\"\n\
     # This host's address. Packets that it stamps come from there.\n\
     #address = \"192.0.2.10\"\n\
     # The same of IPv6.\n\
     #address6 = \"2001:db8::10\"\n\
     # Which waypoints, besides those of its own routes and for replies, may send packets here with a header: they lose it.\n\
     #receive_from = [\"198.51.100.0/24\"]\n\
     # Networks that these never come from, besides this host's own: those that are trusted by address.\n\
     #refused_sources = [\"10.0.0.0/8\"]\n\
     # Replies to clients that hand over capabilities for them are stamped with these.\n\
     #replies = false\n\
     # Which waypoints these may be for; with `replies = true` it must be set.\n\
     #reply_waypoints = [\"198.51.100.0/24\"]\n\
     # Who is asked for secrets, at port 53, instead of the resolvers of /etc/resolv.conf.\n\
     #resolvers = [\"192.0.2.53\"]\n\
     # Where users register capabilities for their own packets (`wayleave stamp`), and who may besides root. The unit\n\
     # wayleave-stamper@NAME has the folder /run/wayleave/NAME for it.\n\
     #socket = \"/run/wayleave/desk/stamper.sock\"\n\
     #users = [\"backup\"]\n\
     # On a machine that forwards: networks whose packets are stamped as its own.\n\
     #sources = [\"192.0.2.0/24\"]\n\
     # The mark of packets that leave the stamper, and the first routing table and rule that it uses.\n\
     #mark = 1463877632\n\
     #table = 22100\n\
     \n\
     # A file has the line of a capability (wayleave cap grant, cap delegate), whose secrets are looked up by DNS, or the secrets\n\
     # themselves (wayleave cap lookup, cap mint). Files are read again when they change.\n\
     [stamper]\n\
     # Position in packets that are stamped already: before the next capability, or \"last\".\n\
     #position = \"next\"\n\
     # The index of this stamper, and the number of stampers, that share the capabilities.\n\
     #share = [0, 1]\n\
     # A route's capabilities may be of several principals: each pays for its own waypoint.\n\
     # With `reply`, servers' stampers are handed a delegation (of number `reply_id`) of these capabilities for this host's address.\n\
     routes = [{ name = \"transit\", capabilities = [\"desk.cap\"], sealed = false, udp = false, mtu = 1500 }]\n\
     # Who and where to: `user` (name or number), `mark` (of the socket), `cgroup` (path), or anybody; who is named may go without\n\
     # `to`, and the rule is for all destinations of IPv4 and IPv6. Rules of a user and a mark come first, then those of a mark or\n\
     # control group, of a user, of everybody; within each the longest prefix counts. A rule without a route leaves packets\n\
     # unchanged. Name servers' packets are never stamped. With `otherwise = \"drop\"` packets that\n\
     # cannot be stamped do not leave, also while the role does not run; else they leave as they are (\"plain\").\n\
     rules = [{ to = \"203.0.113.0/24\", route = \"transit\", user = \"nobody\" }]\n\
     \n\
     # Status pages and metrics, for you alone.\n\
     [status]\n\
     listen = \"127.0.0.1:8488\"\n";

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(host: &str, rules: &str) -> Result<HostFile, Failures> {
        let text = format!(
            "[host]\n{host}[stamper]\nroutes = [{{ name = \"paid\", capabilities = [\"a.cap\"] }}]\nrules = [{rules}]\n"
        );
        HostFile::parse(&Source::of_text("stamper.toml", &text))
    }

    #[test]
    fn a_rule_without_destinations_is_for_both_families_and_has_its_place_in_the_file() {
        let rules = "{ route = \"paid\", user = 7, otherwise = \"drop\" }, { to = \"2001:db8::/32\", route = \"paid\" }, { mark = 5 }";
        let file = parsed("", rules).expect("sound");
        let of = |rule: &Rule| (rule.to.to_string(), rule.user, rule.mark, rule.action);
        let expected = [
            ("0.0.0.0/0".to_owned(), Some(7), None, RuleAction::Require(0)),
            ("2001:db8::/32".to_owned(), None, None, RuleAction::Take(0)),
            ("0.0.0.0/0".to_owned(), None, Some(5), RuleAction::Pass),
            ("::/0".to_owned(), Some(7), None, RuleAction::Require(0)),
            ("::/0".to_owned(), None, Some(5), RuleAction::Pass),
        ];
        assert_eq!(file.rules().iter().map(of).collect::<Vec<_>>(), expected);
        let rules = &file.stamper.get_ref().rules;
        for (index, section) in [(0, 0), (1, 1), (2, 2), (3, 0), (4, 2)] {
            assert_eq!(file.locate(ConfigError::Twice(index)).span, Some(rules[section].span()), "{index}");
        }
        assert!(file.locate(ConfigError::Route(0)).span.is_some());
        assert_eq!([0, 1, 4].map(|index| file.is_of_both_families(&file.rules()[index])), [true, false, true]);
        assert!(parsed("", "{ route = \"paid\" }").is_err(), "everybody's packets to anywhere");
    }

    /// Everybody's packets that may not leave unstamped stay dropped, whatever rules of users have a route of the other family.
    #[test]
    fn a_rule_without_destinations_is_silent_about_the_family_that_its_route_lacks_or_drops_it() {
        let rules = "{ route = \"paid\", user = 7 }, { route = \"paid\", user = 8, otherwise = \"drop\" }, { mark = 5 }, \
                     { to = \"203.0.113.0/24\", route = \"paid\" }";
        let file = parsed("", rules).expect("sound");
        let in_force = |family| {
            let of = |(number, rule): (usize, Rule)| (number, rule.to.to_string(), rule.action);
            file.rules_in_force(|_| Some(family)).into_iter().map(of).collect::<Vec<_>>()
        };
        let [v4, v6, net] = ["0.0.0.0/0", "::/0", "203.0.113.0/24"].map(str::to_owned);
        let (take, require) = (RuleAction::Take(0), RuleAction::Require(0));
        let expected = [
            (0, v4.clone(), take),
            (1, v4.clone(), require),
            (2, v4.clone(), RuleAction::Pass),
            (3, net.clone(), take),
            (5, v6.clone(), RuleAction::Drop),
            (6, v6.clone(), RuleAction::Pass),
        ];
        assert_eq!(in_force(Afi::Ipv4), expected);
        let expected = [
            (1, v4.clone(), RuleAction::Drop),
            (2, v4, RuleAction::Pass),
            // That does not fit, which is said elsewhere.
            (3, net, take),
            (4, v6.clone(), take),
            (5, v6.clone(), require),
            (6, v6, RuleAction::Pass),
        ];
        assert_eq!(in_force(Afi::Ipv6), expected);
    }

    #[test]
    fn a_check_warns_that_nothing_is_stamped_unless_users_register_their_own() {
        let warnings = |host: &str| {
            let text = format!("[host]\n{host}[stamper]\nroutes = []\nrules = []\n");
            let checked = HostFile::checked(&Source::of_text("stamper.toml", &text));
            checked.warnings.iter().filter(|one| one.in_one_line().contains("no packet is stamped")).count()
        };
        assert_eq!((warnings(""), warnings("socket = \"stamper.sock\"\n")), (1, 0));
    }

    #[test]
    fn waypoints_send_to_an_address_of_their_family() {
        let v4 = "address = \"192.0.2.1\"\n";
        let v6 = "address6 = \"2001:db8:c0::1\"\n";
        let from = "receive_from = [\"2001:db8:a0::/48\"]\n";
        let replies = "replies = true\nreply_waypoints = [\"198.51.100.0/24\"]\n";
        for (host, is_sound) in [
            (format!("{v6}{from}"), true),
            (format!("{v4}{from}"), false),
            (from.to_owned(), false),
            (format!("{v4}{replies}"), true),
            (format!("{v6}{replies}"), false),
            (format!("{v4}{v6}{replies}{from}"), true),
            ("address6 = \"192.0.2.1\"\n".to_owned(), false),
            (format!("{v6}receive_from = [\"fe80::/64\"]\n"), false),
        ] {
            assert_eq!(parsed(&host, "").is_ok(), is_sound, "{host}");
        }
        let file = parsed(&format!("{v4}{v6}"), "").expect("sound");
        let addresses = file.host.get_ref().addresses();
        let [of_v4, of_v6]: [IpAddr; 2] = ["192.0.2.1", "2001:db8:c0::1"].map(|text| text.parse().expect("an address"));
        assert_eq!(addresses.all().collect::<Vec<_>>(), [of_v4, of_v6]);
        assert_eq!((addresses.towards(of_v6), addresses.of(Afi::Ipv4)), (Some(of_v6), Some(of_v4)));
    }
}
