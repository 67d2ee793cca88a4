//! BGP-01: every attribute code, flags and many lengths, each with the consequence that RFC 7606 gives it.

use wayleave_bgp::{Action, AttributeCode, MessageError, RawAttribute, SessionParams, Update, encode_updates, frame};
use wayleave_core::Asn;

const LENGTHS: [usize; 11] = [0, 1, 2, 3, 4, 5, 8, 255, 256, 4_095, 65_535];
const OPTIONAL: u8 = 0x80;
const TRANSITIVE: u8 = 0x40;
const EXTENDED: u8 = 0x10;
/// 203.0.113.0/24.
const NLRI: [u8; 4] = [24, 203, 0, 113];

/// What a message comes to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Outcome {
    Sound,
    Ignored,
    Discarded,
    Withdrawn,
    Reset,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    code: u8,
    flags: u8,
    length: usize,
    fill: u8,
    external: bool,
    four_octet_as: bool,
}

impl Case {
    fn params(&self) -> SessionParams {
        let mut params = SessionParams::new(Asn(64_496), if self.external { Asn(64_497) } else { Asn(64_496) });
        params.four_octet_as = self.four_octet_as;
        params.extended_message = true;
        params
    }

    fn is_extended(&self) -> bool {
        self.flags & EXTENDED != 0
    }

    /// The length needs two octets and has one: the rest of the value is read as more attributes.
    fn is_cut(&self) -> bool {
        !self.is_extended() && self.length > 255 && !self.is_overrun()
    }

    /// The longest length cannot fit a message: its value is cut short.
    fn is_overrun(&self) -> bool {
        self.length == 65_535
    }

    /// The attribute, whatever it may be.
    fn octets(&self) -> Vec<u8> {
        let mut octets = vec![self.flags, self.code];
        let length = self.length as u16;
        if self.is_extended() {
            octets.extend_from_slice(&length.to_be_bytes());
        } else {
            octets.push(length as u8);
        }
        let present = if self.is_overrun() { 100 } else { self.length };
        octets.resize(octets.len() + present, self.fill);
        octets
    }

    /// An UPDATE's body: sound but for the attribute, which takes the place of its like or comes last.
    fn body(&self) -> Vec<u8> {
        let path: &[u8] = match self.four_octet_as {
            true => &[0x40, 2, 6, 2, 1, 0, 0, 0xfb, 0xf1],
            false => &[0x40, 2, 4, 2, 1, 0xfb, 0xf1],
        };
        let mut sound: Vec<&[u8]> = vec![&[0x40, 1, 1, 0], path, &[0x40, 3, 4, 192, 0, 2, 1]];
        if !self.external {
            sound.push(&[0x40, 5, 4, 0, 0, 0, 100]);
        }
        let mut attributes: Vec<u8> =
            sound.iter().filter(|own| own[1] != self.code).copied().flatten().copied().collect();
        attributes.extend(self.octets());
        let mut body = vec![0, 0];
        body.extend_from_slice(&(attributes.len() as u16).to_be_bytes());
        body.extend(attributes);
        body.extend_from_slice(&NLRI);
        body
    }

    /// What RFC 7606 and the attribute's own RFC say of a value of `length` octets.
    fn expected(&self, length: usize) -> Outcome {
        let is_unlisted = |sound: bool| if sound { Outcome::Sound } else { Outcome::Withdrawn };
        let multiple = |size: usize| is_unlisted(length > 0 && length.is_multiple_of(size));
        // Sent by whom it must not be sent: dropped whatever it looks like.
        if matches!(self.code, 5 | 9 | 10) && self.external || matches!(self.code, 17 | 18) && self.four_octet_as {
            return Outcome::Discarded;
        }
        let defined = match self.code {
            1 | 2 | 3 | 5 | 6 => Some(TRANSITIVE),
            4 | 9 | 10 | 14 | 15 => Some(OPTIONAL),
            7 | 8 | 16 | 17 | 18 | 25 | 32 | 35 | 128 => Some(OPTIONAL | TRANSITIVE),
            _ => None,
        };
        let kind = self.flags & (OPTIONAL | TRANSITIVE);
        let flags = match defined {
            Some(defined) if kind == defined => Outcome::Sound,
            Some(_) if matches!(self.code, 17 | 18) => Outcome::Discarded,
            Some(_) => Outcome::Withdrawn,
            None => is_unlisted(kind & OPTIONAL != 0),
        };
        let value = match self.code {
            1 => is_unlisted(length == 1),
            // No length here ends where a segment does, except none at all.
            2 => is_unlisted(length == 0),
            3 => is_unlisted(length == 4 && self.fill != 0),
            4 | 5 | 9 | 35 => is_unlisted(length == 4),
            6 => [Outcome::Discarded, Outcome::Sound][usize::from(length == 0)],
            7 => {
                let width = if self.four_octet_as { 8 } else { 6 };
                [Outcome::Discarded, Outcome::Sound][usize::from(length == width && self.fill != 0)]
            }
            8 | 10 => multiple(4),
            14 => {
                // AFI, SAFI, the next hop's length, a next hop of as many octets as `fill` says, one reserved octet.
                let shortest = 5 + usize::from(self.fill);
                [Outcome::Reset, Outcome::Ignored][usize::from(length >= shortest)]
            }
            15 => [Outcome::Reset, Outcome::Ignored][usize::from(length >= 3)],
            16 => multiple(8),
            17 => Outcome::Discarded,
            18 => [Outcome::Discarded, Outcome::Sound][usize::from(length == 8 && self.fill != 0)],
            25 => multiple(20),
            28 => [Outcome::Discarded, Outcome::Sound][usize::from(length == 0)],
            32 => multiple(12),
            128 => is_unlisted(length == 4),
            _ => Outcome::Sound,
        };
        flags.max(value)
    }
}

