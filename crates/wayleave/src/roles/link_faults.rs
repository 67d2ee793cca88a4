//! Why a role's links are down, in an operator's words: each cause is logged once and kept for `show status`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::{error, warn};
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::frames::FrameError;
use wayleave_runtime::identity::Fingerprint;
use wayleave_runtime::links::ConnectFailure;
use wayleave_runtime::tls::{Refusal, RefusalReason};

/// Clocks of two machines that differ by no more are taken for equal: a time service keeps them within a second, and a link may
/// be slow to come up.
pub const CLOCK_TOLERANCE: u64 = 30;

/// The other end of a link, as this role's configuration names it.
#[derive(Clone, Debug)]
pub struct LinkEndpoint {
    /// Such as `party 1`.
    pub name: String,
    /// Where it is.
    pub address: String,
    /// The settings of its address and of its fingerprint.
    pub address_setting: &'static str,
    pub pin_setting: &'static str,
    /// This role's own certificate.
    pub own: Fingerprint,
    /// What is to be done where the other end does not know this role's certificate.
    pub unknown_there: &'static str,
    /// Another fingerprint of the same configuration, and its setting: the two may be swapped.
    pub other_pin: Option<(Fingerprint, &'static str)>,
}

impl LinkEndpoint {
    /// What a failure means, and what to do.
    pub fn describe(&self, failure: &ConnectFailure) -> String {
        let Self { name, address, address_setting, pin_setting, own, unknown_there, other_pin } = self;
        let now = || utc(unix_now().secs());
        match failure {
            ConnectFailure::Refused(Refusal { fingerprint, reason }) => match reason {
                RefusalReason::Unknown | RefusalReason::WrongRole(_)
                    if let Some((_, setting)) = other_pin.filter(|(other, _)| other == fingerprint) =>
                {
                    format!(
                        "{address} shows the certificate {fingerprint}, and {pin_setting} names another: it is the one that {setting} \
                         names; are the two pins, or the two addresses, swapped?"
                    )
                }
                RefusalReason::Unknown | RefusalReason::WrongRole(_) => format!(
                    "{address} shows the certificate {fingerprint}, and {pin_setting} names another: if {name} has a new key, \
                     compare the fingerprint with its operator over a second channel and set the pin; if not, somebody else \
                     answers there"
                ),
                RefusalReason::OtherNode(node) => format!(
                    "{address} is the node {node}, and {pin_setting} names another: compare both with the realm's operator"
                ),
                RefusalReason::Own => format!(
                    "{address} shows this process's own certificate: {address_setting} leads back here, or one key file is \
                     used twice"
                ),
                RefusalReason::Expired => format!(
                    "the certificate of {name} has expired by this machine's clock, which shows {}: its operator makes a new \
                     key, or the clock is wrong",
                    now()
                ),
                RefusalReason::NotYetValid => format!(
                    "the certificate of {name} is not valid yet by this machine's clock, which shows {}: set the clock",
                    now()
                ),
                RefusalReason::Malformed => format!("{address} shows a certificate that is none of Wayleave's"),
            },
            ConnectFailure::NotAccepted(_) => {
                format!("{name} at {address} does not accept the certificate of this key file, {own}: {unknown_there}")
            }
            ConnectFailure::Removed => format!(
                "{name} at {address} has removed the certificate of this key file, {own}: it was a member's, and is never accepted \
                 again; ask both operators why, and come back with a new key (`wayleave keys new`) and a new request, signed with the old \
                 one too (`wayleave members request --beside OLD.key`), or other members hold the new slot"
            ),
            ConnectFailure::Timeout => format!(
                "no answer from {name} at {address}: compare {address_setting} with where it listens, and look for a firewall \
                 on the way"
            ),
            ConnectFailure::Closed(why) => {
                format!("{address} ends the connection ({why}): another program listens there, or {name} is overloaded")
            }
            ConnectFailure::NoProtocol => format!("no link to {name} at {address}: {failure}"),
            ConnectFailure::System(why) => {
                format!("cannot reach {name} at {address} ({why}): compare {address_setting}, and see whether it runs")
            }
        }
    }

    /// That the other end's clock differs from this machine's, if it does.
    pub fn describe_clock(&self, theirs: u64) -> Option<String> {
        let ours = unix_now().secs();
        let (by, way) = if ours >= theirs { (ours - theirs, "ahead of") } else { (theirs - ours, "behind") };
        (by > CLOCK_TOLERANCE).then(|| {
            format!(
                "this machine's clock is {by} seconds {way} that of {}: one of the two is wrong; certificates and attested \
                 routes depend on it (a time service such as chrony keeps it right)",
                self.name
            )
        })
    }
}

/// What a fault is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// The link to this peer cannot be opened, or has ended; gone when it comes up.
    Link(u32),
    /// What the configuration says and this peer refuses; gone when all is well.
    Refusal(u32),
    /// That this peer says that the member was removed, and since when; gone when all is well.
    Removal(u32),
    /// That this peer refuses the member's key as one that was removed, which says less.
    RemovedKey(u32),
    /// The clocks of this machine and of this peer.
    Clock(u32),
}

/// The faults of a role at this moment. Clones are views of the same.
#[derive(Clone, Debug, Default)]
pub struct LinkFaults(Arc<Mutex<BTreeMap<Fault, String>>>);

impl LinkFaults {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Fault, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps it; whether it is new.
    pub fn keep(&self, about: Fault, words: &str) -> bool {
        self.lock().insert(about, words.to_owned()).is_none_or(|before| before != words)
    }

