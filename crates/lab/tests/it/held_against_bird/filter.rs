//! The same rules in BIRD's language, in the order of arouteserver: next hop, path, prefix, origin.

use std::fmt::Write as _;
use std::net::Ipv6Addr;

use wayleave_bgp::origins::Vrp;
use wayleave_core::{Afi, Asn};

use super::routes::{ANNOUNCERS, BOGONS4, BOGONS6, DROP4, DROP6, RECEIVERS, RS, lan4, lan6, profile};

/// The second number of the large communities in which BIRD says why it refuses a route; the third is arouteserver's number of the
/// reason, or one of ours.
pub(super) const REASON: u32 = 65_520;
pub(super) const BLACKHOLE_REFUSED: u32 = 100;

/// BIRD's own address.
const OWN6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// Reserved AS numbers (RFC 7607, RFC 6793, RFC 5398, RFC 6996, RFC 7300, IANA).
const BOGON_ASNS: &str = "0, 23456, 64496..65551, 65552..131071, 4200000000..4294967295";

/// BIRD as a route server with a session for each member, and one more that is sent everything, with the reasons. `session` is how a
/// session begins.
pub(super) fn configuration(vrps: &[Vrp], watcher: Asn, session: &dyn Fn(usize, Asn) -> String) -> String {
    let mut text =
        "log stderr { info, remote, warning, error, auth, fatal, bug };\nrouter id 192.0.2.1;\nprotocol device { }\n\
         roa4 table roas4;\nroa6 table roas6;\n"
            .to_owned();
    for (family, table, afi) in [("roa4", "roas4", Afi::Ipv4), ("roa6", "roas6", Afi::Ipv6)] {
        let _ = writeln!(text, "protocol static {{ {family} {{ table {table}; }};");
        for Vrp { prefix, max_length, asn } in vrps.iter().filter(|vrp| vrp.prefix.afi() == afi) {
            let _ = writeln!(text, "  route {prefix} max {max_length} as {};", asn.0);
        }
        text += "}\n";
    }
    let transit_free: Vec<String> = profile().transit_free.iter().map(|asn| asn.0.to_string()).collect();
    let _ = writeln!(text, "define BOGON_ASNS = [{BOGON_ASNS}];\ndefine TRANSIT_FREE = [{}];", transit_free.join(", "));
    let with_plus = |all: &[&str]| all.iter().map(|prefix| format!("{prefix}+")).collect::<Vec<_>>().join(", ");
    let _ = writeln!(
        text,
        "define BOGONS4 = [{}, 0.0.0.0/0];\ndefine BOGONS6 = [{}, ::/0];",
        with_plus(&BOGONS4),
        with_plus(&BOGONS6)
    );
    for (place, asn) in ANNOUNCERS.into_iter().enumerate() {
        text += &import_filter(place, asn);
        text += &protocol(&session(place, asn), true, "none", &format!("filter from_{place}"));
    }
    for (number, asn) in RECEIVERS.into_iter().enumerate() {
        let place = ANNOUNCERS.len() + number;
        text += &export_filter(place, asn);
        text += &protocol(&session(place, asn), true, &format!("filter to_{place}"), "none");
    }
    let place = ANNOUNCERS.len() + RECEIVERS.len();
    text + &protocol(&session(place, watcher), false, "all", "none")
}

fn protocol(session: &str, has_role: bool, export: &str, import: &str) -> String {
    let role = if has_role { "local role rs_server; " } else { "" };
    let channel = format!("gateway recursive; next hop keep; import {import}; export {export};");
    format!(
        "protocol bgp {{ {session} passive; rs client; {role}enforce first as off; interpret communities off; hold time 90;\n  \
         enable extended messages on;\n  ipv4 {{ {channel} }};\n  ipv6 {{ next hop address {OWN6}; {channel} }};\n}}\n"
    )
}

