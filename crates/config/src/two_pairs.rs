//! Two pairs of parties, as every exchange runs two route servers: a member's proxy has one machine for each, with keys, a state and a
//! session with the router of its own, and one policy. What is made for one pair is bound to its name, so that no two have the same.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_route_server::key_roles::KeyRole;
use wayleave_runtime::identity::Identity;

use super::data::DataSection;
use super::member::{ExchangeSection, MemberConfig, MemberFile, MemberSection, RouterSection};
use super::{Fault, Source};
use crate::key_files::attestation::Keys;

/// Pairs of one proxy: our own limit. Exchanges run two route servers, and each pair costs what a proxy costs.
pub const MOST_PAIRS: usize = 4;

/// `[[pair]]`: another pair of parties, beside that of `[member]`, `[exchange]` and `[router]`. Its name is its exchange's.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairSection {
    pub member: MemberSection,
    pub exchange: ExchangeSection,
    pub router: Spanned<RouterSection>,
    /// Data are of one exchange.
    pub data: Option<DataSection>,
}

impl MemberFile {
    /// What the file of a proxy with this pair alone would be.
    pub(super) fn of_pair(&self, pair: &PairSection) -> Self {
        let PairSection { member, exchange, router, data } = pair.clone();
        Self { member, exchange, router, data, pair: Vec::new(), ..self.clone() }
    }

    /// What two pairs may not have in common, by the file alone.
    pub(super) fn pair_faults(&self) -> Vec<Fault> {
        let further = self.pair.iter().map(Spanned::get_ref);
        let all: Vec<(&MemberSection, &ExchangeSection, &Spanned<RouterSection>)> =
            [(&self.member, &self.exchange, &self.router)]
                .into_iter()
                .chain(further.map(|pair| (&pair.member, &pair.exchange, &pair.router)))
                .collect();
        let mut faults = Vec::new();
        if let Some(beyond) = self.pair.get(MOST_PAIRS - 1) {
            let message = format!("{} pairs, expected {MOST_PAIRS} at most", all.len());
            faults.push(Fault::at(beyond.span(), message));
        }
        for (index, (member, exchange, router)) in all.iter().enumerate().skip(1) {
            for (other, of, towards) in &all[..index] {
                let name = of.name.get_ref();
                let mut same = |is_same: bool, span: Range<usize>, what: &str, help: &str| {
                    if is_same {
                        let message = format!("the same {what} as of the pair `{name}`, expected another");
                        faults.push(Fault::at(span, message).help(help));
                    }
                };
                let (own, others) = (router.get_ref(), towards.get_ref());
                same(name == exchange.name.get_ref(), exchange.name.span(), "name", OWN_NAME);
                same(member.key.get_ref() == other.key.get_ref(), member.key.span(), "key file", OWN_KEYS);
                same(member.state.get_ref() == other.state.get_ref(), member.state.span(), "state", OWN_STATE);
                for party in [&exchange.party1, &exchange.party2] {
                    let is_theirs =
                        [&of.party1, &of.party2].into_iter().any(|of| of.pin.get_ref() == party.pin.get_ref());
                    same(is_theirs, party.pin.span(), "party", OWN_PARTIES);
                }
                let is_operators = exchange.operators.get_ref().iter().any(|key| of.operators.get_ref().contains(key));
                same(is_operators, exchange.operators.span(), "operator's key", OWN_PARTIES);
                if own.asn.get_ref() != others.asn.get_ref() {
                    let message =
                        format!("{} here, expected {}, as of `{name}`", own.asn.get_ref(), others.asn.get_ref());
                    faults.push(Fault::at(own.asn.span(), message).help("a proxy is one member's: its AS is one"));
                }
                let mut same = |is_same: bool, span: Range<usize>, what: &str| {
                    if is_same {
                        let message = format!("the same {what} as of the pair `{name}`, expected another");
                        faults.push(Fault::at(span, message).help(OWN_SESSION));
                    }
                };
                let is_id = own.router_id.get_ref() == others.router_id.get_ref();
                same(is_id, own.router_id.span(), "BGP identifier");
                let listens = own.listen.as_ref().map(Spanned::get_ref);
                same(
                    listens.is_some() && listens == others.listen.as_ref().map(Spanned::get_ref),
                    own.listen.as_ref().map_or(router.span(), Spanned::span),
                    "address to listen at",
                );
                let bound = |router: &RouterSection| router.bind.as_ref().map(|bind| *bind.get_ref());
                let connects = own.connect.is_some() && own.connect == others.connect && bound(own) == bound(others);
                same(connects, router.span(), "address towards the router");
            }
        }
        faults
    }
}

