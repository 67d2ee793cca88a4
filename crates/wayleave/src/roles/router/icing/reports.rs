//! What an ICING node reports of the paths that it is on: counts of closed windows, signed with its long-term key.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Value, json};
use wayleave_core::UnixTime;
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::icing::{REPORTED, Report, Router, closed};
use wayleave_packet::icing::header::Handle;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::http::{Parameters, ViewError};
use wayleave_runtime::identity::to_hex;

use super::Icing;
use crate::roles::daemon::most;
use crate::roles::router::threads::Threads;

/// Reports of one answer, at most.
const MOST: usize = 10_000;

/// Which reports are wanted.
#[derive(Clone, Debug)]
pub struct ReportQuery {
    /// The first digits of the path's handle, 0 to 15 each; of all paths if there are none.
    handle: Vec<u8>,
    most: usize,
}

impl ReportQuery {
    /// Reads a request's parameters.
    pub fn read(parameters: &Parameters) -> Result<Self, ViewError> {
        let digits = parameters.get("handle").map_or("", String::as_str).chars();
        let handle: Option<Vec<u8>> = digits.map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
        let handle = handle.ok_or_else(|| ViewError::Request("`handle` is not hexadecimal".to_owned()))?;
        Ok(Self { handle, most: most(parameters)?.min(MOST) })
    }

    /// Collects the reports of all threads and signs them.
    pub async fn answer(self, threads: &Threads<Icing>, identity: &Arc<SigningKey>) -> Result<Value, ViewError> {
        let (query, now) = (self.clone(), unix_now());
        // Of several threads one may have the other part of any path.
        let most = if threads.count() > 1 { usize::MAX } else { query.most.saturating_add(1) };
        let of_threads = threads.query_all(move |worker| query.select(&worker.format.router, most, now)).await;
        let reports = together(of_threads.ok_or(ViewError::Unavailable)?);
        let identity = Arc::clone(identity);
        // Signatures take some tens of microseconds each.
        let signed = tokio::task::spawn_blocking(move || self.sign(reports, &identity));
        signed.await.map_err(|_| ViewError::Unavailable)
    }

    /// What a thread has of windows that are closed at `now`, the last window first, so many reports at most.
    fn select(&self, router: &Router, most: usize, now: UnixTime) -> OfThread {
        let last = closed(now);
        let windows = || (0..REPORTED).map(|before| last.wrapping_sub(before));
        let reports = windows().flat_map(|window| router.reports(window));
        let in_part = |window| router.counted_in_part(window).map(move |handle| (handle, window));
        OfThread {
            reports: reports.filter(|report| self.is_about(&report.handle)).take(most).collect(),
            in_part: windows().flat_map(in_part).filter(|(handle, _)| self.is_about(handle)).collect(),
        }
    }

    fn is_about(&self, handle: &Handle) -> bool {
        let digits = handle.0.iter().flat_map(|octet| [octet >> 4, octet & 15]);
        self.handle.len() <= 2 * handle.0.len() && digits.zip(&self.handle).all(|(digit, prefix)| digit == *prefix)
    }

    /// Reports under the node's signature.
    fn sign(&self, mut reports: Vec<Report>, identity: &SigningKey) -> Value {
        let more = reports.len() > self.most;
        reports.truncate(self.most);
        let rows: Vec<Value> = reports
            .iter()
            .map(|report| {
                json!({
                    "handle": to_hex(&report.handle.0),
                    "index": report.index,
                    "window": report.window,
                    "packets": report.count.packets,
                    "octets": report.count.octets,
                    "samples": report.count.samples,
                    "failed_samples": report.count.failed,
                    "signed": to_hex(&report.sign(identity)),
                })
            })
            .collect();
        json!({ "version": 1, "reports": rows, "more": more })
    }
}

/// What one thread has counted.
#[derive(Clone, Default, Debug)]
struct OfThread {
    reports: Vec<Report>,
    /// Paths and windows of which it may have counted a part.
    in_part: HashSet<(Handle, u32)>,
}

/// The reports of all threads: a path whose neighbour has moved was counted by two. Where one of them has counted a part there is none: it
/// would say that packets were lost.
fn together(of_threads: Vec<OfThread>) -> Vec<Report> {
    let mut places: HashMap<(Handle, u32), usize> = HashMap::new();
    let mut all: Vec<Report> = Vec::new();
    for report in of_threads.iter().flat_map(|of| &of.reports) {
        let key = (report.handle, report.window);
        if of_threads.iter().any(|of| of.in_part.contains(&key)) {
            continue;
        }
        let place = *places.entry(key).or_insert(all.len());
        match all.get_mut(place) {
            Some(known) => {
                let (known, more) = (&mut known.count, report.count);
                known.packets += more.packets;
                known.octets += more.octets;
                known.samples += more.samples;
                known.failed += more.failed;
            }
            None => all.push(*report),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use wayleave_crypto::secret::Seed;
    use wayleave_dataplane::icing::Count;

    use super::*;

    #[test]
    fn an_answer_is_signed_and_says_whether_there_are_more() {
        let identity = SigningKey::from_seed(&Seed::new([1; 32]));
        let count = Count { packets: 5, octets: 500, ..Count::default() };
        let reports: Vec<Report> =
            (0..3).map(|window| Report { handle: Handle([7; 16]), index: 1, window, count }).collect();
        let query = |most: &str| ReportQuery::read(&Parameters::from([("most".to_owned(), most.to_owned())]));
        let answer = query("2").expect("a number").sign(reports.clone(), &identity);
        assert_eq!((answer["reports"].as_array().map(Vec::len), &answer["more"]), (Some(2), &json!(true)));
        assert_eq!(answer["reports"][0]["signed"], to_hex(&reports[0].sign(&identity)));
        let answer = query("3").expect("a number").sign(reports, &identity);
        assert_eq!((answer["reports"].as_array().map(Vec::len), &answer["more"]), (Some(3), &json!(false)));
        assert!(query("many").is_err());
    }

    #[test]
    fn a_path_that_two_threads_have_counted_has_one_report_unless_one_has_counted_a_part() {
        let report = |octet, window, packets| {
            let count = Count { packets, octets: 10 * packets, samples: packets, failed: 2 * packets };
            Report { handle: Handle([octet; 16]), index: 1, window, count }
        };
        let first =
            OfThread { reports: vec![report(1, 5, 10), report(2, 5, 7), report(1, 4, 3)], ..OfThread::default() };
        let second = OfThread {
            reports: vec![report(1, 5, 2), report(3, 5, 1)],
            in_part: [(Handle([2; 16]), 5), (Handle([1; 16]), 3)].into(),
        };
        assert_eq!(together(vec![first, second]), [report(1, 5, 12), report(1, 4, 3), report(3, 5, 1)]);
    }

    #[test]
    fn a_path_is_queried_by_the_first_digits_of_its_handle() {
        let query = |handle: &str| ReportQuery::read(&Parameters::from([("handle".to_owned(), handle.to_owned())]));
        let handle = Handle(std::array::from_fn(|index| 0x1b + index as u8));
        for (digits, is_about) in [("", true), ("1", true), ("1B1c1", true), ("1c", false), ("1b1d", false)] {
            assert_eq!(query(digits).expect("hexadecimal").is_about(&handle), is_about, "{digits}");
        }
        let whole = to_hex(&handle.0);
        assert!(query(&whole).expect("hexadecimal").is_about(&handle));
        assert!(!query(&(whole + "0")).expect("hexadecimal").is_about(&handle));
        assert!(query("xyz").is_err());
    }
}
