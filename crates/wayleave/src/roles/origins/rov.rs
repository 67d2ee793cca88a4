//! What the RPKI alone says of origins and paths, for a member that validates origins (RFC 6811), with attestation or without.

use std::sync::Arc;

use serde::Serialize;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use wayleave_bgp::origins::{Vrp, Vrps};
use wayleave_bgp::rpki::Records;
use wayleave_runtime::http::{Metric, Unit};
use wayleave_runtime::metrics;
use wayleave_runtime::rpki::rtr::CacheState;
use wayleave_runtime::rpki::{PreferredSource, RpkiData};

use super::cache::{Answer, FollowedCache, Standing};
use super::{FIRST_ANSWER, cache_changed, name, report};

/// Seconds after which it is a problem that nothing is known yet.
const FIRST_DATA: u64 = 60;
/// Seconds after which a file that was not written again is a problem: validators write theirs every hour at least.
pub(super) const OLD_FILE: u64 = 86_400;

/// What is known of origins.
#[derive(Clone, Default)]
pub struct OriginData {
    /// `None` while nothing is known.
    pub records: Option<Records>,
    /// `None` without a source.
    pub source: Option<SourceStatus>,
    /// What the records were made of.
    validated: Arc<RpkiData>,
}

/// How the source of what is known of origins stands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SourceStatus {
    /// The cache's address, or the file's path.
    pub source: String,
    /// `never heard`, `current`, `stale`, `expired` or `dropped`.
    pub standing: &'static str,
    /// Why it is not connected, or not read, while it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    pub vrps: usize,
    /// ASes with ASPA records.
    pub aspas: usize,
    /// The cache's serial number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<u32>,
    /// When the cache sent its last update, or the file was written, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated: Option<u64>,
    /// Since when it counts, in seconds since 1970, and how each source stands, the most preferred first; absent where only one is
    /// configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts_since: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<OneSource>,
    #[serde(skip)]
    is_file: bool,
    /// Whether another source is configured in its place, which has not answered yet.
    #[serde(skip)]
    is_replaced: bool,
    /// Since when it is followed, in seconds since 1970.
    #[serde(skip)]
    since: u64,
}

/// How one of several sources stands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct OneSource {
    pub source: String,
    pub preference: u32,
    /// Whether what it says is what counts.
    pub counts: bool,
    pub standing: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    pub vrps: usize,
    pub aspas: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated: Option<u64>,
    #[serde(skip)]
    is_file: bool,
}

impl From<Standing> for OneSource {
    fn from(standing: Standing) -> Self {
        let Standing { name: source, is_file, preference, counts, state, problem, vrps, customers, updated } = standing;
        Self { source, preference, counts, standing: name(state), problem, vrps, aspas: customers, updated, is_file }
    }
}

impl OneSource {
    /// What it is, and which.
    fn name(&self) -> String {
        format!("{} {}", if self.is_file { "the file of ROAs" } else { "the RTR cache" }, self.source)
    }

    /// Why it does not count, or could not be fallen back to, at `now`.
    fn fault(&self, now: u64) -> Option<String> {
        let is_old = self.is_file && self.updated.is_some_and(|updated| updated + OLD_FILE < now);
        let what = match self.standing {
            "current" if self.vrps == 0 && self.aspas == 0 => "it has no ROA at all",
            "current" if is_old => "it was not written for more than a day",
            "current" => return None,
            "never heard" if self.is_file => "it has not been read yet",
            "never heard" => "it has not answered yet",
            "stale" if self.is_file => "it cannot be read",
            "stale" => "it is not connected",
            "expired" => "what it sent has expired",
            _ => "what it sent was dropped",
        };
        Some(self.problem.as_ref().map_or_else(|| what.to_owned(), |why| format!("{what}: {why}")))
    }
}

impl OriginData {
    /// What is known now; `before` was known before.
    pub(super) fn of(cache: Option<&mut FollowedCache>, before: &Self) -> Self {
        let Some(answer) = cache.map(FollowedCache::answer) else { return Self::default() };
        let Answer { address, is_file, is_replaced, since, snapshot, counts_since, sources } = answer;
        let is_known = matches!(snapshot.state, CacheState::Current | CacheState::Stale);
        let records = is_known.then(|| match &before.records {
            Some(records) if Arc::ptr_eq(&before.validated, &snapshot.validated) => records.clone(),
            _ => records_of(&snapshot.validated),
        });
        let source = SourceStatus {
            source: address,
            standing: name(snapshot.state),
            problem: snapshot.problem.as_deref().map(str::to_owned),
            vrps: records.as_ref().map_or(0, |records| records.vrps.len()),
            aspas: records.as_ref().map_or(0, |records| records.aspas.len()),
            serial: snapshot.serial,
            updated: snapshot.updated,
            counts_since: (!sources.is_empty()).then_some(counts_since),
            sources: sources.into_iter().map(OneSource::from).collect(),
            is_file,
            is_replaced,
            since,
        };
        Self { records, source: Some(source), validated: snapshot.validated }
    }

