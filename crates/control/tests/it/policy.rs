//! Policies: the rules that decide, and the tests in the file.

use wayleave_control::consent::{LabelCondition, Policy, PolicyError, PolicyFile, Question, Rule, Subject};
use wayleave_control::labels::Labels;
use wayleave_core::IdentityKey;
use wayleave_packet::icing::header::{Tag, Version};

use super::common::identity;

const FILE: &str = r#"
[[rule]]
name = "not through the east"
allow = false
any_labels = [{ text = "east", signer = "ed25519:0707070707070707070707070707070707070707070707070707070707070707" }]

[[rule]]
name = "office hours"
allow = true
seconds = 300
senders = ["alpha", "bravo"]
tags = ["40000000/2"]
hours = "08:00-18:00"
before = ["west"]
after = ["receiver", "charlie"]

[[rule]]
name = "nights"
allow = true
senders = ["nightly"]
hours = "22:00-04:00"

[[test]]
name = "alpha by day"
allow = true
rule = "office hours"
sender = "alpha"
tag = "40000001"
time = "08:00"
before = "west"
labels = []

[[test]]
name = "the receiver follows"
allow = true
rule = "office hours"
sender = "bravo"
tag = "7fffffff"
time = "17:59"
before = "west"
after = "charlie"
labels = []

[[test]]
name = "too late"
allow = false
sender = "alpha"
tag = "40000001"
time = "18:00"
before = "west"
labels = []

[[test]]
name = "another tag"
allow = false
sender = "alpha"
tag = "80000001"
time = "09:00"
before = "west"
labels = []

[[test]]
name = "east"
allow = false
rule = "not through the east"
sender = "alpha"
tag = "40000001"
time = "09:00"
before = "west"
labels = [{ text = "east", signer = "ed25519:0707070707070707070707070707070707070707070707070707070707070707" }]

[[test]]
name = "over midnight"
allow = true
rule = "nights"
sender = "nightly"
time = "01:00"
labels = []

[[test]]
name = "labels that are not known"
allow = false
rule = "not through the east"
sender = "nightly"
time = "01:00"
"#;

fn file() -> PolicyFile {
    toml::from_str(FILE).expect("the shape of a file")
}

#[test]
fn the_tests_in_the_file_are_run_and_those_that_fail_are_named() {
    let policy = Policy::new(&file()).expect("in order");
    assert_eq!(policy.run_tests(&file()), Ok(Vec::new()));
    let mut changed = file();
    changed.rule[1].hours = Some("08:00-17:00".to_owned());
    changed.test[4].rule = Some("office hours".to_owned());
    let failures = Policy::new(&changed).expect("in order").run_tests(&changed).expect("in order");
    let failures: Vec<String> = failures.iter().map(ToString::to_string).collect();
    assert_eq!(
        failures,
        [
            "test \"the receiver follows\": refused, since no rule matches (the labels are the test's own)",
            "test \"east\": refused by rule \"not through the east\" (the labels are the test's own)",
        ]
    );
}

