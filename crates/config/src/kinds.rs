//! What a text of a key, pin, digest or secret line is, by its form: so that one in the place of another is refused with its name.
//!
//! Each kind has a form of its own in what commands print. An Ed25519 key without its kind (`ed25519:...`), as logs, status pages and
//! earlier releases write it, is taken wherever an Ed25519 key is expected.

use std::fmt;

use wayleave_control::capability::{INVITATION_PREFIX, PREFIX as CAPABILITY_PREFIX};

/// What `wayleave keys token` puts in front of a token.
pub const TOKEN_PREFIX: &str = "wayleave-token-";
/// Behind the name of a kind that only its holder may see.
pub const IS_SECRET: &str = ", which is secret";
/// What a token of `wayleave realm invite` begins with, whatever its version.
const JOIN_PREFIX: &str = "wayleave-join-";
/// What a membership begins with, whatever its version.
const MEMBERSHIP_PREFIX: &str = "wayleave-membership-";
/// What the realm's key signed of a list key begins with, and a list of removed nodes.
const LIST_KEY_PREFIX: &str = "wayleave-list-key-";
const LIST_PREFIX: &str = "wayleave-list-";

/// A kind of text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TextKind {
    Certificate,
    ApiPin,
    TokenHash,
    Claim,
    Signing,
    Node,
    Realm,
    Writer,
    Holder,
    Anchor,
    Attestation,
    AsIdentity,
    Noise,
    /// `ed25519:` without what it is for.
    Ed25519,
    /// `SUITE:` without what it is for.
    Suite,
    /// 64 hexadecimal digits.
    IcingNode,
    Token,
    Capability,
    Invitation,
    JoinToken,
    Membership,
    ListKey,
    ListKeyCertificate,
    List,
}

/// Every kind with its form and name; a form that begins another one comes behind it.
const FORMS: [(&str, TextKind); 24] = [
    ("spki:sha256:", TextKind::ApiPin),
    ("token:sha256:", TextKind::TokenHash),
    ("sha256:", TextKind::Certificate),
    ("claim:", TextKind::Claim),
    ("sign:ed25519:", TextKind::Signing),
    ("node:ed25519:", TextKind::Node),
    ("realm:ed25519:", TextKind::Realm),
    ("writer:ed25519:", TextKind::Writer),
    ("holder:ed25519:", TextKind::Holder),
    ("anchor:", TextKind::Anchor),
    ("attest:", TextKind::Attestation),
    ("identity:", TextKind::AsIdentity),
    ("ed25519:", TextKind::Ed25519),
    ("kc-", TextKind::Suite),
    ("slh-dsa-", TextKind::Suite),
    ("x25519:", TextKind::Noise),
    (TOKEN_PREFIX, TextKind::Token),
    (CAPABILITY_PREFIX, TextKind::Capability),
    (INVITATION_PREFIX, TextKind::Invitation),
    (JOIN_PREFIX, TextKind::JoinToken),
    (MEMBERSHIP_PREFIX, TextKind::Membership),
    ("list:ed25519:", TextKind::ListKey),
    (LIST_KEY_PREFIX, TextKind::ListKeyCertificate),
    (LIST_PREFIX, TextKind::List),
];

impl TextKind {
    /// The kind that a text says it is; nothing behind that is looked at.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        let text = text.trim();
        if let Some((_, kind)) = FORMS.iter().find(|(form, _)| text.starts_with(form)) {
            return Some(*kind);
        }
        (text.len() == 64 && text.bytes().all(|digit| digit.is_ascii_hexdigit())).then_some(Self::IcingNode)
    }

    /// Whether only its holder may see it.
    #[must_use]
    pub fn is_secret(self) -> bool {
        matches!(self, Self::Token | Self::Capability | Self::Invitation | Self::JoinToken)
    }

    /// Where it goes.
    #[must_use]
    pub fn goes_into(self) -> &'static str {
        match self {
            Self::Certificate => {
                "`[link] pin`, `pin` of `party1` and `party2`, `members propose --parties`, if it is a party's; a member's request has it"
            }
            Self::ApiPin => "`--pin` of `wayleave cap`",
            Self::TokenHash => "`hash` of `[[key.api.token]]`",
            Self::Claim => "`members countersign --confirm`",
            Self::Signing => {
                "`operators`, `members init --operator1` and `--operator2`, if it is an operator's; `[platypus] revocations.key`, if a provider's"
            }
            Self::Node => "`identity` of servers and routers, `node` of neighbours, `join --consent`",
            Self::Realm => "`realm` of `[overlay]` and `[path]`, `join --realm`",
            Self::Writer => "`[key] writer`, `[platypus] revocations.key`",
            Self::Holder => "no setting: the key server keeps it with the invitation",
            Self::Anchor => "no setting: `anchor` names the public file",
            Self::Attestation => "`members request --attest`, `keys profile --key`, `keys addition --key`",
            Self::AsIdentity => "`keys profile --key`",
            Self::Noise => "no setting: the membership has it",
            Self::Ed25519 => "wherever an Ed25519 key is expected; what it is for does not show",
            Self::Suite => "`members request --attest`; what it is for does not show",
            Self::IcingNode => "`nodes` of `[[link]]`",
            Self::Token => "a file of its own, which `--token` of `wayleave cap` names",
            Self::Capability => "a file of its own, which `--line` and `capability` of a stamper name",
            Self::Invitation => "`wayleave cap accept`, once",
            Self::JoinToken => "`wayleave join`, once",
            Self::Membership => "the file that `membership` names",
            Self::ListKey => "`realm list-key revoke`",
            Self::ListKeyCertificate => "`realm list-key renew`, on the machine of that key",
            Self::List => "`realm list sign` and `realm list publish`, in a file",
        }
    }
}