    /// Takes over what is known now. Returns whether it differs.
    pub(super) fn take_over(&mut self, cache: Option<&mut FollowedCache>) -> bool {
        let now = Self::of(cache, self);
        let is_same = now.source == self.source && is_same(now.records.as_ref(), self.records.as_ref());
        *self = now;
        !is_same
    }
}

fn records_of(validated: &RpkiData) -> Records {
    let vrp = |vrp: &wayleave_runtime::rpki::Vrp| Vrp { prefix: vrp.prefix, max_length: vrp.max_length, asn: vrp.asn };
    let vrps: Vrps = validated.vrps.iter().map(vrp).collect();
    Records { vrps: Arc::new(vrps), aspas: Arc::new(validated.aspas.iter().copied().collect()) }
}

fn is_same(one: Option<&Records>, other: Option<&Records>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(&one.vrps, &other.vrps) && Arc::ptr_eq(&one.aspas, &other.aspas),
        (one, other) => one.is_none() && other.is_none(),
    }
}

impl SourceStatus {
    /// What is wrong at `now`, in seconds since 1970, and what to do.
    pub fn problem_at(&self, now: u64) -> Option<String> {
        let Self { source, is_file, since, updated, .. } = self;
        let why = self.problem.as_ref().map_or(String::new(), |why| format!(" ({why})"));
        let age = updated.map_or(0, |updated| now.saturating_sub(updated));
        let no_data = "no route is refused for its origin";
        if self.is_replaced {
            let (of, until) = match is_file {
                true => ("the file of ROAs", "for an hour"),
                false => ("the RTR cache", "until it expires"),
            };
            let is_late = now.saturating_sub(*since) >= FIRST_DATA;
            return is_late.then(|| {
                format!(
                    "the source that is configured in the place of {of} {source} has not answered since the reload{why}: what {source} \
                     said counts {until}, and then {no_data}; see whether the new one is there, or correct [rpki]"
                )
            });
        }
        match (self.standing, is_file) {
            ("never heard", _) if now.saturating_sub(*since) < FIRST_DATA => None,
            ("never heard", true) => Some(format!(
                "the file of ROAs {source} has not been read since the start{why}: {no_data}; have your validator write it, or correct \
                 `file` in [rpki]"
            )),
            ("never heard", false) => Some(format!(
                "the RTR cache {source} has not answered since the start{why}: {no_data}; see whether it runs and serves this machine, or \
                 correct `cache` in [rpki]"
            )),
            ("current", _) if self.vrps == 0 => Some(format!(
                "{} {source} has no ROA at all: {no_data}; see whether your validator has its data, or correct [rpki]",
                if *is_file { "the file of ROAs" } else { "the RTR cache" }
            )),
            ("current", true) if age > OLD_FILE => Some(format!(
                "the file of ROAs {source} was last written {} hours ago: routes are refused, and let in, by what was known then; see \
                 whether your validator still writes it",
                age / 3_600
            )),
            ("current", _) => None,
            ("stale", true) => Some(format!(
                "the file of ROAs {source} cannot be read{why}: what was read before still counts; see what your validator wrote"
            )),
            ("stale", false) => Some(format!(
                "the RTR cache {source} is not connected{why}: what it sent counts until it expires; see whether it runs"
            )),
            (standing, _) => Some(format!(
                "what the RTR cache {source} sent has {standing}{why}: {no_data} until it answers again; see whether it runs"
            ))
            .map(|text| text.replace("has dropped", "was dropped")),
        }
    }