#[test]
fn what_is_not_written_as_it_must_be_is_refused_with_its_place() {
    let fault = |change: &dyn Fn(&mut PolicyFile)| {
        let mut file = file();
        change(&mut file);
        Policy::new(&file).map(|policy| policy.run_tests(&file)).err().map(|error| error.to_string())
    };
    assert_eq!(fault(&|_| {}), None);
    let value = |rule: &dyn Fn(&mut Rule)| fault(&|file| rule(&mut file.rule[1])).expect("refused");
    assert!(value(&|rule| rule.hours = Some("8:00-18:00".into())).contains("`8:00` is not a time of day"));
    assert!(value(&|rule| rule.hours = Some("08:00".into())).contains("`08:00` is not a span"));
    assert!(value(&|rule| rule.hours = Some("24:01-01:00".into())).contains("`24:01`"));
    assert!(value(&|rule| rule.tags = vec!["40000000".into()]).contains("first bits of a tag"));
    assert!(value(&|rule| rule.tags = vec!["40000001/2".into()]).contains("first bits of a tag"));
    assert!(value(&|rule| rule.tags = vec!["40000000/33".into()]).contains("first bits of a tag"));
    assert!(value(&|rule| rule.senders = vec!["Alpha".into()]).contains("a name or key of a node"));
    assert!(value(&|rule| rule.senders = vec!["ed25519:07".into()]).contains("64 hexadecimal digits"));
    assert!(value(&|rule| rule.seconds = 0).contains("1 to 3600 seconds"));
    assert!(value(&|rule| rule.seconds = 3_601).contains("1 to 3600 seconds"));
    assert!(value(&|rule| rule.labels = vec![LabelCondition::default()]).contains("rule \"office hours\""));
    assert_eq!(
        fault(&|file| file.rule[1].name = "nights".into()),
        Some(PolicyError::NameTaken("nights".into()).to_string())
    );
    assert!(fault(&|file| file.rule = vec![Rule { seconds: 1, ..Rule::default() }; 1_025]).is_some());
    let mut bad_test = file();
    bad_test.test[0].time = "noon".to_owned();
    assert!(Policy::new(&bad_test).expect("the rules are in order").run_tests(&bad_test).is_err());
    assert!(toml::from_str::<PolicyFile>("[[rule]]\nname = \"x\"\nallow = true\nsender = []").is_err());
}

fn subject(node: u32) -> Subject {
    Subject { identity: Some(identity(node)), names: vec![format!("n{node}")] }
}

#[test]
fn without_a_rule_that_matches_the_answer_is_no_and_the_first_that_matches_decides() {
    let rule = |name: &str, allow, senders: &[&str]| Rule {
        name: name.to_owned(),
        allow,
        seconds: 60,
        senders: senders.iter().map(|text| (*text).to_owned()).collect(),
        ..Rule::default()
    };
    let key = identity(2).to_string();
    let file =
        PolicyFile { rule: vec![rule("not n1", false, &["n1"]), rule("some", true, &["n1", &key])], test: Vec::new() };
    let policy = Policy::new(&file).expect("in order");
    let labels = Labels::default();
    let decide = |sender: &Subject| {
        let (rule, seconds) = policy.decide(&Question {
            sender,
            realm: [0; 32],
            tag: Some(Tag(1)),
            packets: Some(Version::Standard),
            minute: 0,
            before: sender,
            after: None,
            others: std::slice::from_ref(sender),
            labels: &labels,
        });
        (rule.map(str::to_owned), seconds)
    };
    assert_eq!(decide(&subject(1)), (Some("not n1".to_owned()), None));
    assert_eq!(decide(&subject(2)), (Some("some".to_owned()), Some(60)));
    assert_eq!(decide(&subject(3)), (None, None));
    assert_eq!(
        Policy::default().decide(&Question {
            sender: &subject(1),
            realm: [0; 32],
            tag: Some(Tag(1)),
            packets: Some(Version::Standard),
            minute: 0,
            before: &subject(1),
            after: None,
            others: &[],
            labels: &labels,
        }),
        (None, None)
    );
}

/// A label counts as far as its signer is named; a node that nobody is known to be has none.
#[test]
fn required_labels_must_be_signed_by_the_signer_named_and_be_on_every_other_node() {
    let signer = IdentityKey([7; 32]);
    let condition = LabelCondition { text: "clean".into(), signer: signer.to_string() };
    let rule = Rule { name: "clean".into(), allow: true, seconds: 60, labels: vec![condition], ..Rule::default() };
    let policy = Policy::new(&PolicyFile { rule: vec![rule], test: Vec::new() }).expect("in order");
    let mut labels = Labels::default();
    labels.insert(identity(1), "clean", signer);
    labels.insert(identity(2), "clean", IdentityKey([8; 32]));
    let decide = |others: &[Subject], labels: &Labels| {
        let sender = subject(1);
        let question = Question {
            sender: &sender,
            realm: [0; 32],
            tag: Some(Tag(1)),
            packets: Some(Version::Standard),
            minute: 0,
            before: &sender,
            after: None,
            others,
            labels,
        };
        policy.decide(&question).1.is_some()
    };
    assert!(decide(&[subject(1)], &labels));
    assert!(!decide(&[subject(1), subject(2)], &labels));
    labels.insert(identity(2), "clean", signer);
    assert!(decide(&[subject(1), subject(2)], &labels));
    assert!(!decide(&[subject(1), Subject::default()], &labels));
}

