//! When a holder looks up the secrets of its capability: at once if it lacks the current key epoch's, and the next epoch's ahead.
//!
//! Holders of one capability would all ask at the end of an epoch, which is the same for all: each asks ahead, at an instant of its
//! own within the last quarter. What fails is tried again, less and less often; the secrets that are there serve on.

use std::time::Duration;

use wayleave_core::UnixTime;
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_packet::platypus::header::Marks;
use wayleave_packet::platypus::mint::epoch;

use super::answer::Denial;
use super::credential::Credential;
use super::lookup::{LookupFailure, Obtained};
use crate::rng::Rng;

/// The pause after a first failure; it doubles with each further one, up to the longest, or to a part of the key epoch if that is
/// less: a holder that waited for longer would be without a secret after a few look-ups that failed.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(64);
const PAUSES_OF_AN_EPOCH: u32 = 8;
/// The pause after an answer that no repetition changes soon.
const DENIED_PAUSE: Duration = Duration::from_secs(60);
/// How old an answer is at least before it is asked for again because somebody wants to know whether it holds.
const CONFIRM: Duration = Duration::from_secs(2);
/// The longest pause that a provider can ask for: a holder that was told a day by mistake asks again within the hour or so.
const LONGEST_DENIAL: Duration = Duration::from_secs(3_600);

/// The secrets that a holder has of one capability, and when it asks for more.
pub struct Renewal {
    credential: Credential,
    rng: Rng,
    /// In ascending order of epochs: the current one and those beside it.
    secrets: Vec<(u32, Marks, Key128)>,
    /// The epoch that is asked for now.
    asking: Option<u32>,
    /// Which part of the time in which the next epoch's secret is asked for has to be over, in parts of 65,536.
    share: u16,
    failure: Option<LookupFailure>,
    failures: u32,
    /// When the last look-up failed, and how long to wait from then on.
    pause: Option<(UnixTime, Duration)>,
    /// When a look-up last ended, and whether somebody wants to know whether its answer still holds.
    ended: Option<UnixTime>,
    confirms: bool,
    /// When the key server last answered.
    answered: Option<UnixTime>,
}

impl Renewal {
    /// Knows no secret yet. The seed is used for nothing else.
    #[must_use]
    pub fn new(credential: Credential, seed: Seed) -> Self {
        let mut rng = Rng::new(seed);
        let share = u16::from_be_bytes(rng.bytes());
        Self {
            credential,
            rng,
            secrets: Vec::new(),
            asking: None,
            share,
            failure: None,
            failures: 0,
            pause: None,
            ended: None,
            confirms: false,
            answered: None,
        }
    }

    #[must_use]
    pub fn credential(&self) -> &Credential {
        &self.credential
    }

    /// Key epochs and their secrets with the marks from which these were made, in ascending order.
    #[must_use]
    pub fn secrets(&self) -> &[(u32, Marks, Key128)] {
        &self.secrets
    }