    /// What is wrong at `now` with the other sources: each that is preferred to the one that counts and does not count, and each that
    /// could not be fallen back to.
    pub fn others_at(&self, now: u64) -> Vec<String> {
        let counting = self.sources.iter().position(|source| source.counts);
        let Some(counting) = counting.filter(|_| !self.is_replaced) else { return Vec::new() };
        let is_late = now.saturating_sub(self.since) >= FIRST_DATA;
        let said = |(at, source): (usize, &OneSource)| {
            let (name, preference) = (source.name(), source.preference);
            if at == counting || (source.standing == "never heard" && !is_late) {
                return None;
            }
            let why = source.fault(now)?;
            let chosen = &self.sources[counting];
            Some(if at < counting {
                let ago = age(now.saturating_sub(self.counts_since.unwrap_or(now)));
                format!(
                    "{name} (preference {preference}) does not count ({why}): {} (preference {}) does, for {ago}; see whether it runs, or \
                     correct its [[rpki.source]]",
                    chosen.name(),
                    chosen.preference
                )
            } else {
                format!(
                    "{name} (preference {preference}) could not be fallen back to ({why}); see whether it runs, or correct its [[rpki.source]]"
                )
            })
        };
        self.sources.iter().enumerate().filter_map(said).collect()
    }

    /// One line for the screen.
    pub fn line(&self, now: u64) -> String {
        let serial = self.serial.map_or(String::new(), |serial| format!(", serial {serial}"));
        let age = self.updated.map_or(String::new(), |updated| format!(", {} old", age(now.saturating_sub(updated))));
        let state = if self.standing == "current" { String::new() } else { format!(", {}", self.standing) };
        let s = if self.vrps == 1 { "" } else { "s" };
        let aspas = match self.aspas {
            0 => String::new(),
            1 => " and ASPA records of 1 AS".to_owned(),
            many => format!(" and ASPA records of {} ASes", thousands(many)),
        };
        let chosen = self.sources.iter().find(|source| source.counts);
        let preference = chosen.map_or(String::new(), |chosen| format!(" (preference {})", chosen.preference));
        format!("rpki: {} VRP{s}{aspas} from {}{preference}{serial}{age}{state}", thousands(self.vrps), self.source)
    }

    pub fn metrics(&self) -> Vec<Metric> {
        let mut all = metrics! {
            gauge "rpki" Up "Whether the RTR cache is connected, or the file of ROAs is read, and in force with at least one VRP" =
                self.standing == "current" && self.vrps > 0;
            gauge "rpki" Prefixes "Prefixes with the AS that may originate them (VRPs), of the RTR cache or the file of ROAs" = self.vrps;
        };
        all.extend(metrics! {
            gauge "rpki_aspa" Objects "ASes with ASPA records, of the same source" = self.aspas;
        });
        let each = |value: fn(&OneSource) -> bool| {
            let labels = |source: &OneSource| {
                vec![("source", source.source.clone()), ("preference", source.preference.to_string())]
            };
            self.sources.iter().map(|source| (labels(source), f64::from(value(source)))).collect::<Vec<_>>()
        };
        let up = each(|source| source.standing == "current" && source.vrps > 0);
        all.push(Metric::gauges(
            "rpki_source",
            Unit::Up,
            "Whether each of several sources is in force with at least one VRP",
            up,
        ));
        let chosen = each(|source| source.counts);
        all.push(Metric::gauges(
            "rpki_chosen",
            Unit::Up,
            "Whether each of several sources is the one that counts",
            chosen,
        ));
        if let Some(updated) = self.updated {
            all.extend(metrics! {
                gauge "rpki_updated" Seconds "When they were last updated, in seconds since 1970" = updated;
            });
        }
        all
    }
}

/// A number with a comma after every three digits from the end.
fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn age(secs: u64) -> String {
    match secs {
        0..120 => format!("{secs} s"),
        120..7_200 => format!("{} min", secs / 60),
        _ => format!("{} h", secs / 3_600),
    }
}

/// Follows a cache or a file until it is dropped: for a member without attestation.
pub struct PlainOrigins {
    sources: watch::Sender<Vec<PreferredSource>>,
    /// What is known.
    pub data: watch::Receiver<OriginData>,
    task: JoinHandle<()>,
}

impl PlainOrigins {
    /// Follows them from now on. The first answer is waited for, but not for long.
    pub async fn follow(source: Vec<PreferredSource>) -> Self {
        let mut cache = FollowedCache::start(source.clone());
        if let Some(cache) = &mut cache {
            // A later answer is taken over when it comes.
            let _ = timeout(FIRST_ANSWER, cache.answered()).await;
        }
        let (sources, changes) = watch::channel(source);
        let first = OriginData::of(cache.as_mut(), &OriginData::default());
        cache.as_mut().map(FollowedCache::answer).iter().for_each(report);
        let (data, known) = watch::channel(first);
        let task = tokio::spawn(follow_plain(changes, cache, data));
        Self { sources, data: known, task }
    }