#[test]
fn a_rule_may_ask_that_no_node_or_that_some_node_has_a_label() {
    let signer = IdentityKey([7; 32]);
    let condition = || vec![LabelCondition { text: "east".into(), signer: signer.to_string() }];
    let rule = |name: &str| Rule { name: name.into(), allow: true, seconds: 60, ..Rule::default() };
    let none = Rule { without_labels: condition(), ..rule("none") };
    let some = Rule { any_labels: condition(), ..rule("some") };
    let policy = Policy::new(&PolicyFile { rule: vec![none, some], test: Vec::new() }).expect("in order");
    let mut labels = Labels::default();
    labels.know(identity(1));
    labels.know(identity(2));
    let sender = subject(1);
    let decide = |labels: &Labels| {
        let others = [subject(1), subject(2)];
        let question = Question {
            sender: &sender,
            realm: [0; 32],
            tag: Some(Tag(1)),
            packets: Some(Version::Standard),
            minute: 0,
            before: &sender,
            after: None,
            others: &others,
            labels,
        };
        policy.decide(&question).0.map(str::to_owned)
    };
    assert_eq!(decide(&labels).as_deref(), Some("none"));
    labels.insert(identity(2), "east", IdentityKey([8; 32]));
    assert_eq!(decide(&labels).as_deref(), Some("none"));
    labels.insert(identity(2), "east", signer);
    assert_eq!(decide(&labels).as_deref(), Some("some"));
}

/// What is not known denies: `allow` needs what is known to hold, and `allow = false` holds unless it is known not to.
#[test]
fn a_condition_on_labels_that_nobody_knows_never_lets_a_path_pass() {
    let east = || vec![LabelCondition { text: "east".into(), signer: IdentityKey([7; 32]).to_string() }];
    let rule = |name: &str, allow| Rule { name: name.into(), allow, seconds: 60, ..Rule::default() };
    let all = || rule("all", true);
    let decide = |rules: Vec<Rule>, others: &[Subject]| {
        let policy = Policy::new(&PolicyFile { rule: rules, test: Vec::new() }).expect("in order");
        let (sender, labels) = (subject(1), Labels::default());
        let question = Question {
            sender: &sender,
            realm: [0; 32],
            tag: Some(Tag(1)),
            packets: Some(Version::Standard),
            minute: 0,
            before: &others[0],
            after: None,
            others,
            labels: &labels,
        };
        let (rule, seconds) = policy.decide(&question);
        (rule.map(str::to_owned), seconds.is_some())
    };
    let refused_by = |name: &str| (Some(name.to_owned()), false);
    let known = [subject(1), subject(2)];
    let allow = Rule { without_labels: east(), ..rule("not over the east", true) };
    assert_eq!(decide(vec![allow], &known), (None, false));
    let any = Rule { any_labels: east(), ..rule("the east", false) };
    assert_eq!(decide(vec![any, all()], &known), refused_by("the east"));
    let every = Rule { labels: east(), ..rule("all in the east", false) };
    assert_eq!(decide(vec![every, all()], &known), refused_by("all in the east"));
    let without = Rule { without_labels: east(), ..rule("none in the east", false) };
    assert_eq!(decide(vec![without, all()], &known), refused_by("none in the east"));
    // What is known to be otherwise still counts: the rule is about another sender.
    let other = Rule { any_labels: east(), senders: vec!["n3".into()], ..rule("n3 in the east", false) };
    assert_eq!(decide(vec![other, all()], &known), (Some("all".to_owned()), true));
    // A node ID that nobody claims may be anybody's.
    let nobody = [Subject::default(), subject(2)];
    for who in ["n9".to_owned(), identity(9).to_string()] {
        let deny = Rule { before: vec![who.clone()], ..rule("after n9", false) };
        assert_eq!(decide(vec![deny.clone(), all()], &nobody), refused_by("after n9"), "{who}");
        assert_eq!(decide(vec![Rule { allow: true, ..deny.clone() }], &nobody), (None, false), "{who}");
        assert_eq!(decide(vec![deny, all()], &known), (Some("all".to_owned()), true), "{who}");
    }
}

