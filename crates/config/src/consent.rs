//! The configuration of a consent server, and its policy's file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_control::consent::{Policy, PolicyFile, REQUESTS, TagKeys};
use wayleave_control::realm::Roles;
use wayleave_core::IdentityKey;
use wayleave_packet::icing::mint::tag_epoch;
use wayleave_runtime::clock::unix_now;

use super::check::{Checked, RoleConfig};
use super::machine::{absent_address, state_fault, taken_by_status};
use super::overlay::{MAX_REQUESTS, OverlaySection, identity};
use super::parse::{NodeKey, Text};
use super::rs::{FileFault, StatusSection, example, range, status_warning};
use super::{EXAMPLE_REALM, Fault, Source};
use crate::failure::{Failure, Failures, Outcome};
use crate::key_files::node::{TagKeyFile, load_branch};

/// Nodes that a server consents for.
const MAX_NODES: usize = 1_024;

const INNER_ELSEWHERE: &str = "rules name inner packets, which only the receiver's gateway sees: its `consent_policy` has to be this file or a copy of it";

/// `run consent`.
pub const ROLE: RoleConfig = RoleConfig {
    name: "consent",
    section: "consent",
    sections: "[consent] and [overlay]",
    check: ConsentFile::checked,
    template: |_| template(),
};

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsentFile {
    pub consent: ConsentSection,
    pub overlay: Spanned<OverlaySection>,
    pub status: Option<StatusSection>,
}

/// `[consent]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsentSection {
    pub listen: Spanned<Text<SocketAddr>>,
    /// Rules, and tests of them.
    pub policy: Spanned<PathBuf>,
    /// Each decision, one JSON object a line.
    pub audit: Spanned<PathBuf>,
    /// What one node may ask for in a second.
    #[serde(default = "default_requests")]
    pub requests_per_second: Spanned<u64>,
    /// The nodes that it consents for.
    #[serde(default)]
    pub node: Vec<Spanned<NodeSection>>,
}

/// `[[consent.node]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSection {
    pub identity: Spanned<Text<NodeKey>>,
    /// All keys of its tags.
    pub tags: Option<Spanned<PathBuf>>,
    /// The node gives its keys itself, as its `[overlay]` says.
    #[serde(default)]
    pub entrusted: bool,
    /// Prefixes of its tags, each for one epoch, that its provider delegated.
    #[serde(default)]
    pub delegated: Vec<Spanned<PathBuf>>,
}

fn default_requests() -> Spanned<u64> {
    Spanned::new(0..0, REQUESTS.into())
}

