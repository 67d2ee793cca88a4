//! What an ICING node reports of the paths that it is on: counts of closed windows, signed with its long-term key.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};
use wayleave_core::UnixTime;
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::icing::{Count, REPORTED, Report, Router, closed};
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
    fn select(&self, router: &Router, most: usize, now: UnixTime) -> Vec<Report> {
        let last = closed(now);
        let windows = (0..REPORTED).map(|before| last.wrapping_sub(before));
        let reports = windows.flat_map(|window| router.reports(window));
        // Alone it knows of no other part, and a part of nothing says nothing.
        let says_nothing = |report: &Report| most < usize::MAX && is_empty_part(report);
        reports.filter(|report| self.is_about(&report.handle) && !says_nothing(report)).take(most).collect()
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
                    "whole": report.is_whole,
                    "packets": report.count.packets,
                    "octets": report.count.octets,
                    "samples": report.count.samples,
                    "failed_samples": report.count.failed,
                    "spoiled": report.count.spoiled,
                    "signed": to_hex(&report.sign(identity)),
                })
            })
            .collect();
        json!({ "version": 1, "reports": rows, "more": more })
    }
}

/// The reports of all threads: a path whose neighbour has moved was counted by two. Where one of them has not counted the whole window the sum
/// is a part, which would say that packets were lost.
fn together(of_threads: Vec<Vec<Report>>) -> Vec<Report> {
    let mut places: HashMap<(Handle, u32), usize> = HashMap::new();
    let mut all: Vec<Report> = Vec::new();
    for report in of_threads.into_iter().flatten() {
        let place = *places.entry((report.handle, report.window)).or_insert(all.len());
        match all.get_mut(place) {
            Some(known) => {
                known.count = known.count.and(report.count);
                known.is_whole &= report.is_whole;
            }
            None => all.push(report),
        }
    }
    all.retain(|report| !is_empty_part(report));
    all
}

fn is_empty_part(report: &Report) -> bool {
    !report.is_whole && report.count == Count::default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wayleave_crypto::secret::Seed;

    #[test]
    fn an_answer_is_signed_and_says_whether_there_are_more() {
        let identity = SigningKey::from_seed(&Seed::new([1; 32]));
        let count = Count { packets: 5, octets: 500, ..Count::default() };
        let reports: Vec<Report> =
            (0..3).map(|window| Report { handle: Handle([7; 16]), index: 1, window, is_whole: true, count }).collect();
        let query = |most: &str| ReportQuery::read(&Parameters::from([("most".to_owned(), most.to_owned())]));
        let answer = query("2").expect("a number").sign(reports.clone(), &identity);
        assert_eq!((answer["reports"].as_array().map(Vec::len), &answer["more"]), (Some(2), &json!(true)));
        assert_eq!(answer["reports"][0]["signed"], to_hex(&reports[0].sign(&identity)));
        let answer = query("3").expect("a number").sign(reports, &identity);
        assert_eq!((answer["reports"].as_array().map(Vec::len), &answer["more"]), (Some(3), &json!(false)));
        assert!(query("many").is_err());
    }

    #[test]
    fn a_path_that_two_threads_have_counted_has_one_report_and_it_is_a_part_if_one_of_them_has_a_part() {
        let report = |octet, window, packets, is_whole| {
            let count =
                Count { packets, octets: 10 * packets, samples: packets, failed: 2 * packets, spoiled: 3 * packets };
            Report { handle: Handle([octet; 16]), index: 1, window, is_whole, count }
        };
        let first = vec![
            report(1, 5, 10, true),
            report(2, 5, 7, true),
            report(1, 4, 3, true),
            report(4, 4, 0, false),
            report(5, 4, 9, true),
        ];
        let second = vec![report(1, 5, 2, true), report(3, 5, 1, true), report(2, 5, 1, false), report(5, 4, 0, false)];
        let expected = [
            report(1, 5, 12, true),
            report(2, 5, 8, false),
            report(1, 4, 3, true),
            report(5, 4, 9, false),
            report(3, 5, 1, true),
        ];
        assert_eq!(together(vec![first, second]), expected);
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