    /// Why the last look-up failed, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<LookupFailure> {
        self.failure
    }

    /// Asks for the secret of the current epoch again, although it is there, unless that was done just now: it may have been revoked.
    pub fn confirm(&mut self, now: UnixTime) {
        let just_now =
            |ended: UnixTime| now.0.checked_sub(ended.0).is_some_and(|past| past < CONFIRM.as_micros() as u64);
        self.confirms |= !self.ended.is_some_and(just_now);
    }

    /// When the key server last gave a secret, or denied it.
    #[must_use]
    pub fn answered(&self) -> Option<UnixTime> {
        self.answered
    }

    /// Whether it is not known yet what [`Renewal::confirm`] comes to.
    #[must_use]
    pub fn is_confirming(&self) -> bool {
        self.confirms
    }

    /// The key epoch whose secret is to be looked up now; [`Renewal::done`] has to follow.
    pub fn due(&mut self, now: UnixTime) -> Option<u32> {
        if self.asking.is_some() || (self.is_paused(now) && !self.confirms) {
            return None;
        }
        let interval = self.credential.terms.interval;
        let current = epoch::epoch_at(interval, now);
        let has = |epoch: u32| self.secrets.iter().any(|(of, ..)| *of == epoch);
        self.asking = if !has(current) || self.confirms {
            Some(current)
        } else {
            current.checked_add(1).filter(|next| !has(*next) && now.secs() >= self.ahead(*next))
        };
        self.asking
    }

    /// A look-up has ended.
    pub fn done(&mut self, result: Result<Obtained, LookupFailure>, now: UnixTime) {
        let Some(requested) = self.asking.take() else { return };
        (self.ended, self.confirms) = (Some(now), false);
        let result = result.and_then(|obtained| match obtained.secret.capability.epoch == requested {
            true => Ok(obtained),
            // The driver's mistake.
            false => Err(LookupFailure::Forged),
        });
        if matches!(result, Ok(_) | Err(LookupFailure::Denied(_))) {
            self.answered = Some(now);
        }
        match result {
            Ok(obtained) => {
                let current = epoch::epoch_at(self.credential.terms.interval, now);
                self.secrets.retain(|(of, ..)| *of != requested && of.saturating_add(1) >= current);
                let marks = obtained.secret.capability.marks;
                self.secrets.push((requested, marks, obtained.secret.key().clone()));
                self.secrets.sort_unstable_by_key(|(of, ..)| *of);
                (self.failure, self.failures, self.pause) = (None, 0, None);
                self.share = u16::from_be_bytes(self.rng.bytes());
            }
            Err(failure) => {
                if let LookupFailure::Denied(Denial::Revoked) = failure {
                    // The provider's word, under a MAC, of the capability: waypoints refuse what is stamped with any of these, also with the
                    // next epoch's that was obtained ahead.
                    self.secrets.clear();
                }
                let pause = self.pause_after(failure);
                self.failures = self.failures.saturating_add(1);
                (self.failure, self.pause) = (Some(failure), Some((now, pause)));
            }
        }
    }

    /// How long to wait after a failure: a different time for each holder, so that those who failed together do not return together.
    fn pause_after(&mut self, failure: LookupFailure) -> Duration {
        let part = u32::from(u16::from_be_bytes(self.rng.bytes()));
        let share = |of: Duration| of * part / 65_536;
        let longest = match failure {
            // The provider's own word, under a MAC: no earlier than it says, and up to an eighth later.
            LookupFailure::Denied(Denial::NotNow { retry_secs }) => {
                let said = Duration::from_secs(retry_secs.into()).clamp(FIRST_PAUSE, LONGEST_DENIAL);
                return said + share(said / 8);
            }
            LookupFailure::Denied(_) => DENIED_PAUSE,
            _ => FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)),
        };
        let epoch = Duration::from_secs(1 << self.credential.terms.interval.exponent());
        let most = LONGEST_PAUSE.min(epoch / PAUSES_OF_AN_EPOCH).max(FIRST_PAUSE);
        let longest = longest.clamp(FIRST_PAUSE, most);
        longest / 2 + share(longest / 2)
    }

    /// The second from which the secret of `epoch`, which is the next one, is asked for.
    fn ahead(&self, epoch: u32) -> u64 {
        let interval = self.credential.terms.interval;
        let begin = epoch::epoch_begin(interval, epoch);
        let quarter = (begin - epoch::epoch_begin(interval, epoch - 1)) / 4;
        // A part of the quarter is left for the answer, however late the instant.
        begin - quarter + quarter * 3 / 4 * u64::from(self.share) / 65_536
    }

    fn is_paused(&self, now: UnixTime) -> bool {
        self.pause.is_some_and(|(since, pause)| {
            // A clock that was set back says nothing of how long ago that was.
            now.0.checked_sub(since.0).is_some_and(|past| u128::from(past) < pause.as_micros())
        })
    }
}

#[cfg(test)]
mod tests {
    use wayleave_packet::platypus::header::{Interval, Principal, Width};

    use super::super::answer::EpochSecret;
    use super::super::keys::MasterKey;
    use super::super::terms::Terms;
    use super::*;

    const INTERVAL: u64 = 12;
    const BEGIN: u64 = 400_000 << INTERVAL;

    fn renewal(seed: u8) -> Renewal {
        let terms = Terms {
            waypoint: [198, 51, 100, 1].into(),
            principal: Principal::new(7).expect("24 bits"),
            interval: Interval::new(INTERVAL as u8).expect("in range"),
            width: Width::Full,
            delegation: None,
        };
        let zone = "keys.test".parse().expect("a zone");
        let credential = Credential { zone, terms, key: MasterKey::new(Key128::new([9; 16])) };
        Renewal::new(credential, Seed::new([seed; 32]))
    }

    fn second(second: u64) -> UnixTime {
        UnixTime(second * 1_000_000)
    }

    fn found(renewal: &Renewal, epoch: u32) -> Result<Obtained, LookupFailure> {
        let capability = renewal.credential().terms.capability(epoch);
        let until = (u64::from(epoch) + 1) << INTERVAL;
        Ok(Obtained { secret: EpochSecret::new(capability, Key128::new([epoch as u8; 16])), until })
    }

    /// A holder that is looked at each second for `epochs` key epochs, and what it asked for: second and epoch.
    fn requests(renewal: &mut Renewal, epochs: u64) -> Vec<(u64, u32)> {
        let mut requests = Vec::new();
        for now in BEGIN..BEGIN + (epochs << INTERVAL) {
            if let Some(epoch) = renewal.due(second(now)) {
                assert_eq!(renewal.due(second(now)), None, "one at a time");
                requests.push((now, epoch));
                let found = found(renewal, epoch);
                renewal.done(found, second(now));
            }
            let current = (now >> INTERVAL) as u32;
            assert!(renewal.secrets().iter().any(|(of, ..)| *of == current), "{now}");
            assert!(renewal.secrets().len() <= 3);
        }
        requests
    }