impl ConsentFile {
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
        let mut faults = self.overlay.get_ref().faults();
        faults.extend(range(&self.consent.requests_per_second, 1, MAX_REQUESTS, "requests a second"));
        let nodes = &self.consent.node;
        if nodes.len() > MAX_NODES {
            let message = format!("{} nodes, expected at most {MAX_NODES}", nodes.len());
            faults.push(Fault { span: None, message, help: None });
        }
        for (at, node) in nodes.iter().enumerate() {
            let (span, node) = (node.span(), node.get_ref());
            if nodes[..at].iter().any(|other| other.get_ref().identity.get_ref() == node.identity.get_ref()) {
                faults.push(Fault::at(node.identity.span(), "the same node twice, expected each once"));
            }
            if node.tags.is_none() && node.delegated.is_empty() && !node.entrusted {
                faults.push(Fault::at(span, "a node without keys, expected `entrusted = true`, `tags` or `delegated`"));
            }
            if let Some(tags) = node.tags.as_ref().filter(|_| node.entrusted) {
                let message = "both `tags` and `entrusted`, expected one of them: the node gives all its keys, or the file has them";
                faults.push(Fault::at(tags.span(), message));
            }
        }
        faults.extend(self.overlay.get_ref().end_faults("consent server"));
        if let Some(neighbour) = self.overlay.get_ref().neighbour.first() {
            let message = "a consent server forwards nothing, expected no neighbours";
            faults.push(Fault::at(neighbour.span(), message));
        }
        faults.extend(taken_by_status(self.status.as_ref(), &[self.consent.listen.get_ref().0]));
        faults
    }

    /// The policy, if its rules are well formed and its own tests pass, and the file that it was read from.
    pub fn policy(&self, source: &Source) -> Outcome<(Policy, PolicyFile)> {
        load_policy(&self.consent.policy, source)
    }

    /// The keys of each node.
    pub fn nodes(&self, source: &Source) -> Outcome<BTreeMap<IdentityKey, TagKeys>> {
        let now = tag_epoch(unix_now().secs() as u32);
        let mut nodes = BTreeMap::new();
        for node in self.consent.node.iter().map(Spanned::get_ref) {
            let fault = |named: &Spanned<PathBuf>, failure: Failure| source.failure(Fault::of(named.span(), &failure));
            let masters = match &node.tags {
                Some(named) => {
                    let keys = TagKeyFile::load(&source.resolve(named.get_ref()));
                    keys.map_err(|failure| fault(named, failure))?.masters()
                }
                None => Vec::new(),
            };
            let mut keys = if node.entrusted { TagKeys::entrusted() } else { TagKeys::new(masters) };
            for named in &node.delegated {
                let branch = load_branch(&source.resolve(named.get_ref())).map_err(|failure| fault(named, failure))?;
                if branch.scope().0 >= now && !keys.delegate(branch, now) {
                    return Err(fault(named, Failure::new("too many delegated prefixes for one node")).into());
                }
            }
            nodes.insert(identity(node.identity.get_ref()), keys);
        }
        Ok(nodes)
    }

    fn file_faults(&self, source: &Source, policy: Option<&(Policy, PolicyFile)>) -> Vec<FileFault> {
        let overlay = self.overlay.get_ref();
        let mut faults = overlay.file_faults(source);
        let consent = &self.consent;
        faults.extend(state_fault(&consent.audit, source));
        let sort = |failures: Failures, named: &Spanned<PathBuf>| {
            let exists = source.resolve(named.get_ref()).exists();
            let fault = move |failure: Failure| match exists {
                true => FileFault::Unusable(Fault::of(named.span(), &failure)),
                false => FileFault::Missing(Fault::of(named.span(), &failure)),
            };
            failures.0.into_iter().map(fault).collect::<Vec<_>>()
        };
        if let Some((policy, file)) = policy {
            let doubt = |message: String| FileFault::Doubtful(Fault::at(consent.policy.span(), message));
            faults.extend(unknown_labels(policy).map(doubt));
            faults.extend(policy.names_inner().then(|| doubt(INNER_ELSEWHERE.to_owned())));
            let tests = file.test.iter().filter(|test| test.labels.is_some());
            faults.extend(tests.map(|test| doubt(format!("test {:?}: the labels are the test's own", test.name))));
        }
        let mut known: Vec<([u8; 32], String)> = Vec::new();
        for node in consent.node.iter().map(Spanned::get_ref) {
            if let Some(named) = &node.tags {
                let path = source.resolve(named.get_ref());
                if let Err(failure) = TagKeyFile::load(&path) {
                    faults.extend(sort(failure.into(), named));
                } else if let Ok(octets) = std::fs::read(&path).map(zeroize::Zeroizing::new) {
                    // They are secrets: only their hash is kept.
                    let hash = wayleave_crypto::hash::hash("wayleave/check/tags", &[&octets]);
                    let other = known.iter().find(|(other, _)| *other == hash).map(|(_, name)| name.clone());
                    if let Some(other) = other {
                        let message = format!("the same keys as in {other}: each node has tag keys of its own");
                        let help = "bring the server a copy of this node's own `tags.key`: with another node's it refuses every packet";
                        faults.push(FileFault::Doubtful(Fault::at(named.span(), message).help(help)));
                    }
                    known.push((hash, named.get_ref().display().to_string()));
                }
            }
            for named in &node.delegated {
                match load_branch(&source.resolve(named.get_ref())) {
                    Err(failure) => faults.extend(sort(failure.into(), named)),
                    Ok(branch) if branch.scope().0 < tag_epoch(unix_now().secs() as u32) => {
                        let fault = Fault::at(named.span(), "the delegated prefix is of an epoch that has ended");
                        let help = "ask the node's provider for the next one";
                        faults.push(FileFault::Doubtful(fault.help(help)));
                    }
                    Ok(_) => {}
                }
            }
        }
        if let Ok(settings) = overlay.load(source)
            && !settings.membership.object().grants.roles.has(Roles::CONSENT_SERVER)
        {
            let fault = Fault::at(overlay.membership.span(), "the membership does not make this node a consent server");
            let help = "the realm's operator invites it with `--role consent`";
            faults.push(FileFault::Doubtful(fault.help(help)));
        }
        faults
    }

    /// Whether it still has the example's realm, with which the role cannot run.
    pub fn has_examples(&self) -> bool {
        self.overlay.get_ref().realm.get_ref().0.to_string() == EXAMPLE_REALM
    }

    pub(super) fn checked(source: &Source) -> Checked {
        let file = match Self::parse(source) {
            Ok(file) => file,
            Err(failures) => return Checked::wrong("consent", failures),
        };
        let (mut errors, mut warnings, mut examples) = (Vec::new(), Vec::new(), Vec::new());
        if file.has_examples() {
            let span = file.overlay.get_ref().realm.span();
            examples.push(example(span, "the realm's key, from `wayleave realm show`"));
        }
        let policy = file.policy(source);
        for fault in file.file_faults(source, policy.as_ref().ok()) {
            match fault {
                // A new configuration needs no files yet.
                FileFault::Missing(fault) if file.has_examples() => warnings.push(fault),
                FileFault::Doubtful(fault) => warnings.push(fault),
                fault => errors.push(fault.into_fault()),
            }
        }
        if file.consent.node.is_empty() {
            let message = "the server consents for no node: it refuses every request";
            let fault = Fault { span: None, message: message.to_owned(), help: None };
            warnings.push(fault.help("add [[consent.node]] with the node's identity and the file of its tags"));
        }
        warnings.extend(absent_address(&file.consent.listen));
        warnings.extend(file.status.as_ref().and_then(status_warning));
        let mut checked = Checked::found("consent", source, errors, warnings).with_examples(source, examples);
        if let Err(failures) = policy {
            // Their places are in the policy's own file.
            let is_new = file.has_examples() && !source.resolve(file.consent.policy.get_ref()).exists();
            if is_new { &mut checked.warnings } else { &mut checked.errors }.extend(failures.0);
        }
        checked
    }
}

