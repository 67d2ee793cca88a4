//! Who may have consent to what, as rules that an operator writes, with tests of them in the same file.
//!
//! [`PolicyFile`] has the shape of the TOML file; [`Policy::new`] checks it. The first rule that matches decides; without one
//! the answer is no. Conditions are three-valued (Kleene), since labels and whose a node ID is may not be known: a rule that allows
//! matches if it surely does, and one that refuses unless it surely does not.

use std::fmt;

use serde::Deserialize;
use wayleave_core::{IdentityKey, InnerTraffic};
use wayleave_packet::icing::header::{Tag, Version};

use crate::labels::Labels;

/// Rules and tests of a file, each.
pub const MAX_RULES: usize = 1024;
/// A consent lasts at most this many seconds: 60 minutes.
pub const MAX_SECONDS: u32 = 3_600;

/// The file as it is written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyFile {
    #[serde(default)]
    pub rule: Vec<Rule>,
    #[serde(default)]
    pub test: Vec<TestCase>,
}

/// A rule. A list that is empty matches everything. Nodes are written by a name of theirs or as `node:ed25519:` and 64 hexadecimal
/// digits.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// For logs and tests.
    pub name: String,
    /// Whether there is consent.
    pub allow: bool,
    /// Seconds that a consent lasts.
    #[serde(default = "default_seconds")]
    pub seconds: u32,
    /// Who sends.
    #[serde(default)]
    pub senders: Vec<String>,
    /// The sender's realm, as `realm:ed25519:` and 64 hexadecimal digits.
    #[serde(default)]
    pub realms: Vec<String>,
    /// First bits of the tag, such as `40000000/2`.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Which inner packets a consent is for, such as `tcp/22`; all if it is empty. The receiver's gateway sees to it: nodes on the way see
    /// what is sealed.
    #[serde(default)]
    pub inner: Vec<String>,
    /// What packets' proofs cover, and nodes so check: `payload`, or `sealed` for the ends of payloads that are sealed (and all of one in
    /// 64); both if it is empty.
    #[serde(default)]
    pub profiles: Vec<String>,
    /// From and to, in UTC, such as `08:00-18:00`; over midnight if from is later than to.
    pub hours: Option<String>,
    /// The node in front of ours on the path.
    #[serde(default)]
    pub before: Vec<String>,
    /// The node behind ours; `"receiver"` if ours is the last.
    #[serde(default)]
    pub after: Vec<String>,
    /// Every other node of the path must have all of these.
    #[serde(default)]
    pub labels: Vec<LabelCondition>,
    /// No other node of the path may have any of these.
    #[serde(default)]
    pub without_labels: Vec<LabelCondition>,
    /// Some other node of the path must have one of these.
    #[serde(default)]
    pub any_labels: Vec<LabelCondition>,
}

fn default_seconds() -> u32 {
    600
}

/// A label, and who must have signed it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelCondition {
    pub text: String,
    pub signer: String,
}

/// A test of the rules: a question, and the rule that must decide it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestCase {
    pub name: String,
    /// Whether there must be consent.
    pub allow: bool,
    /// The rule that must decide.
    pub rule: Option<String>,
    pub sender: String,
    pub realm: Option<String>,
    #[serde(default)]
    pub tag: String,
    /// A packet that is to be admitted, or not, such as `tcp/22`.
    pub inner: Option<String>,
    /// `payload` or `sealed`; `payload` if it is not set.
    #[serde(default)]
    pub profile: String,
    /// In UTC, such as `09:30`.
    #[serde(default)]
    pub time: String,
    pub before: Option<String>,
    pub after: Option<String>,
    /// Labels that every node of the path has in this test, and no others; without the key labels are not known, as in a process.
    pub labels: Option<Vec<LabelCondition>>,
}

/// What is wrong with a file: the operator erred.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("{0} rules or tests; the limit is {MAX_RULES}")]
    Count(usize),
    #[error("two rules are called {0:?}")]
    NameTaken(String),
    #[error("{place} {name:?}: `{value}` is not {expected}")]
    Value { place: &'static str, name: String, value: String, expected: &'static str },
}

/// A test that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TestFailure {
    pub test: String,
    /// Whether there is consent.
    pub allowed: bool,
    /// The rule that decided.
    pub rule: Option<String>,
    /// Whether the rule is for other packets than the test's.
    pub is_of_other: bool,
    /// Whether the labels were the test's own.
    pub has_labels: bool,
}