const OWN_NAME: &str = "objects, sessions and member sets are bound to the exchange's name: with one name a pair could use what was made for the other";
const OWN_KEYS: &str =
    "`wayleave keys new` creates one for each pair: with one key a pair could use what was signed for the other";
const OWN_STATE: &str = "each pair has a file of its own, so that what happens to one leaves the other as it is";
const OWN_PARTIES: &str = "a pair is two parties with keys of their own: a party in both pairs would hold both halves of what members share, or end both";
const OWN_SESSION: &str = "the router has a session with each pair, as with two route servers: give each its own `listen`, `bind` and \
                           `router_id`";

impl MemberConfig {
    /// The configurations of all pairs, that of `[exchange]` first. Each is as that of a proxy with this pair alone.
    pub fn pairs(&self) -> impl Iterator<Item = &MemberConfig> {
        [self].into_iter().chain(&self.further)
    }

    /// The name of this configuration's pair.
    #[must_use]
    pub fn pair_name(&self) -> &str {
        self.file.exchange.name.get_ref()
    }

    /// A key of one pair that another has as well, with the file that has it or the setting: what is signed with it for one counts for
    /// the other.
    ///
    /// The keys of attestation are the AS's, and sign for every member of every exchange.
    #[must_use]
    pub fn shared_by_pairs(&self, source: &Source) -> Option<Fault> {
        let mut known: BTreeMap<[u8; 32], (KeyRole, &str)> = BTreeMap::new();
        for config in self.pairs() {
            let key = &config.file.member.key;
            let Ok(identity) = Identity::load(&source.resolve(key.get_ref())) else { continue };
            let keys = config.keys(&identity, &[]);
            if let Some((role, (first, pair))) = keys.iter().find_map(|(role, key)| Some((role, known.get(key)?))) {
                let message = format!("{role} is also {first} of the pair `{pair}`, expected a key of its own");
                let exchange = &config.file.exchange;
                let span = match role {
                    KeyRole::PartyCertificate(1) => exchange.party1.pin.span(),
                    KeyRole::PartyCertificate(_) => exchange.party2.pin.span(),
                    KeyRole::Operator(_) => exchange.operators.span(),
                    _ => key.span(),
                };
                return Some(Fault::at(span, message).help(OWN_KEYS));
            }
            known.extend(keys.into_iter().map(|(role, key)| (key, (role, config.pair_name()))));
        }
        self.few_time_fault(source)
    }

    /// A few-time key signs by slots of time that one state counts, and a second machine would use them again.
    fn few_time_fault(&self, source: &Source) -> Option<Fault> {
        let signing =
            self.file.attestation.as_ref()?.get_ref().keys.signing.as_ref().filter(|_| !self.further.is_empty())?;
        let path: PathBuf = source.resolve(signing.get_ref());
        let keys = Keys::load("attest", &path).ok()?;
        keys.pairs().iter().any(|(_, key)| key.slots().is_some()).then(|| {
            let message = "a few-time key beside [[pair]], expected keys that may sign without end";
            let help = "each pair signs for itself, and a few-time key must sign in one place: `wayleave keys attest` without its suite";
            Fault::at(signing.span(), message).help(help)
        })
    }
}

#[cfg(test)]
mod tests {
    use wayleave_crypto::secret::Secret;
    use wayleave_crypto::sign::SigningKey;

    use super::*;
    use wayleave_runtime::identity::Fingerprint;

    use crate::PublicKey;
    use crate::member::ROLE;

    fn operator(number: u8) -> String {
        PublicKey(SigningKey::from_seed(&Secret::new([number; 32])).verifying_key()).to_string()
    }