#[test]
fn consent_may_be_to_some_inner_packets_alone_and_what_a_receiver_does_not_know_denies() {
    let text = r#"
[[rule]]
name = "admins"
allow = true
senders = ["admin"]

[[rule]]
name = "by the west"
allow = true
senders = ["far"]
before = ["west"]

[[rule]]
name = "paid"
allow = true
senders = ["customer"]
tags = ["40000000/2"]

[[rule]]
name = "web"
allow = true
senders = ["alpha", "admin"]
inner = ["tcp/80", "tcp/8000-8080", "icmp"]

[[test]]
name = "the page"
sender = "alpha"
inner = "tcp/8001"
allow = true
rule = "web"

[[test]]
name = "not by ssh"
sender = "alpha"
inner = "tcp/22"
allow = false
rule = "web"

[[test]]
name = "an admin may"
sender = "admin"
inner = "tcp/22"
allow = true
rule = "admins"
"#;
    let file: PolicyFile = toml::from_str(text).expect("the shape of a file");
    let policy = Policy::new(&file).expect("in order");
    assert_eq!(policy.run_tests(&file), Ok(Vec::new()));
    assert!(policy.names_inner());
    assert_eq!(policy.rules_on_ways().collect::<Vec<_>>(), ["by the west"]);
    let admitted = |name: &str| {
        let sender = Subject { identity: Some(identity(1)), names: vec![name.to_owned()] };
        let nobody = Subject::default();
        let question = Question {
            sender: &sender,
            realm: [0; 32],
            tag: None,
            packets: Some(Version::Standard),
            minute: 0,
            before: &nobody,
            after: None,
            others: std::slice::from_ref(&nobody),
            labels: &Labels::default(),
        };
        policy.admitted(&question).map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(admitted("admin"), Some(Vec::new()));
    assert_eq!(admitted("alpha"), Some(vec!["tcp/80".to_owned(), "tcp/8000-8080".to_owned(), "icmp".to_owned()]));
    assert_eq!((admitted("far"), admitted("customer"), admitted("stranger")), (None, None, None));

    let mut wrong = file.clone();
    wrong.test[1].allow = true;
    let failures = policy.run_tests(&wrong).expect("in order");
    assert_eq!(
        failures[0].to_string(),
        "test \"not by ssh\": refused, since rule \"web\" consents to other inner packets"
    );
    wrong.test[1].inner = Some("tcp".to_owned());
    assert!(policy.run_tests(&wrong).is_err_and(|error| error.to_string().contains("is not one packet")));
    wrong.rule[3].inner = vec!["tcp/0x50".to_owned()];
    assert!(
        Policy::new(&wrong)
            .is_err_and(|error| error.to_string().contains("rule \"web\": `tcp/0x50` is not inner traffic"))
    );
}

#[test]
fn a_rule_for_a_profile_is_for_that_one_and_a_test_names_it() {
    let file: PolicyFile = toml::from_str(
        r#"
        [[rule]]
        name = "checked"
        allow = true
        profiles = ["payload"]
        senders = ["alpha"]

        [[rule]]
        name = "both"
        allow = true
        senders = ["bravo"]

        [[test]]
        name = "no profile is `payload`"
        sender = "alpha"
        allow = true
        rule = "checked"

        [[test]]
        name = "sealed"
        sender = "alpha"
        profile = "sealed"
        allow = false

        [[test]]
        name = "either"
        sender = "bravo"
        profile = "sealed"
        allow = true
        "#,
    )
    .expect("a policy");
    let policy = Policy::new(&file).expect("sound");
    assert_eq!(policy.run_tests(&file), Ok(Vec::new()));
    let rule = Rule { name: "none".to_owned(), profiles: vec!["standard".to_owned()], ..file.rule[0].clone() };
    let wrong = Policy::new(&PolicyFile { rule: vec![rule], test: Vec::new() }).expect_err("no profile");
    assert_eq!(wrong.to_string(), r#"rule "none": `standard` is not a profile: "payload" or "sealed""#);
}