impl fmt::Display for TestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decided = if self.allowed { "allowed" } else { "refused" };
        match &self.rule {
            Some(rule) if self.is_of_other => {
                write!(f, "test {:?}: refused, since rule {rule:?} consents to other inner packets", self.test)?;
            }
            Some(rule) => write!(f, "test {:?}: {decided} by rule {rule:?}", self.test)?,
            None => write!(f, "test {:?}: {decided}, since no rule matches", self.test)?,
        }
        f.write_str(if self.has_labels { " (the labels are the test's own)" } else { "" })
    }
}

/// A node as rules see it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Subject {
    /// `None` if nobody is known to have the node ID.
    pub identity: Option<IdentityKey>,
    pub names: Vec<String>,
}

/// What a policy decides on.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    pub sender: &'a Subject,
    pub realm: [u8; 32],
    /// `None` if it is not known.
    pub tag: Option<Tag>,
    /// Of the packets that are to be sent; `None` if it is not known.
    pub packets: Option<Version>,
    /// Of the day in UTC, 0 to 1439.
    pub minute: u16,
    pub before: &'a Subject,
    /// `None` if the node is the last.
    pub after: Option<&'a Subject>,
    /// All nodes of the path but the one that consents.
    pub others: &'a [Subject],
    pub labels: &'a Labels,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Who {
    Name(String),
    Identity(IdentityKey),
    /// Nobody: our node is the last.
    Receiver,
}

impl Who {
    /// `None` if nobody is known to be the node, so that it may be anybody.
    fn matches(&self, subject: &Subject) -> Option<bool> {
        match self {
            Self::Receiver => Some(false),
            Self::Name(name) => subject.identity.map(|_| subject.names.contains(name)),
            Self::Identity(identity) => subject.identity.map(|known| known == *identity),
        }
    }
}

/// Whether all hold: no as soon as one does not, and not known if one is not known.
fn all(conditions: impl IntoIterator<Item = Option<bool>>) -> Option<bool> {
    let mut result = Some(true);
    for condition in conditions {
        match condition {
            Some(false) => return Some(false),
            Some(true) => {}
            None => result = None,
        }
    }
    result
}

/// Whether one holds.
fn any(conditions: impl IntoIterator<Item = Option<bool>>) -> Option<bool> {
    all(conditions.into_iter().map(not)).map(|none| !none)
}

fn not(condition: Option<bool>) -> Option<bool> {
    condition.map(|holds| !holds)
}

#[derive(Clone, Debug)]
struct Compiled {
    name: String,
    allow: bool,
    seconds: u32,
    senders: Vec<Who>,
    realms: Vec<IdentityKey>,
    tags: Vec<(u32, u8)>,
    inner: Vec<InnerTraffic>,
    profiles: Vec<Version>,
    hours: Option<(u16, u16)>,
    before: Vec<Who>,
    after: Vec<Who>,
    labels: Vec<(String, IdentityKey)>,
    without_labels: Vec<(String, IdentityKey)>,
    any_labels: Vec<(String, IdentityKey)>,
}

/// Checked rules.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    rules: Vec<Compiled>,
}

/// Reads values of one rule or test, and says where one is wrong.
struct Values<'a> {
    place: &'static str,
    name: &'a str,
}