/// A policy, if its rules are well formed and its own tests pass, and the file that it was read from.
pub fn load_policy(named: &Spanned<PathBuf>, source: &Source) -> Outcome<(Policy, PolicyFile)> {
    let at = source.resolve(named.get_ref());
    let text = Source::read(&at).map_err(|failure| source.failure(Fault::of(named.span(), &failure)))?;
    let file: PolicyFile = text.parse()?;
    let wrong = |message: String| {
        let failure = Failure::new(format!("{}: {message}", at.display()));
        Failures::from(source.failure(Fault::of(named.span(), &failure)))
    };
    let policy = Policy::new(&file).map_err(|error| wrong(error.to_string()))?;
    let failed = policy.run_tests(&file).map_err(|error| wrong(error.to_string()))?;
    if failed.is_empty() {
        return Ok((policy, file));
    }
    let failures = failed.iter().map(|failure| {
        let failure = Failure::new(format!("{}: {failure}", at.display()))
            .help("change the rules until the policy's own tests pass, or the test if it is wrong");
        source.failure(Fault::of(named.span(), &failure))
    });
    Err(Failures(failures.collect()))
}

/// What each condition on labels comes to while no process has a source of labels.
pub fn unknown_labels(policy: &Policy) -> impl Iterator<Item = String> {
    policy.rules_on_labels().map(|(rule, allows)| {
        let effect = if allows { "it allows nothing" } else { "it refuses whatever labels a path has" };
        format!("rule {rule:?} has a condition on labels, of which no node's are known: {effect}")
    })
}

