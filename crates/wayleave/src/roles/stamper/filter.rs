//! The stamper's table of nftables: the marks of control groups, and what drops packets that may leave in no other way than stamped and
//! that the stamper does not see.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use wayleave_core::{Afi, Prefix};
use wayleave_dataplane::stamper::{Rule, RuleAction, SenderClass};

use crate::config::stamper::MAX_SENDERS;

/// The table.
pub const TABLE: &str = "wayleave_stamper";
/// Its counter of packets that were dropped.
pub const DROPPED: &str = "dropped";

/// What IPv6 needs on a link, which no rule of everybody's is about: neighbours are asked for from ordinary addresses, too. What a user or a
/// mark may not send goes by no exception: the kernel's own packets have neither. Neighbour discovery has passed no router (RFC 4861 section
/// 7.1.1), and reaches none.
const LINK: [&str; 2] = [
    "ip6 daddr { fe80::/10, ff02::/16 } accept",
    "ip6 hoplimit 255 icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, nd-redirect } accept",
];

/// What is sent by a socket of this machine, whoever's.
const ANY_SOCKET: &str = "meta skuid 0-4294967294";

/// What the table says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter {
    /// The mark of what leaves the stamper.
    pub own: u32,
    /// How the names of its interfaces begin.
    pub interface: String,
    /// Control groups that rules name: path and mark.
    pub groups: Vec<(String, u32)>,
    /// The inode numbers of those that are there. The table has these and not the paths: a group that is made anew needs another table.
    pub there: BTreeMap<String, u64>,
    pub rules: Vec<Rule>,
    /// Networks whose packets pass through this machine and are stamped.
    pub sources: Vec<Prefix>,
}

impl Filter {
    /// Whether any rule has packets dropped that are not stamped.
    pub fn is_closed(&self) -> bool {
        self.rules.iter().any(|rule| rule.action.is_required())
    }

    pub fn is_needed(&self) -> bool {
        !self.groups.is_empty() || self.is_closed()
    }

    /// The paths of groups that are not there.
    pub fn missing(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().map(|(path, _)| path.as_str()).filter(|path| !self.there.contains_key(*path))
    }

    /// The names of all interfaces that there may be: how they begin may be the beginning of another's.
    fn interfaces(&self) -> String {
        let names: Vec<String> = (0..MAX_SENDERS).map(|number| format!("\"{}{number}\"", self.interface)).collect();
        names.join(", ")
    }

    /// Commands of `nft` that make the table, or another one of it: whoever reads it sees the old rules or the new ones. The counter
    /// goes on.
    pub fn commands(&self) -> String {
        let chains = [
            ("marks", "type route hook output priority mangle"),
            // Behind all routing: where packets are sent, the kernel still has the interface of before they were marked.
            ("closed", "type filter hook postrouting priority filter"),
        ];
        let mut out = format!("add table inet {TABLE}\nadd counter inet {TABLE} {DROPPED}\n");
        for (chain, hook) in chains {
            let _ = writeln!(out, "add chain inet {TABLE} {chain} {{ {hook}; policy accept; }}");
            let _ = writeln!(out, "flush chain inet {TABLE} {chain}");
        }
        let mut rule = |chain: &str, rule: &str| _ = writeln!(out, "add rule inet {TABLE} {chain} {rule}");
        rule("marks", &format!("meta mark {} accept", self.own));
        // The last mark that is set stays: what is in a group within another is that group's.
        let mut groups: Vec<_> = self.groups.iter().filter(|(path, _)| self.there.contains_key(path)).collect();
        let level = |path: &str| path.split('/').count();
        groups.sort_by_key(|(path, _)| level(path));
        for (path, mark) in groups {
            let level = level(path);
            rule("marks", &format!("socket cgroupv2 level {level} \"{path}\" meta mark set {mark}"));
        }
        if !self.is_closed() {
            return out;
        }
        let mut rule = |text: &str| rule("closed", text);
        // What goes to the stamper, and what has left it: it decides, or has decided.
        rule(&format!("meta mark {} accept", self.own));
        rule(&format!("oifname {{ \"lo\", {} }} accept", self.interfaces()));
        rule("meta l4proto { tcp, udp } th dport 53 accept");
        rule("meta l4proto { tcp, udp } th sport 53 accept");
        // In the order of `Rules::find`, so that the first one that fits decides.
        let mut rules = self.rules.clone();
        let rank = |rule: &Rule| SenderClass { user: rule.user, mark: rule.mark, to: Vec::new() }.rank();
        rules.sort_by_key(|rule| (rank(rule), Reverse(rule.to.len())));
        let mut link = Some(LINK);
        for Rule { to, user, mark, action } in rules {
            let verdict = match action {
                RuleAction::Require(_) | RuleAction::Drop => format!("counter name {DROPPED} drop"),
                RuleAction::Pass | RuleAction::Take(_) => "accept".to_owned(),
            };
            let by_mark = mark.map_or(String::new(), |mark| format!("meta mark {mark} "));
            let by_user = user.map_or(String::new(), |user| format!("meta skuid {user} "));
            let family = if to.afi() == Afi::Ipv4 { "ip" } else { "ip6" };
            let rest = format!("{family} daddr {to} {verdict}");
            if (user, mark) == (None, None) {
                // Everybody's come last.
                link.take().into_iter().flatten().for_each(&mut rule);
                // This machine's own, and what passes through it from these networks. A socket may send from an address of IPv6 that the
                // machine does not have (`IPV6_FREEBIND`).
                rule(&format!("fib saddr type local {rest}"));
                if to.afi() == Afi::Ipv6 {
                    rule(&format!("{ANY_SOCKET} {rest}"));
                }
                let of_family = self.sources.iter().filter(|source| source.afi() == to.afi());
                let sources: Vec<String> = of_family.map(ToString::to_string).collect();
                if !sources.is_empty() {
                    rule(&format!("{family} saddr {{ {} }} {rest}", sources.join(", ")));
                }
            } else {
                rule(&format!("{by_mark}{by_user}{rest}"));
            }
        }
        out
    }
}