impl Values<'_> {
    fn fault(&self, value: &str, expected: &'static str) -> PolicyError {
        PolicyError::Value { place: self.place, name: self.name.to_owned(), value: value.to_owned(), expected }
    }

    fn all<T>(
        &self,
        values: &[String],
        read: impl Fn(&Self, &str) -> Result<T, PolicyError>,
    ) -> Result<Vec<T>, PolicyError> {
        values.iter().map(|value| read(self, value)).collect()
    }

    fn who(&self, value: &str) -> Result<Who, PolicyError> {
        if value.contains(':') {
            return self.identity("node:", value).map(Who::Identity);
        }
        let name = value.parse::<crate::realm::Name>().map_err(|_| self.fault(value, "a name or key of a node"))?;
        Ok(Who::Name(name.as_str().to_owned()))
    }

    fn who_is_after(&self, value: &str) -> Result<Who, PolicyError> {
        if value == "receiver" { Ok(Who::Receiver) } else { self.who(value) }
    }

    /// A key of this kind, which may stand in front of it.
    fn identity(&self, kind: &str, value: &str) -> Result<IdentityKey, PolicyError> {
        let expected = match kind {
            "realm:" => "a realm's key: \"realm:ed25519:\" and 64 hexadecimal digits",
            _ => "a node's key: \"node:ed25519:\" and 64 hexadecimal digits",
        };
        let digits = value
            .strip_prefix(kind)
            .unwrap_or(value)
            .strip_prefix("ed25519:")
            .filter(|digits| digits.len() == 64)
            .map(str::as_bytes);
        let mut key = [0; 32];
        let pairs = digits.ok_or_else(|| self.fault(value, expected))?.as_chunks::<2>().0;
        for (octet, pair) in key.iter_mut().zip(pairs) {
            let digit = |digit: u8| (digit as char).to_digit(16);
            let both = digit(pair[0]).zip(digit(pair[1])).ok_or_else(|| self.fault(value, expected))?;
            *octet = (both.0 * 16 + both.1) as u8;
        }
        Ok(IdentityKey(key))
    }

    fn tag(&self, value: &str) -> Result<u32, PolicyError> {
        let is_hex = value.len() == 8 && value.bytes().all(|digit| digit.is_ascii_hexdigit());
        let tag = is_hex.then(|| u32::from_str_radix(value, 16).ok()).flatten();
        tag.ok_or_else(|| self.fault(value, "a tag of 8 hexadecimal digits"))
    }

    fn inner(&self, value: &str) -> Result<InnerTraffic, PolicyError> {
        let expected =
            "inner traffic, such as \"tcp/22\", \"udp/5000-5010\", \"tcp\", \"icmp\" or the number of another protocol";
        value.parse().map_err(|_| self.fault(value, expected))
    }

    fn profile(&self, value: &str) -> Result<Version, PolicyError> {
        match value {
            "payload" => Ok(Version::Standard),
            "sealed" => Ok(Version::Sealed),
            _ => Err(self.fault(value, "a profile: \"payload\" or \"sealed\"")),
        }
    }

    fn tags(&self, value: &str) -> Result<(u32, u8), PolicyError> {
        let expected = "the first bits of a tag, such as \"40000000/2\"";
        let (bits, depth) = value.split_once('/').ok_or_else(|| self.fault(value, expected))?;
        let bits = self.tag(bits)?;
        let depth: u8 = depth.parse().ok().filter(|depth| *depth <= 32).ok_or_else(|| self.fault(value, expected))?;
        let is_prefix = bits.trailing_zeros() >= u32::from(32 - depth);
        if is_prefix { Ok((bits, depth)) } else { Err(self.fault(value, expected)) }
    }

    fn minute(&self, value: &str) -> Result<u16, PolicyError> {
        let fault = || self.fault(value, "a time of day in UTC, such as \"08:00\"");
        let (hour, minute) = value.split_once(':').ok_or_else(fault)?;
        let is_two = |text: &str| text.len() == 2 && text.bytes().all(|digit| digit.is_ascii_digit());
        let (Ok(hour @ 0..=24), Ok(minute @ 0..60)) = (hour.parse::<u16>(), minute.parse::<u16>()) else {
            return Err(fault());
        };
        let is_time = value.split(':').all(is_two) && hour * 60 + minute <= 1440;
        if is_time { Ok(hour * 60 + minute) } else { Err(fault()) }
    }

    /// One packet: a protocol, and a port if it has ports.
    fn packet(&self, value: &str) -> Result<(u8, u16), PolicyError> {
        let traffic = self.inner(value)?;
        traffic.one().ok_or_else(|| self.fault(value, "one packet, such as \"tcp/22\" or \"icmp\""))
    }

    fn hours(&self, value: &str) -> Result<(u16, u16), PolicyError> {
        let ends = value.split_once('-').ok_or_else(|| self.fault(value, "a span of time, such as \"08:00-18:00\""))?;
        Ok((self.minute(ends.0)?, self.minute(ends.1)?))
    }

    fn labels(&self, values: &[LabelCondition]) -> Result<Vec<(String, IdentityKey)>, PolicyError> {
        values.iter().map(|label| Ok((label.text.clone(), self.identity("node:", &label.signer)?))).collect()
    }
}