/// What `wayleave init consent` prints.
fn template() -> String {
    template_with(&ConsentValues {
        overlay: super::overlay::template_with(&super::overlay::OverlayValues::example("consent.redb")),
        listen: "127.0.0.1:7200".to_owned(),
        status: "127.0.0.1:8491".to_owned(),
    })
}

/// The values in which consent servers' configurations differ.
pub struct ConsentValues {
    /// The section `[overlay]`.
    pub overlay: String,
    pub listen: String,
    pub status: String,
}

/// A consent server's configuration with these values.
pub fn template_with(values: &ConsentValues) -> String {
    let ConsentValues { overlay, listen, status } = values;
    format!(
        "# A consent server. Run it with: wayleave run consent --config FILE\n\
         # Paths are relative to this file.\n\
         \n\
         [consent]\n\
         # Where senders connect.\n\
         listen = \"{listen}\"\n\
         # Who may have consent to what, and tests of the rules, which `wayleave check` runs. Reloaded on SIGHUP.\n\
         policy = \"policy.toml\"\n\
         # Each decision, one JSON object a line, written before the answer leaves. SIGHUP opens the file anew.\n\
         audit = \"audit.log\"\n\
         # What one node may ask for in a second.\n\
         #requests_per_second = 100\n\
         # The nodes that it consents for: their identities, and the keys of their tags, or prefixes that were delegated by\n\
         # `wayleave keys delegate-tags`. Reloaded on SIGHUP.\n\
         #[[consent.node]]\n\
         #identity = \"node:ed25519:64 hexadecimal digits\"\n\
         #tags = \"tags.key\"\n\
         #delegated = []\n\
         \n\
         {overlay}\
         \n\
         # Status pages and metrics, for you alone.\n\
         [status]\n\
         listen = \"{status}\"\n"
    )
}

/// A policy to start from, which consents to nothing but what its one rule says.
pub const POLICY_TEMPLATE: &str = "# Who may have consent to what. The first rule that matches decides; without one the answer is no.\n\
     # Nodes are written by name or as \"node:ed25519:...\". A list that is left out matches everything:\n\
     # senders, realms, tags (\"40000000/2\"), hours (\"08:00-18:00\", UTC), before and after (the neighbours on the path).\n\
     # inner = [\"tcp/22\", \"icmp\"] is for these packets alone; the receiver's gateway sees to it (`consent_policy`).\n\
     \n\
     [[rule]]\n\
     name = \"members\"\n\
     allow = true\n\
     # How long a consent lasts.\n\
     seconds = 300\n\
     \n\
     # Tests of the rules: `wayleave check` and every reload run them.\n\
     [[test]]\n\
     name = \"a member may send\"\n\
     sender = \"a\"\n\
     allow = true\n\
     rule = \"members\"\n";

#[cfg(test)]
mod tests {
    use std::fs;

    use wayleave_crypto::secret::Secret;
    use wayleave_crypto::sign::SigningKey;
    use wayleave_runtime::identity::to_hex;

    use super::*;
    use crate::check::{check, describe};

