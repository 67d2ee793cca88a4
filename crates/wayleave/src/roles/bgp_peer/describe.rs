//! How the log names a BGP peer, and what it says when a session ends or an UPDATE is malformed.

use std::fmt;
use std::net::IpAddr;

use wayleave_bgp::notification::{cease, code, open};
use wayleave_bgp::{Nlri, Notification, Problem};

const COMPARE: &str = "compare the router's configuration of this neighbour with [router] and [exchange] asn";
/// Problems and routes of one malformed UPDATE that are logged.
const SHOWN_PROBLEMS: usize = 4;

/// How the log names the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct RouterLabel {
    pub(super) address: Option<IpAddr>,
}

impl fmt::Display for RouterLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(f, "the router at {address}"),
            None => f.write_str("the router"),
        }
    }
}

/// What was wrong with an UPDATE, and the routes that are gone for it: the first few of each.
pub fn describe_malformed<'a>(problems: &[Problem], routes: impl Iterator<Item = &'a Nlri>) -> String {
    let problems: Vec<String> = problems.iter().take(SHOWN_PROBLEMS).map(ToString::to_string).collect();
    let mut routes: Vec<String> = routes.take(SHOWN_PROBLEMS + 1).map(|nlri| nlri.prefix.to_string()).collect();
    if routes.len() > SHOWN_PROBLEMS {
        routes[SHOWN_PROBLEMS] = "more".to_owned();
    }
    let problems = problems.join(", ");
    if routes.is_empty() { problems } else { format!("{problems}; routes withdrawn or ignored: {}", routes.join(", ")) }
}

/// What the router is told when this process ends.
pub(super) const SHUTDOWN_TEXT: &str = "wayleave is stopping";

/// Where to look after the peer has broken the protocol.
pub(super) fn describe_fault(notification: &Notification, router: &RouterLabel) -> String {
    match notification.code {
        code::OPEN => COMPARE.to_owned(),
        _ => format!(
            "{router} sent what RFC 4271 does not allow, or something on the way changes it: see its log and its software's \
             version; the session is tried again"
        ),
    }
}

/// What to do where the router's role does not fit, or where it states none and one is required.
pub(super) fn describe_role(states_one: bool, router: &RouterLabel) -> String {
    let otherwise = if states_one { "set `role = \"off\"` in [router]" } else { "take `strict_role` out of [router]" };
    format!(
        "this proxy is a route server, and {router} its client: say so there (BIRD: `local role rs_client;`, FRR: `neighbor .. local-role \
         rs-client`), or {otherwise}"
    )
}

/// Where to look after the peer has ended the session.
pub(super) fn describe_end(notification: &Notification, router: &RouterLabel) -> String {
    // A Hard Reset says the same, and that nothing is kept.
    let inner = notification.of_hard_reset();
    let notification = inner.as_ref().unwrap_or(notification);
    match (notification.code, notification.subcode) {
        (code::OPEN, open::ROLE_MISMATCH) => describe_role(true, router),
        (code::OPEN, _) | (code::CEASE, cease::PEER_DECONFIGURED | cease::CONNECTION_REJECTED) => COMPARE.to_owned(),
        (code::CEASE, cease::MAXIMUM_PREFIXES) => {
            format!("{router} takes no more prefixes from here: raise its limit for this neighbour, or announce fewer")
        }
        (code::CEASE, cease::OUT_OF_RESOURCES) => format!("{router} is short of memory or another resource"),
        // BIRD repeats the last text that it was sent.
        (code::CEASE, _) if notification.data.ends_with(SHUTDOWN_TEXT.as_bytes()) => format!(
            "whoever runs {router} did that, and its software repeats what this proxy said when it stopped last; the session is tried again"
        ),
        (code::CEASE, _) => format!("whoever runs {router} did that; the session is tried again"),
        (code::HOLD_TIMER_EXPIRED, _) => format!("{router} did not hear this end in time: look at the way to it"),
        _ => format!("{router} says that this end sent what it does not take: see its log for the message"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_after_a_session_fits_its_end() {
        let router = RouterLabel { address: Some([192, 0, 2, 1].into()) };
        let unknown = RouterLabel { address: None };
        let with = |code, subcode| Notification { code, subcode, data: Vec::new() };
        for (code, subcode) in [(3, 1), (3, 9), (3, 10), (1, 2)] {
            let words = describe_fault(&with(code, subcode), &router);
            assert!(!words.contains("[exchange] asn") && words.contains("see its log"), "{code}/{subcode}: {words}");
        }
        assert_eq!(describe_fault(&with(2, 2), &router), COMPARE);
        let maintenance = describe_end(&with(6, 2), &router);
        assert_eq!(maintenance, "whoever runs the router at 192.0.2.1 did that; the session is tried again");
        assert!(describe_end(&with(6, 1), &router).contains("raise its limit"));
        assert_eq!(describe_end(&with(6, 3), &router), COMPARE);
        let echo = Notification { data: [&[20], SHUTDOWN_TEXT.as_bytes()].concat(), ..with(6, 2) };
        assert!(describe_end(&echo, &router).contains("did that, and its software repeats what this proxy said"));
        let hard = Notification { data: vec![6, 3], ..with(6, 9) };
        assert_eq!(describe_end(&hard, &router), COMPARE, "what a Hard Reset holds");
        let mismatch = describe_end(&with(2, 11), &router);
        assert_eq!(mismatch, describe_role(true, &router));
        assert!(mismatch.contains("`local role rs_client;`") && mismatch.contains("`role = \"off\"`"), "{mismatch}");
        let strict = describe_role(false, &router);
        assert!(strict.contains("take `strict_role` out of [router]") && !strict.contains("off"), "{strict}");
        assert_eq!((router.to_string(), unknown.to_string()), ("the router at 192.0.2.1".into(), "the router".into()));
    }

    #[test]
    fn a_malformed_update_is_reported_with_attribute_and_prefixes() {
        let problem = Problem {
            attribute: Some(wayleave_bgp::AttributeCode::ORIGIN),
            fault: wayleave_bgp::Fault::OriginValue(7),
            action: wayleave_bgp::Action::TreatAsWithdraw,
        };
        let routes: Vec<Nlri> =
            (0..6).map(|number| Nlri::new(format!("10.{number}.0.0/16").parse().expect("a prefix"))).collect();
        let one = "ORIGIN (1): origin 7 is undefined: treated as withdraw";
        assert_eq!(describe_malformed(&[problem], [].iter()), one);
        let all = describe_malformed(&[problem], routes.iter());
        let list = "10.0.0.0/16, 10.1.0.0/16, 10.2.0.0/16, 10.3.0.0/16, more";
        assert_eq!(all, format!("{one}; routes withdrawn or ignored: {list}"));
    }
}