impl Compiled {
    fn new(rule: &Rule) -> Result<Self, PolicyError> {
        let values = Values { place: "rule", name: &rule.name };
        if rule.seconds == 0 || rule.seconds > MAX_SECONDS {
            return Err(values.fault(&rule.seconds.to_string(), "1 to 3600 seconds"));
        }
        Ok(Self {
            name: rule.name.clone(),
            allow: rule.allow,
            seconds: rule.seconds,
            senders: values.all(&rule.senders, Values::who)?,
            realms: values.all(&rule.realms, |values, realm| values.identity("realm:", realm))?,
            tags: values.all(&rule.tags, Values::tags)?,
            inner: values.all(&rule.inner, Values::inner)?,
            profiles: values.all(&rule.profiles, Values::profile)?,
            hours: rule.hours.as_deref().map(|hours| values.hours(hours)).transpose()?,
            before: values.all(&rule.before, Values::who)?,
            after: values.all(&rule.after, Values::who_is_after)?,
            labels: values.labels(&rule.labels)?,
            without_labels: values.labels(&rule.without_labels)?,
            any_labels: values.labels(&rule.any_labels)?,
        })
    }

    fn decides(&self, question: &Question<'_>) -> bool {
        self.matches(question).unwrap_or(!self.allow)
    }

    fn matches(&self, question: &Question<'_>) -> Option<bool> {
        let one_of = |list: &[Who], subject: &Subject| match list {
            [] => Some(true),
            list => any(list.iter().map(|who| who.matches(subject))),
        };
        let is_after = || match question.after {
            None => Some(self.after.is_empty() || self.after.contains(&Who::Receiver)),
            Some(after) => one_of(&self.after, after),
        };
        let covers = |(bits, depth): &(u32, u8)| match question.tag {
            _ if *depth == 0 => Some(true),
            tag => tag.map(|tag| (tag.0 ^ bits) >> (32 - depth) == 0),
        };
        let has = |subject: &Subject, (text, signer): &(String, IdentityKey)| {
            question.labels.has(subject.identity.as_ref()?, text, signer)
        };
        let some_has = |labels: &[(String, IdentityKey)]| {
            any(labels.iter().map(|label| any(question.others.iter().map(|node| has(node, label)))))
        };
        let all_have = || all(self.labels.iter().map(|label| all(question.others.iter().map(|node| has(node, label)))));
        let is_time = self.hours.is_none_or(|(from, to)| {
            let minute = question.minute;
            if from <= to { (from..to).contains(&minute) } else { minute >= from || minute < to }
        });
        all([
            Some(is_time),
            if self.profiles.is_empty() {
                Some(true)
            } else {
                question.packets.map(|one| self.profiles.contains(&one))
            },
            one_of(&self.senders, question.sender),
            Some(self.realms.is_empty() || self.realms.contains(&IdentityKey(question.realm))),
            if self.tags.is_empty() { Some(true) } else { any(self.tags.iter().map(covers)) },
            one_of(&self.before, question.before),
            is_after(),
            all_have(),
            not(some_has(&self.without_labels)),
            if self.any_labels.is_empty() { Some(true) } else { some_has(&self.any_labels) },
        ])
    }

    fn has_label_condition(&self) -> bool {
        !(self.labels.is_empty() && self.without_labels.is_empty() && self.any_labels.is_empty())
    }
}

impl Policy {
    /// Checks the rules of a file.
    ///
    /// # Errors
    /// The first thing that is wrong with them.
    pub fn new(file: &PolicyFile) -> Result<Self, PolicyError> {
        let count = file.rule.len().max(file.test.len());
        if count > MAX_RULES {
            return Err(PolicyError::Count(count));
        }
        for (at, rule) in file.rule.iter().enumerate() {
            if file.rule[..at].iter().any(|other| other.name == rule.name) {
                return Err(PolicyError::NameTaken(rule.name.clone()));
            }
        }
        Ok(Self { rules: file.rule.iter().map(Compiled::new).collect::<Result<_, _>>()? })
    }

    /// The name of the rule that decides, if one matches, and the seconds that a consent lasts, if there is one.
    #[must_use]
    pub fn decide(&self, question: &Question<'_>) -> (Option<&str>, Option<u32>) {
        let rule = self.rules.iter().find(|rule| rule.decides(question));
        (rule.map(|rule| rule.name.as_str()), rule.filter(|rule| rule.allow).map(|rule| rule.seconds))
    }

    /// Which inner packets of a sender are admitted: `None` if there is no consent, no entry if all are. What is not known of the way denies.
    #[must_use]
    pub fn admitted(&self, question: &Question<'_>) -> Option<&[InnerTraffic]> {
        let rule = self.rules.iter().find(|rule| rule.decides(question))?;
        rule.allow.then_some(&rule.inner[..])
    }