    #[test]
    fn each_epoch_is_asked_for_once_and_ahead_at_an_instant_of_each_holders_own() {
        let mut instants = Vec::new();
        for seed in 0..32 {
            let requests = requests(&mut renewal(seed), 10);
            let epochs: Vec<u32> = requests.iter().map(|(_, epoch)| *epoch).collect();
            assert_eq!(epochs, (400_000..400_011).collect::<Vec<u32>>());
            for (now, epoch) in &requests[1..] {
                let left = (u64::from(*epoch) << INTERVAL) - now;
                assert!((256..=1_024).contains(&left), "{left}");
                instants.push(left);
            }
        }
        // Spread: no second has more than a few of 320.
        instants.sort_unstable();
        let most = instants.chunk_by(|a, b| a == b).map(<[u64]>::len).max();
        assert!(most < Some(6), "{most:?}");
    }

    #[test]
    fn a_secret_that_was_revoked_is_given_up_once_somebody_wants_to_know() {
        let mut renewal = renewal(1);
        let epoch = renewal.due(second(BEGIN)).expect("nothing is known");
        let secret = found(&renewal, epoch);
        renewal.done(secret, second(BEGIN));
        renewal.confirm(second(BEGIN + 1));
        assert_eq!(renewal.due(second(BEGIN + 1)), None, "just now");
        renewal.confirm(second(BEGIN + 60));
        assert!(renewal.is_confirming());
        assert_eq!(renewal.due(second(BEGIN + 60)), Some(epoch));
        // A server that is silent changes nothing.
        renewal.done(Err(LookupFailure::Silent), second(BEGIN + 60));
        assert!(!renewal.is_confirming() && renewal.secrets().len() == 1);
        renewal.confirm(second(BEGIN + 120));
        assert_eq!(renewal.due(second(BEGIN + 120)), Some(epoch));
        renewal.done(Err(LookupFailure::Denied(Denial::Revoked)), second(BEGIN + 120));
        assert!(renewal.secrets().is_empty());
    }

    #[test]
    fn a_revocation_takes_what_was_obtained_ahead_too() {
        let mut renewal = renewal(1);
        for _ in 0..2 {
            let next = (BEGIN..).find_map(|now| Some((now, renewal.due(second(now))?)));
            let (now, wanted) = next.expect("some time");
            let secret = found(&renewal, wanted);
            renewal.done(secret, second(now));
        }
        assert_eq!(renewal.secrets().len(), 2, "this epoch's and the next one's");
        let asked = (BEGIN..).find(|now| {
            renewal.confirm(second(*now));
            renewal.due(second(*now)).is_some()
        });
        renewal.done(Err(LookupFailure::Denied(Denial::Revoked)), second(asked.expect("some time")));
        assert!(renewal.secrets().is_empty());
    }

    #[test]
    fn what_fails_is_asked_for_less_and_less_often_and_serves_on_meanwhile() {
        let mut renewal = renewal(1);
        let first = renewal.due(second(BEGIN)).expect("nothing is known");
        let answer = found(&renewal, first);
        renewal.done(answer, second(BEGIN));
        let (mut tries, mut last) = (Vec::new(), None);
        for now in BEGIN..BEGIN + (2 << INTERVAL) {
            if renewal.due(second(now)).is_some() {
                tries.extend(last.map(|last| now - last));
                last = Some(now);
                renewal.done(Err(LookupFailure::Silent), second(now));
            }
        }
        assert_eq!(renewal.failure(), Some(LookupFailure::Silent));
        assert!(tries[0] <= 2 && tries.iter().all(|pause| *pause <= 65), "{tries:?}");
        assert!(tries[8..].iter().all(|pause| *pause >= 32), "{tries:?}");
        assert_eq!(renewal.secrets()[0].0, first, "what was there stays");
        // The clock is set back by a day: at once.
        assert!(renewal.due(second(BEGIN - 86_400)).is_some());
        let answer = found(&renewal, ((BEGIN - 86_400) >> INTERVAL) as u32);
        renewal.done(answer, second(BEGIN - 86_400));
        assert_eq!(renewal.failure(), None);
    }

    #[test]
    fn a_denial_is_waited_out_as_the_provider_says_and_no_longer_than_an_hour_and_an_eighth() {
        for (said, waited) in [(1, 1), (40, 40), (600, 600), (3_600, 3_600), (86_400, 3_600), (u32::MAX, 3_600)] {
            for seed in 0..16 {
                let mut renewal = renewal(seed);
                renewal.due(second(BEGIN));
                let denial = Denial::NotNow { retry_secs: said };
                renewal.done(Err(LookupFailure::Denied(denial)), second(BEGIN));
                assert_eq!(renewal.due(second(BEGIN + waited - 1)), None, "{said}");
                assert!(renewal.due(second(BEGIN + waited + waited / 8 + 1)).is_some(), "{said}");
            }
        }
    }
}