fn outcome(result: &Result<Update, MessageError>) -> Outcome {
    match result {
        Err(error) => {
            assert!(error.notification().is_some_and(|sent| sent.code == 3), "{error}");
            Outcome::Reset
        }
        Ok(update) => match update.action() {
            None => Outcome::Sound,
            Some(Action::IgnorePrefix | Action::IgnoreFamily) => Outcome::Ignored,
            Some(Action::DiscardAttribute) => Outcome::Discarded,
            Some(Action::TreatAsWithdraw) => Outcome::Withdrawn,
            Some(Action::SessionReset) => panic!("a reset is an error"),
        },
    }
}

/// What the rest of the router sees follows from the outcome.
fn assert_consequences(case: &Case, update: &Update) {
    let code = AttributeCode(case.code);
    if update.action() == Some(Action::TreatAsWithdraw) {
        assert!(update.announced.is_empty() && update.attributes.is_none(), "{case:?}");
        assert_eq!(update.withdrawn.len(), 1, "{case:?}");
        return;
    }
    assert_eq!((update.withdrawn.len(), update.announced.len()), (0, 1), "{case:?}");
    let attributes = update.attributes.as_ref().expect("announced routes have attributes");
    let kept = attributes.get(code);
    let is_discarded = update.problems.iter().any(|problem| problem.attribute == Some(code));
    let is_consumed = matches!(case.code, 14 | 15 | 17 | 18);
    if is_discarded || is_consumed {
        assert_eq!(kept, None, "{case:?}");
    } else if case.four_octet_as || !matches!(case.code, 2 | 7) {
        let mut octets = Vec::new();
        kept.expect("a sound attribute is kept").encode(&mut octets);
        assert!(octets == case.octets(), "{case:?}");
    }
}

/// A forwarded UPDATE is well-formed for its receiver.
fn assert_sound_onward(case: &Case, update: &Update) {
    let Some(attributes) = &update.attributes else { return };
    let mut params = case.params();
    (params.external, params.four_octet_as) = (true, true);
    let messages = encode_updates(Some(&attributes.to_forward()), &update.announced, &update.withdrawn, &params);
    for message in messages.expect("a sound UPDATE fits") {
        let (found, _) = frame(&message, &params).expect("a sound header");
        let onward = Update::decode(found.body(), &params).expect("a sound UPDATE");
        assert_eq!(onward.problems, [], "{case:?}");
        let forwarded = onward.attributes.expect("announced routes have attributes");
        let unknown = forwarded.get(AttributeCode(case.code)).filter(|_| is_unknown(case.code));
        if let Some(RawAttribute { flags, value, .. }) = unknown {
            assert!(flags.is_transitive() && flags.is_partial(), "{case:?}");
            let length = if case.is_cut() { case.length & 0xff } else { case.length };
            assert!(value.len() == length && value.iter().all(|octet| *octet == case.fill), "{case:?}");
        }
    }
}

fn is_unknown(code: u8) -> bool {
    !matches!(code, 1..=10 | 14..=18 | 25 | 32 | 35 | 128)
}

fn cases() -> impl Iterator<Item = Case> {
    let sessions = [(true, true), (true, false), (false, true), (false, false)];
    sessions.into_iter().flat_map(|(external, four_octet_as)| {
        (0..=255).flat_map(move |code| {
            (0..16).flat_map(move |nibble| {
                LENGTHS.into_iter().flat_map(move |length| {
                    [0, 2].map(|fill| Case { code, flags: nibble << 4, length, fill, external, four_octet_as })
                })
            })
        })
    })
}

#[test]
fn every_code_flags_and_length_has_the_outcome_of_rfc_7606() {
    let mut resets = 0;
    let mut count = 0;
    for case in cases() {
        count += 1;
        let result = Update::decode(&case.body(), &case.params());
        let found = outcome(&result);
        if case.is_overrun() {
            assert_eq!(found, Outcome::Withdrawn, "{case:?}");
        } else if case.is_cut() {
            // The rest is read as attributes: of no interest but that the session stays up.
            let read = case.expected(case.length & 0xff);
            assert_eq!(found == Outcome::Reset, read == Outcome::Reset, "{case:?}");
        } else {
            assert_eq!(found, case.expected(case.length), "{case:?}");
        }
        resets += usize::from(found == Outcome::Reset);
        let Ok(update) = result else {
            assert!(matches!(case.code, 14 | 15), "only unreadable prefixes end a session: {case:?}");
            continue;
        };
        if !case.is_cut() {
            assert_consequences(&case, &update);
        }
        assert_sound_onward(&case, &update);
    }
    assert_eq!(count, 4 * 256 * 16 * 11 * 2);
    assert!(resets > 0);
}