    /// Whether any rule is for some inner packets alone.
    #[must_use]
    pub fn names_inner(&self) -> bool {
        self.rules.iter().any(|rule| !rule.inner.is_empty())
    }

    /// The rules that have conditions on the way, or on how packets prove it, of which a receiver knows nothing but its sender.
    pub fn rules_on_ways(&self) -> impl Iterator<Item = &str> {
        let has_way = |rule: &&Compiled| {
            !(rule.before.is_empty() && rule.after.is_empty() && rule.profiles.is_empty()) || rule.has_label_condition()
        };
        self.rules.iter().filter(has_way).map(|rule| rule.name.as_str())
    }

    /// The rules with a condition on labels, and whether each allows. While no labels are known, one that allows never matches, and
    /// one that refuses matches whatever labels the path has.
    pub fn rules_on_labels(&self) -> impl Iterator<Item = (&str, bool)> {
        self.rules.iter().filter(|rule| rule.has_label_condition()).map(|rule| (rule.name.as_str(), rule.allow))
    }

    /// Runs the tests of the file; returns those that failed.
    ///
    /// # Errors
    /// If a test is not written as one.
    pub fn run_tests(&self, file: &PolicyFile) -> Result<Vec<TestFailure>, PolicyError> {
        let mut failures = Vec::new();
        for test in &file.test {
            let rule = self.decide_test(test)?;
            let inner = test.inner.as_deref().map(|inner| Values { place: "test", name: &test.name }.packet(inner));
            let inner = inner.transpose()?;
            let has = |rule: &Compiled, (protocol, port)| {
                rule.inner.is_empty() || rule.inner.iter().any(|traffic| traffic.has(protocol, port))
            };
            let consenting = rule.filter(|rule| rule.allow);
            let allowed = consenting.is_some_and(|rule| inner.is_none_or(|inner| has(rule, inner)));
            let name = rule.map(|rule| rule.name.as_str());
            let is_right = allowed == test.allow && (test.rule.is_none() || test.rule.as_deref() == name);
            if !is_right {
                failures.push(TestFailure {
                    test: test.name.clone(),
                    allowed,
                    rule: name.map(str::to_owned),
                    is_of_other: consenting.is_some() && !allowed,
                    has_labels: test.labels.is_some(),
                });
            }
        }
        Ok(failures)
    }

    fn decide_test(&self, test: &TestCase) -> Result<Option<&Compiled>, PolicyError> {
        let values = Values { place: "test", name: &test.name };
        // A node without a key of its own in the test has one that no rule names.
        let subject = |text: &str, stand_in: u8| -> Result<Subject, PolicyError> {
            Ok(match values.who(text)? {
                Who::Identity(identity) => Subject { identity: Some(identity), names: Vec::new() },
                Who::Name(name) => Subject { identity: Some(IdentityKey([stand_in; 32])), names: vec![name] },
                Who::Receiver => Subject::default(),
            })
        };
        let sender = subject(&test.sender, 0xf1)?;
        let before = test.before.as_deref().map_or(Ok(sender.clone()), |text| subject(text, 0xf2))?;
        let after = test.after.as_deref().map(|text| subject(text, 0xf3)).transpose()?;
        let others: Vec<Subject> =
            [Some(sender.clone()), Some(before.clone()), after.clone()].into_iter().flatten().collect();
        let mut labels = Labels::default();
        if let Some(of_test) = &test.labels {
            let of_test = values.labels(of_test)?;
            for node in others.iter().filter_map(|node| node.identity) {
                labels.know(node);
                for (text, signer) in &of_test {
                    labels.insert(node, text, *signer);
                }
            }
        }
        let realm = test.realm.as_deref().map_or(Ok(IdentityKey([0; 32])), |realm| values.identity("realm:", realm))?;
        let tag = if test.tag.is_empty() { 0 } else { values.tag(&test.tag)? };
        let packets = if test.profile.is_empty() { Version::Standard } else { values.profile(&test.profile)? };
        let minute = if test.time.is_empty() { 720 } else { values.minute(&test.time)? };
        let question = Question {
            sender: &sender,
            realm: realm.0,
            tag: Some(Tag(tag)),
            packets: Some(packets),
            minute,
            before: &before,
            after: after.as_ref(),
            others: &others,
            labels: &labels,
        };
        Ok(self.rules.iter().find(|rule| rule.decides(&question)))
    }
}