    /// A pair that has nothing in common with that of the template.
    fn pair() -> String {
        let pin = |number: u8| Fingerprint([number; 32]).to_string();
        format!(
            "[[pair]]\n[pair.member]\nname = \"alpha\"\nslot = 3\nkey = \"alpha-2.key\"\nstate = \"alpha-2.redb\"\n[pair.exchange]\n\
             name = \"example-ix-rs2\"\nasn = 64496\noperators = [\"{}\", \"{}\"]\n\
             party1 = {{ address = \"127.0.0.1:7003\", pin = \"{}\" }}\nparty2 = {{ address = \"127.0.0.1:7004\", pin = \"{}\" }}\n\
             [pair.router]\nlisten = \"127.0.0.3:1790\"\nasn = 64497\nrouter_id = \"192.0.2.102\"\n",
            operator(21),
            operator(22),
            pin(1),
            pin(2)
        )
    }

    fn parsed(more: &str) -> Result<MemberConfig, Vec<String>> {
        let source = Source::of_text("member.toml", &((ROLE.template)(1) + more));
        MemberConfig::parse(&source)
            .map_err(|failures| failures.0.iter().map(|failure| failure.in_one_line()).collect())
    }

    #[test]
    fn each_pair_is_as_a_proxy_with_this_pair_alone_and_has_the_policy_of_all() {
        let rule = "[[rule]]\ndirection = \"export\"\nhide_from = 64500\n";
        let config = parsed(&(rule.to_owned() + &pair())).expect("a configuration");
        let names: Vec<&str> = config.pairs().map(MemberConfig::pair_name).collect();
        assert_eq!(names, ["example-ix", "example-ix-rs2"]);
        let [first, second] = [&config, &config.further[0]];
        assert_eq!((*first.file.member.slot.get_ref(), *second.file.member.slot.get_ref()), (0, 3));
        assert_eq!(second.file.rule.len(), 1);
        assert!(second.file.pair.is_empty() && second.further.is_empty());
        assert_eq!(parsed("").expect("the single form").pairs().count(), 1);
    }

    #[test]
    fn two_pairs_have_nothing_in_common_but_the_member() {
        let template = (ROLE.template)(1);
        let line = |begins: &str| {
            let line = template.lines().find(|line| line.starts_with(begins)).expect("a line of the template");
            line.to_owned() + "\n"
        };
        let with = |begins: &str, other: &str| {
            let text = pair();
            let own = text.lines().find(|line| line.starts_with(begins)).expect("a line of the pair").to_owned() + "\n";
            parsed(&text.replace(&own, other)).expect_err("refused")
        };
        for (begins, what) in [
            ("name = \"example-ix", "the same name as of the pair `example-ix`, expected another"),
            ("key = ", "the same key file as"),
            ("state = ", "the same state as"),
            ("party1 = ", "the same party as"),
            ("operators = ", "the same operator's key as"),
        ] {
            let faults = with(begins, &line(begins));
            assert!(faults.iter().any(|fault| fault.contains(what)), "{begins}: {faults:?}");
        }
        for (begins, other, what) in [
            ("listen = ", line("listen = \"127.0.0.2:1790"), "the same address to listen at as of"),
            ("router_id = ", line("router_id = "), "the same BGP identifier as of"),
            ("asn = 64497", "asn = 64498\n".to_owned(), "AS64498 here, expected AS64497, as of `example-ix`"),
        ] {
            let faults = with(begins, &other);
            assert!(faults.iter().any(|fault| fault.contains(what)), "{begins}: {faults:?}");
        }
        let again = |number: u8| {
            let text = pair().replace("rs2", &format!("rs{number}")).replace("alpha-2", &format!("alpha-{number}"));
            let text =
                text.replace("127.0.0.3:", &format!("127.0.0.{number}:")).replace("2.102", &format!("2.{number}"));
            let text = text.replace(&operator(21), &operator(number)).replace(&operator(22), &operator(number + 100));
            let pin = |of: u8| Fingerprint([of; 32]).to_string();
            text.replace(&pin(1), &pin(number)).replace(&pin(2), &pin(number + 100))
        };
        let many = |count: u8| parsed(&(10..10 + count).map(again).collect::<String>());
        assert_eq!(many(3).expect("as many as are allowed").pairs().count(), MOST_PAIRS);
        let faults = many(4).expect_err("too many");
        assert!(faults.iter().any(|fault| fault.contains("5 pairs, expected 4 at most")), "{faults:?}");
    }
}