    #[test]
    fn a_check_warns_of_each_rule_and_test_with_labels() {
        let folder = std::env::temp_dir().join(format!("wayleave-consent-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let label = "[{ text = \"east\", signer = \"ed25519:0707070707070707070707070707070707070707070707070707070707070707\" }]";
        let policy = format!(
            "[[rule]]\nname = \"no east\"\nallow = false\nany_labels = {label}\n\
             [[rule]]\nname = \"clean\"\nallow = true\nwithout_labels = {label}\n\
             [[rule]]\nname = \"rest\"\nallow = true\n\
             [[test]]\nname = \"west\"\nsender = \"a\"\nallow = true\nrule = \"clean\"\nlabels = []\n\
             [[test]]\nname = \"today\"\nsender = \"a\"\nallow = false\nrule = \"no east\"\n"
        );
        fs::write(folder.join("policy.toml"), policy).unwrap();
        fs::write(folder.join("consent.toml"), template()).unwrap();
        let checked = check(&Source::read(&folder.join("consent.toml")).unwrap());
        let all = checked.warnings.iter().map(|one| format!("{one}: {}", one.label().unwrap_or_default()));
        let of_policy: Vec<String> = all.filter(|text| text.contains("labels")).collect();
        assert_eq!(
            of_policy,
            [
                "rule \"no east\" has a condition on labels, of which no node's are known: it refuses whatever labels a path has",
                "rule \"clean\" has a condition on labels, of which no node's are known: it allows nothing",
                "test \"west\": the labels are the test's own",
            ]
        );
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_check_warns_of_one_nodes_tag_keys_under_two_nodes() {
        let folder = std::env::temp_dir().join(format!("wayleave-tags-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = |name: &str| folder.join(name);
        TagKeyFile::generate().unwrap().save(&file("a.tags")).unwrap();
        TagKeyFile::generate().unwrap().save(&file("b.tags")).unwrap();
        fs::copy(file("a.tags"), file("r.tags")).unwrap();
        fs::write(file("policy.toml"), POLICY_TEMPLATE).unwrap();
        let node = |seed: u8, tags: &str| {
            let key = SigningKey::from_seed(&Secret::new([seed; 32])).verifying_key();
            format!("[[consent.node]]\nidentity = \"node:ed25519:{}\"\ntags = \"{tags}\"\n", to_hex(&key.to_bytes()))
        };
        let warned = |nodes: &[String]| {
            fs::write(file("consent.toml"), format!("{}\n{}", template(), nodes.concat())).unwrap();
            let checked = check(&Source::read(&file("consent.toml")).unwrap());
            let all = checked.errors.iter().chain(&checked.warnings).map(Failure::in_one_line);
            all.filter(|line| line.contains("the same keys as in a.tags")).count()
        };
        let (a, b) = (node(3, "a.tags"), node(4, "b.tags"));
        assert_eq!((warned(&[a.clone(), b.clone()]), warned(&[a, b, node(5, "r.tags")])), (0, 1));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_check_has_the_place_within_the_policy_and_names_the_test_that_fails() {
        let folder = std::env::temp_dir().join(format!("wayleave-policy-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("consent.toml"), template()).unwrap();
        let checked = |policy: &str| {
            fs::write(folder.join("policy.toml"), policy).unwrap();
            let errors = check(&Source::read(&folder.join("consent.toml")).unwrap()).errors;
            errors.into_iter().find(|error| error.in_one_line().contains("policy.toml")).unwrap()
        };
        let unknown = checked("[[rule]]\nname = \"a\"\nallow = true\nsecond = 5\n");
        assert!(unknown.place().unwrap().ends_with("policy.toml:4:1"), "{unknown:?}");
        assert!(unknown.to_string().contains("unknown field `second`"), "{unknown}");
        let failing = checked("[[test]]\nname = \"a member may send\"\nsender = \"a\"\nallow = true\n");
        assert!(failing.place().unwrap().contains("consent.toml:"), "{failing:?}");
        let why = "test \"a member may send\": refused, since no rule matches";
        assert_eq!(describe(&failing)["reason"], why);
        assert_eq!(failing.label(), Some(why));
        fs::remove_dir_all(folder).unwrap();
    }
}