    /// Keeps it and logs it, if it is new: as an error where only an operator can help.
    pub fn report(&self, about: Fault, words: &str, is_error: bool) {
        if !self.keep(about, words) {
            return;
        }
        if is_error { error!("{words}") } else { warn!("{words}") }
    }

    /// A connector's failure.
    pub fn failed(&self, peer: u32, endpoint: &LinkEndpoint, failure: &ConnectFailure) {
        let is_error =
            matches!(failure, ConnectFailure::Refused(_) | ConnectFailure::NotAccepted(_) | ConnectFailure::Removed);
        if matches!(failure, ConnectFailure::Removed) {
            let now = utc(unix_now().secs());
            let words = format!("{} has removed this key: seen at {now}", endpoint.name);
            self.lock().entry(Fault::RemovedKey(peer)).or_insert(words);
        }
        self.report(Fault::Link(peer), &endpoint.describe(failure), is_error);
    }

    /// A link ended, for this reason. It is logged with its consequence, by whoever knows that.
    pub fn ended(&self, peer: u32, name: &str, reason: &str) {
        // Only the other end knows why it closed.
        let hint = match reason == FrameError::Closed.to_string() {
            true => {
                format!("; if that goes on, the log and `wayleave show status` of {name} say why: ask its operator")
            }
            false => String::new(),
        };
        self.keep(Fault::Link(peer), &format!("the link to {name} ended: {reason}{hint}"));
    }

    /// A link came up; `clock` is what its peer's shows.
    pub fn up(&self, peer: u32, endpoint: &LinkEndpoint, clock: Option<u64>) {
        self.lock().remove(&Fault::Link(peer));
        let Some(clock) = clock else { return };
        match endpoint.describe_clock(clock) {
            Some(words) => self.report(Fault::Clock(peer), &words, false),
            None => drop(self.lock().remove(&Fault::Clock(peer))),
        }
    }

    /// All links do what they are for.
    pub fn well(&self) {
        self.lock().retain(|about, _| matches!(about, Fault::Clock(_)));
    }

    /// All of them, for views.
    pub fn list(&self) -> Vec<String> {
        self.lock().values().cloned().collect()
    }

    /// That this member was removed, if a peer says so; in the words of the one that says most.
    pub fn removal(&self) -> Option<String> {
        let all = self.lock();
        let is_removal = |about: &&Fault| matches!(about, Fault::Removal(_) | Fault::RemovedKey(_));
        all.keys().find(is_removal).and_then(|about| all.get(about)).cloned()
    }

    /// Why there is no link to a peer, if that is known: what it refuses, rather than that the link has ended.
    pub fn of(&self, peer: u32) -> Option<String> {
        let all = self.lock();
        let causes = [Fault::Removal, Fault::RemovedKey, Fault::Refusal, Fault::Link].map(|about| about(peer));
        causes.iter().find_map(|about| all.get(about)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> LinkEndpoint {
        LinkEndpoint {
            name: "party 1".to_owned(),
            address: "192.0.2.251:7001".to_owned(),
            address_setting: "`party1.address`",
            pin_setting: "`party1.pin`",
            own: Fingerprint([7; 32]),
            unknown_there: "ask",
            other_pin: Some((Fingerprint([2; 32]), "`party2.pin`")),
        }
    }

    #[test]
    fn pins_that_are_swapped_are_recognised() {
        let refused = |shown| {
            ConnectFailure::Refused(Refusal { fingerprint: Fingerprint([shown; 32]), reason: RefusalReason::Unknown })
        };
        let words = endpoint().describe(&refused(2));
        assert!(words.contains("is the one that `party2.pin` names; are the two pins"), "{words}");
        assert!(!endpoint().describe(&refused(1)).contains("swapped"));
    }

    #[test]
    fn each_failure_says_what_to_do_in_the_words_of_the_configuration() {
        let refused = |reason| ConnectFailure::Refused(Refusal { fingerprint: Fingerprint([1; 32]), reason });
        for (failure, word) in [
            (refused(RefusalReason::Unknown), "`party1.pin` names another"),
            (refused(RefusalReason::Own), "leads back here"),
            (refused(RefusalReason::Expired), "makes a new key"),
            (refused(RefusalReason::NotYetValid), "set the clock"),
            (refused(RefusalReason::Malformed), "none of Wayleave's"),
            (ConnectFailure::NotAccepted("alert".into()), "sha256:0707"),
            (ConnectFailure::Removed, "`wayleave members request --beside OLD.key`"),
            (ConnectFailure::Timeout, "firewall"),
            (ConnectFailure::Closed("end".into()), "another program"),
            (ConnectFailure::System("refused".into()), "see whether it runs"),
        ] {
            let words = endpoint().describe(&failure);
            assert!(words.contains(word), "{words}");
        }
    }

    #[test]
    fn a_refusal_stays_while_links_come_and_go_and_clocks_stay_when_all_is_well() {
        let faults = LinkFaults::default();
        faults.report(Fault::Refusal(1), "another slot", true);
        faults.ended(1, "party 1", "closed");
        assert_eq!(faults.of(1).as_deref(), Some("another slot"));
        faults.ended(2, "party 2", "the peer closed the connection");
        assert!(faults.of(2).is_some_and(|words| words.ends_with("of party 2 say why: ask its operator")));
        faults.up(2, &endpoint(), None);
        faults.up(1, &endpoint(), Some(unix_now().secs() - 100));
        assert_eq!(faults.list().len(), 2);
        faults.well();
        assert!(matches!(&faults.list()[..], [one] if one.contains("100 seconds ahead of that of party 1")));
        faults.up(1, &endpoint(), Some(unix_now().secs()));
        assert_eq!(faults.list(), [""; 0]);
    }
}