    /// Follows others from now on, or none; what was known of those before counts until one of these has answered, or it expires.
    pub fn follow_other(&self, source: Vec<PreferredSource>) {
        self.sources.send_replace(source);
    }
}

impl Drop for PlainOrigins {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow_plain(
    mut sources: watch::Receiver<Vec<PreferredSource>>,
    mut cache: Option<FollowedCache>,
    data: watch::Sender<OriginData>,
) {
    loop {
        tokio::select! {
            changed = sources.changed() => match changed {
                Ok(()) => FollowedCache::follow(&mut cache, sources.borrow_and_update().clone()),
                Err(_) => return,
            },
            () = cache_changed(&mut cache) => {}
        }
        let (before, now) = {
            let before = data.borrow();
            (before.clone(), OriginData::of(cache.as_mut(), &before))
        };
        let standing = |data: &OriginData| data.source.as_ref().map(|source| (source.standing, source.source.clone()));
        if standing(&before) != standing(&now) {
            cache.as_mut().map(FollowedCache::answer).iter().for_each(report);
        }
        data.send_replace(now);
    }
}

/// Gives the machine what is known whenever it differs from what it was given last, until the machine has stopped.
pub fn forward<E, I>(
    mut data: watch::Receiver<OriginData>,
    mut given: Option<Records>,
    events: mpsc::Sender<E>,
    input: fn(Option<Records>) -> I,
) where
    E: From<I> + Send + 'static,
    I: Send + 'static,
{
    tokio::spawn(async move {
        loop {
            let records = data.borrow_and_update().records.clone();
            if !is_same(records.as_ref(), given.as_ref()) {
                given.clone_from(&records);
                if events.send(input(records).into()).await.is_err() {
                    return;
                }
            }
            if data.changed().await.is_err() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    //! OPS, origins: a cache that does not answer, goes away or expires: said with what counts meanwhile and what to do.

    use super::*;
    use wayleave_runtime::rpki::DataSource;

    fn status(standing: &'static str, is_file: bool) -> SourceStatus {
        let source = if is_file { "roas.json" } else { "127.0.0.1:3323" }.to_owned();
        let (problem, serial) = (None, (!is_file).then_some(7));
        SourceStatus {
            source,
            standing,
            problem,
            vrps: 512_345,
            aspas: 0,
            serial,
            updated: Some(1_000),
            counts_since: None,
            sources: Vec::new(),
            is_file,
            is_replaced: false,
            since: 1_000,
        }
    }

    #[test]
    fn what_is_wrong_with_the_source_is_said_with_what_counts_and_what_to_do() {
        for (standing, is_file, now, expected) in [
            ("never heard", false, 1_059, None),
            ("never heard", false, 1_060, Some("has not answered since the start: no route is refused for its origin")),
            ("never heard", true, 1_060, Some("has not been read since the start: no route is refused")),
            ("current", false, 1_000_000, None),
            ("current", true, 1_000 + 86_400, None),
            ("current", true, 1_000 + 90_000, Some("was last written 25 hours ago")),
            ("stale", false, 1_000, Some("is not connected: what it sent counts until it expires")),
            ("stale", true, 1_000, Some("cannot be read: what was read before still counts")),
            ("expired", false, 1_000, Some("sent has expired: no route is refused for its origin")),
            ("dropped", false, 1_000, Some("sent was dropped: no route is refused for its origin")),
        ] {
            let said = status(standing, is_file).problem_at(now);
            assert_eq!(said.is_some(), expected.is_some(), "{standing}: {said:?}");
            let has = |expected| said.as_ref().is_some_and(|said| said.contains(expected));
            assert!(expected.is_none_or(has), "{standing}: {said:?}");
        }
    }

    #[test]
    fn a_source_without_any_roa_is_a_problem_and_not_up() {
        let up = |status: &SourceStatus| format!("{:?}", status.metrics()[0]).contains("Gauge(1.0)");
        for (is_file, expected) in
            [(true, "the file of ROAs roas.json has no"), (false, "the RTR cache 127.0.0.1:3323 has no")]
        {
            assert!(up(&status("current", is_file)));
            let empty = SourceStatus { vrps: 0, ..status("current", is_file) };
            let said = empty.problem_at(1_000).expect("a problem");
            assert!(said.contains(expected) && said.contains("no route is refused for its origin"), "{said}");
            assert!(!up(&empty));
        }
    }

    #[test]
    fn a_source_whose_successor_does_not_answer_is_said_after_a_minute() {
        for (is_file, expected) in [(true, "counts for an hour"), (false, "counts until it expires")] {
            let replaced = SourceStatus { is_replaced: true, ..status("stale", is_file) };
            assert_eq!(replaced.problem_at(1_059), None);
            let said = replaced.problem_at(1_060).expect("a problem");
            assert!(said.contains(expected) && said.contains("has not answered since the reload"), "{said}");
        }
    }

    #[test]
    fn of_several_sources_it_is_said_which_counts_and_why_another_does_not() {
        let one = |preference: u32, standing: &'static str, counts| OneSource {
            source: format!("127.0.0.1:{preference}"),
            preference,
            counts,
            standing,
            problem: (standing == "stale").then(|| "it did not answer in time".to_owned()),
            vrps: 7,
            aspas: 1,
            updated: Some(1_000),
            is_file: preference == 3,
        };
        let all = |sources: [(&'static str, bool); 3]| {
            let sources = (1..).zip(sources).map(|(at, (standing, counts))| one(at, standing, counts)).collect();
            SourceStatus { sources, counts_since: Some(1_000), ..status("current", false) }
        };
        let said = all([("stale", false), ("current", true), ("never heard", false)]);
        assert_eq!(
            said.others_at(1_059),
            [
                "the RTR cache 127.0.0.1:1 (preference 1) does not count (it is not connected: it did not answer in time): the RTR cache \
              127.0.0.1:2 (preference 2) does, for 59 s; see whether it runs, or correct its [[rpki.source]]"
            ]
        );
        let late = said.others_at(1_060);
        let last = "the file of ROAs 127.0.0.1:3 (preference 3) could not be fallen back to (it has not been read yet); see whether";
        assert!(late.len() == 2 && late[1].starts_with(last), "{late:?}");
        assert!(
            said.line(1_030).starts_with("rpki: 512,345 VRPs from 127.0.0.1:3323 (preference 2), serial 7"),
            "{}",
            said.line(1_030)
        );
        assert!(all([("current", true), ("current", false), ("current", false)]).others_at(1_060).is_empty());
        let old = all([("current", true), ("current", false), ("current", false)]).others_at(1_000 + OLD_FILE + 1);
        assert!(old.len() == 1 && old[0].contains("was not written for more than a day"), "{old:?}");
        let json = serde_json::to_value(&said).expect("JSON");
        assert_eq!((&json["sources"][1]["counts"], &json["sources"][0]["standing"]), (&true.into(), &"stale".into()));
    }

    #[test]
    fn one_line_says_how_much_is_known_from_where_and_how_old_it_is() {
        assert_eq!(status("current", false).line(1_030), "rpki: 512,345 VRPs from 127.0.0.1:3323, serial 7, 30 s old");
        let with = SourceStatus { aspas: 2_001, ..status("current", false) };
        let said = "rpki: 512,345 VRPs and ASPA records of 2,001 ASes from 127.0.0.1:3323, serial 7, 30 s old";
        assert_eq!(with.line(1_030), said);
        assert_eq!(status("stale", true).line(8_300), "rpki: 512,345 VRPs from roas.json, 2 h old, stale");
        assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }

    #[tokio::test]
    async fn a_file_that_appears_counts_and_without_a_source_nothing_does() {
        let path = std::env::temp_dir().join(format!("wayleave-rov-{}", std::process::id()));
        let roas = |asn: u32| format!("{{\"roas\":[{{\"asn\":{asn},\"prefix\":\"192.0.2.0/24\",\"maxLength\":24}}]}}");
        std::fs::write(&path, roas(64_496)).expect("written");
        let source = PreferredSource { preference: 1, source: DataSource::File(path.clone()) };
        let followed = PlainOrigins::follow(vec![source]).await;
        let mut data = followed.data.clone();
        let known = data.borrow_and_update().clone();
        assert_eq!(known.records.map(|records| records.vrps.len()), Some(1));
        std::fs::write(&path, "{\"roas\":").expect("written");
        let is_stale = |data: &OriginData| data.source.as_ref().is_some_and(|source| source.standing == "stale");
        let known = data.wait_for(is_stale).await.expect("followed").clone();
        assert_eq!(known.records.map(|records| records.vrps.len()), Some(1), "what was read before stays");
        assert!(known.source.is_some_and(|source| source.problem.is_some_and(|why| why.contains("at line 1"))));
        followed.follow_other(Vec::new());
        let known = data.wait_for(|data| data.source.is_none()).await.expect("followed").clone();
        assert!(known.records.is_none());
        std::fs::remove_file(&path).expect("removed");
    }
}