/// What is refused is kept with its reason, for the watcher.
fn import_filter(place: usize, asn: Asn) -> String {
    let profile = profile();
    let blackhole = profile.blackhole.as_ref().expect("offered");
    let (next_hop4, next_hop6, rs, asn_text) = (lan4(place), lan6(place), RS.0, asn.0);
    let may_blackhole = blackhole.permits(asn);
    let (v4, v6) = (profile.ipv4, profile.ipv6);
    format!(
        "filter from_{place}
int reason;
{{
  reason = 0;
  # What members may not say: these are the route server's own.
  bgp_large_community.delete([({rs}, {REASON}, *)]);
  if net.type = NET_IP4 && bgp_next_hop != {next_hop4} then reason = 5;
  else if net.type = NET_IP6 && bgp_next_hop != {next_hop6} then reason = 5;
  else if bgp_path.len > {} then reason = 1;
  else if bgp_path.first != {asn_text} then reason = 6;
  else if bgp_path.last != bgp_path.last_nonaggregated then reason = 7;
  else if bgp_path ~ BOGON_ASNS then reason = 7;
  else if delete(bgp_path, {asn_text}) ~ TRANSIT_FREE then reason = 8;
  else if net.type = NET_IP4 && net ~ BOGONS4 then reason = 2;
  else if net.type = NET_IP6 && net ~ BOGONS6 then reason = 2;
  else if (65535, 666) ~ bgp_community then {{
    if ! {may_blackhole} then reason = {BLACKHOLE_REFUSED};
  }}
  else if net.type = NET_IP4 && (net.len < {} || net.len > {}) then reason = 13;
  else if net.type = NET_IP6 && (net.len < {} || net.len > {}) then reason = 13;
  else if net.type = NET_IP4 && roa_check(roas4, net, bgp_path.last) = ROA_INVALID then reason = 14;
  else if net.type = NET_IP6 && roa_check(roas6, net, bgp_path.last) = ROA_INVALID then reason = 14;
  if reason > 0 then bgp_large_community.add(({rs}, {REASON}, reason));
  accept;
}}
",
        profile.max_hops, v4.shortest, v4.longest, v6.shortest, v6.longest
    )
}

/// A condition that any form of a community is there; standard forms only where the AS fits 16 bits.
fn any(standard: Option<(u32, u32)>, large: (u32, u32), extended: Option<(u32, u32)>) -> String {
    let mut forms = vec![format!("({}, {}, {}) ~ bgp_large_community", RS.0, large.0, large.1)];
    forms.extend(standard.filter(|pair| pair.1 <= 0xffff).map(|(a, b)| format!("({a}, {b}) ~ bgp_community")));
    forms.extend(
        extended
            .into_iter()
            .flat_map(|(a, b)| ["rt", "ro"].map(|kind| format!("({kind}, {a}, {b}) ~ bgp_ext_community"))),
    );
    format!("({})", forms.join(" || "))
}

fn export_filter(place: usize, receiver: Asn) -> String {
    let (rs, peer) = (RS.0, receiver.0);
    let both = |a, b, large| any(Some((a, b)), large, Some((a, b)));
    let (deny, allow) = (both(0, peer, (0, peer)), both(rs, peer, (1, peer)));
    let nobody = both(0, rs, (0, 0));
    let times = |times: u32| {
        format!("{} || {}", both(65_500 + times, rs, (100 + times, 0)), both(65_510 + times, peer, (100 + times, peer)))
    };
    let added = |number: u32| format!("{} || {}", both(number, rs, (number, 0)), both(number, peer, (number, peer)));
    // BIRD takes no ranges in the second place of extended communities.
    let own = |kind: &str| {
        let to_all = (65_501..=65_503).map(|number| format!("({kind}, {number}, {rs})"));
        let to_peer = [0, rs, 65_511, 65_512, 65_513, 65_281, 65_282].map(|number| format!("({kind}, {number}, *)"));
        to_all.chain(to_peer).collect::<Vec<_>>().join(", ")
    };
    format!(
        "filter to_{place}
int times;
int front;
{{
  if bgp_large_community ~ [({rs}, {REASON}, *)] then reject;
  if {deny} then reject;
  if ! {allow} && {nobody} then reject;
  times = 0;
  if {} then times = 3;
  else if {} then times = 2;
  else if {} then times = 1;
  front = bgp_path.first;
  if times > 0 then bgp_path.prepend(front);
  if times > 1 then bgp_path.prepend(front);
  if times > 2 then bgp_path.prepend(front);
  if {} then bgp_community.add((65535, 65281));
  if {} then bgp_community.add((65535, 65282));
  if (65535, 666) ~ bgp_community then {{
    bgp_community.add((65535, 65281));
    if net.type = NET_IP4 then bgp_next_hop = {DROP4}; else bgp_next_hop = {DROP6};
  }}
  bgp_large_community.delete([({rs}, *, *)]);
  bgp_community.delete([(0, *), ({rs}, *), (65501..65503, {rs}), (65511..65513, *), (65281..65282, *)]);
  bgp_ext_community.delete([{}]);
  bgp_ext_community.delete([{}]);
  accept;
}}
",
        times(3),
        times(2),
        times(1),
        added(65_281),
        added(65_282),
        own("rt"),
        own("ro"),
    )
}