impl fmt::Display for TextKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Certificate => "the fingerprint of a certificate",
            Self::ApiPin => "the pin of an API's key",
            Self::TokenHash => "the hash of an API token",
            Self::Claim => "the digest of a member's claim",
            Self::Signing => "a signing key of `keys new`",
            Self::Node => "the identity of a node",
            Self::Realm => "a realm's key",
            Self::Writer => "the key of a key server's writer",
            Self::Holder => "the key of an invitation's holder",
            Self::Anchor => "a trust anchor's key",
            Self::Attestation => "an attestation key",
            Self::AsIdentity => "an AS's identity key",
            Self::Noise => "a gateway's Noise key",
            Self::Ed25519 => "an Ed25519 key",
            Self::Suite => "a key of a signature suite",
            Self::IcingNode => "64 hexadecimal digits, as an ICING node's ID",
            Self::Token => "an API token",
            Self::Capability => "the line of a capability",
            Self::Invitation => "an invitation",
            Self::JoinToken => "a token to join a realm",
            Self::Membership => "a membership of a realm",
            Self::ListKey => "a list key of a realm",
            Self::ListKeyCertificate => "what a realm's key signed of a list key",
            Self::List => "a list of a realm's removed nodes",
        })?;
        if self.is_secret() { f.write_str(IS_SECRET) } else { Ok(()) }
    }
}

/// Why a text is not what was expected: by the name of its kind, if it is of another, and never with a secret in it.
#[must_use]
pub fn refusal(text: &str, expected: &str) -> String {
    let form = FORMS.iter().find(|(form, _)| text.trim().starts_with(form));
    if let Some((form, kind)) = form.filter(|(form, _)| expected.contains(&format!("\"{form}\""))) {
        // Of a secret not even that.
        let behind = text.trim().chars().count().saturating_sub(form.len());
        let length = if kind.is_secret() { String::new() } else { format!(": {behind} characters behind `{form}`") };
        return format!("damaged or of another length{length}, expected {expected}");
    }
    match TextKind::of(text) {
        Some(kind) if !expected.starts_with(&kind.to_string()) => format!("this is {kind}, expected {expected}"),
        Some(_) => format!("damaged or of another length, expected {expected}"),
        None => format!("invalid value: string \"{}\", expected {expected}", text.escape_debug()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_that_begins_another_does_not_hide_it() {
        for (at, (form, _)) in FORMS.iter().enumerate() {
            let hidden = FORMS[..at].iter().find(|(before, _)| form.starts_with(before));
            assert_eq!(hidden, None, "{form}");
        }
    }

    #[test]
    fn another_kind_is_named_and_a_secret_is_not_repeated() {
        let expected = "the fingerprint of a certificate: \"sha256:\" and 64 hexadecimal digits";
        let refused = refusal(&format!("spki:sha256:{}", "ab".repeat(32)), expected);
        assert_eq!(refused, format!("this is the pin of an API's key, expected {expected}"));
        let refused = refusal("wayleave-token-5ec2e7", expected);
        assert!(
            refused.starts_with("this is an API token, which is secret") && !refused.contains("5ec2e7"),
            "{refused}"
        );
        assert!(refusal("sha256:12", expected).starts_with("damaged"), "its own kind");
        // Which is one of two that are taken.
        let either = "the key that signs the list, of a key server's writer or of `keys new`: \"writer:ed25519:\" or \"sign:ed25519:\", and 64 digits";
        let refused = refusal(&format!("writer:ed25519:{}", "ab".repeat(33)), either);
        assert!(
            refused.starts_with(
                "damaged or of another length: 66 characters behind `writer:ed25519:`, expected the key that signs"
            ),
            "{refused}"
        );
        assert!(refusal("node:ed25519:12", either).starts_with("this is the identity of a node, expected"));
        assert!(refusal("hello", expected).starts_with("invalid value: string \"hello\""));
    }
}