/// Commands that remove the table.
pub fn removal() -> String {
    format!("add table inet {TABLE}\ndelete table inet {TABLE}\n")
}

/// Commands that print the counter, and what they print.
pub fn question() -> String {
    format!("list counter inet {TABLE} {DROPPED}\n")
}

pub fn answer(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    words.find(|word| *word == "packets")?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(to: &str, user: Option<u32>, mark: Option<u32>, action: RuleAction) -> Rule {
        Rule { to: to.parse().expect("a prefix"), user, mark, action }
    }

    fn filter(rules: Vec<Rule>) -> Filter {
        Filter {
            own: 9,
            interface: "stamp".to_owned(),
            groups: Vec::new(),
            there: BTreeMap::new(),
            rules,
            sources: Vec::new(),
        }
    }

    /// The rules of a chain, in their order.
    fn chain(filter: &Filter, chain: &str) -> Vec<String> {
        let begin = format!("add rule inet {TABLE} {chain} ");
        filter.commands().lines().filter_map(|line| line.strip_prefix(&begin)).map(str::to_owned).collect()
    }

    #[test]
    fn only_groups_that_are_there_have_marks_and_nothing_is_dropped_unless_a_rule_says_so() {
        let mut filter = filter(vec![rule("0.0.0.0/0", None, Some(10), RuleAction::Take(0))]);
        assert!(!filter.is_needed());
        filter.groups = vec![("system.slice/a.service".to_owned(), 10), ("b".to_owned(), 11)];
        filter.there.insert("system.slice/a.service".to_owned(), 557);
        assert!(filter.is_needed() && !filter.is_closed());
        assert_eq!(filter.missing().collect::<Vec<_>>(), ["b"]);
        assert_eq!(
            chain(&filter, "marks"),
            ["meta mark 9 accept", "socket cgroupv2 level 2 \"system.slice/a.service\" meta mark set 10"]
        );
        assert!(chain(&filter, "closed").is_empty());
    }

    /// Whichever way round they are configured.
    #[test]
    fn a_group_within_another_has_its_own_mark() {
        for turn in [false, true] {
            let mut filter = filter(Vec::new());
            filter.groups =
                vec![("apps".to_owned(), 10), ("apps/backup".to_owned(), 11), ("apps/backup/now".to_owned(), 12)];
            filter.there = filter.groups.iter().map(|(path, _)| (path.clone(), 1)).collect();
            if turn {
                filter.groups.reverse();
            }
            let marks: Vec<String> =
                chain(&filter, "marks").iter().map(|rule| rule[rule.len() - 2..].to_owned()).collect();
            assert_eq!(marks[1..], ["10", "11", "12"]);
        }
    }

    #[test]
    fn the_first_rule_of_the_table_that_fits_is_the_one_that_the_stamper_goes_by() {
        let mut filter = filter(vec![
            rule("0.0.0.0/0", None, None, RuleAction::Require(0)),
            rule("203.0.113.0/24", Some(7), None, RuleAction::Require(0)),
            rule("203.0.113.9/32", Some(7), None, RuleAction::Pass),
            rule("198.51.100.0/24", None, Some(77), RuleAction::Require(0)),
            rule("198.51.100.0/24", Some(7), Some(77), RuleAction::Take(0)),
        ]);
        let interfaces = filter.interfaces();
        assert!(interfaces.starts_with("\"stamp0\", \"stamp1\", ") && interfaces.ends_with(", \"stamp255\""));
        let begins = [
            "meta mark 9 accept".to_owned(),
            format!("oifname {{ \"lo\", {interfaces} }} accept"),
            "meta l4proto { tcp, udp } th dport 53 accept".to_owned(),
            "meta l4proto { tcp, udp } th sport 53 accept".to_owned(),
        ];
        let drop = "counter name dropped drop";
        let rules = [
            "meta mark 77 meta skuid 7 ip daddr 198.51.100.0/24 accept".to_owned(),
            format!("meta mark 77 ip daddr 198.51.100.0/24 {drop}"),
            "meta skuid 7 ip daddr 203.0.113.9/32 accept".to_owned(),
            format!("meta skuid 7 ip daddr 203.0.113.0/24 {drop}"),
            LINK[0].to_owned(),
            LINK[1].to_owned(),
            format!("fib saddr type local ip daddr 0.0.0.0/0 {drop}"),
        ];
        let expected = [&begins[..], &rules].concat();
        assert!(filter.is_closed());
        assert_eq!(chain(&filter, "closed"), expected);
        filter.sources = vec!["192.0.2.0/24".parse().expect("a prefix"), "10.0.0.0/8".parse().expect("a prefix")];
        let of_sources = format!("ip saddr {{ 192.0.2.0/24, 10.0.0.0/8 }} ip daddr 0.0.0.0/0 {drop}");
        assert_eq!(chain(&filter, "closed"), [expected, vec![of_sources]].concat());
    }

    #[test]
    fn rules_of_both_families_stand_in_one_table_and_links_stay_open_for_whom_no_rule_names() {
        let mut filter = filter(vec![
            rule("0.0.0.0/0", Some(7), None, RuleAction::Require(0)),
            rule("::/0", Some(7), None, RuleAction::Drop),
            rule("2001:db8::/32", None, None, RuleAction::Require(1)),
            rule("2001:db8:5::/48", None, None, RuleAction::Pass),
        ]);
        filter.sources = vec!["192.0.2.0/24".parse().expect("a prefix"), "2001:db8:1::/48".parse().expect("a prefix")];
        let all = chain(&filter, "closed");
        let expected = [
            "meta skuid 7 ip daddr 0.0.0.0/0 counter name dropped drop",
            "meta skuid 7 ip6 daddr ::/0 counter name dropped drop",
            "ip6 daddr { fe80::/10, ff02::/16 } accept",
            "ip6 hoplimit 255 icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, nd-redirect } accept",
            "fib saddr type local ip6 daddr 2001:db8:5::/48 accept",
            "meta skuid 0-4294967294 ip6 daddr 2001:db8:5::/48 accept",
            "ip6 saddr { 2001:db8:1::/48 } ip6 daddr 2001:db8:5::/48 accept",
            "fib saddr type local ip6 daddr 2001:db8::/32 counter name dropped drop",
            "meta skuid 0-4294967294 ip6 daddr 2001:db8::/32 counter name dropped drop",
            "ip6 saddr { 2001:db8:1::/48 } ip6 daddr 2001:db8::/32 counter name dropped drop",
        ];
        assert_eq!(all[all.len() - expected.len()..], expected);
        assert!(filter.commands().lines().all(|line| line.contains(" inet ")));
    }

    #[test]
    fn the_counter_is_read_from_what_nft_prints() {
        let text = "table inet wayleave_stamper {\n\tcounter dropped {\n\t\tpackets 12 bytes 29\n\t}\n}\n";
        assert_eq!((answer(text), answer(""), answer("packets x")), (Some(12), None, None));
    }
}
