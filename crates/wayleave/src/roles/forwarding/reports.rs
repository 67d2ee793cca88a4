//! What an ICING node tells others of the paths that it is on: counts of closed windows under its long-term key.

use serde_json::{Value, json};
use wayleave_core::UnixTime;
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::icing::{REPORTED, Report, Router, closed};
use wayleave_runtime::http::{Parameters, ViewError};
use wayleave_runtime::identity::to_hex;

use crate::roles::most_of;

/// Reports of one answer, at most.
const MOST: usize = 100_000;

/// Which reports are asked for.
#[derive(Clone, Debug)]
pub struct Question {
    /// The beginning of the path's handle, in hexadecimal; of all paths if empty.
    handle: String,
    most: usize,
}

impl Question {
    /// Reads a request's parameters.
    pub fn read(parameters: &Parameters) -> Result<Self, ViewError> {
        let handle = parameters.get("handle").map(|handle| handle.to_ascii_lowercase()).unwrap_or_default();
        if !handle.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(ViewError::Request("`handle` is not hexadecimal".to_owned()));
        }
        Ok(Self { handle, most: most_of(parameters)?.min(MOST) })
    }

    /// The reports of windows that are closed at `now`, the last window first, and one more than asked for if there are more.
    pub fn answer(&self, router: &Router, now: UnixTime) -> Vec<Report> {
        let last = closed(now);
        let windows = (0..REPORTED).map(|before| last.wrapping_sub(before));
        let is_asked = |report: &Report| to_hex(&report.handle.0).starts_with(&self.handle);
        windows.flat_map(|window| router.reports(window)).filter(is_asked).take(self.most.saturating_add(1)).collect()
    }

    /// Reports under the node's signature.
    pub fn sign(&self, mut reports: Vec<Report>, identity: &SigningKey) -> Value {
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
                    "signed": to_hex(&report.sign(identity)),
                })
            })
            .collect();
        json!({ "version": 1, "reports": rows, "more": more })
    }
}

#[cfg(test)]
mod tests {
    use wayleave_crypto::secret::Seed;
    use wayleave_dataplane::icing::Count;
    use wayleave_packet::icing::header::Handle;

    use super::*;

    #[test]
    fn an_answer_is_signed_and_says_whether_there_are_more() {
        let identity = SigningKey::from_seed(&Seed::new([1; 32]));
        let count = Count { packets: 5, octets: 500 };
        let reports: Vec<Report> =
            (0..3).map(|window| Report { handle: Handle([7; 16]), index: 1, window, count }).collect();
        let asked = |most: &str| Question::read(&Parameters::from([("most".to_owned(), most.to_owned())]));
        let answer = asked("2").expect("a number").sign(reports.clone(), &identity);
        assert_eq!((answer["reports"].as_array().map(Vec::len), &answer["more"]), (Some(2), &json!(true)));
        assert_eq!(answer["reports"][0]["signed"], to_hex(&reports[0].sign(&identity)));
        let answer = asked("3").expect("a number").sign(reports, &identity);
        assert_eq!((answer["reports"].as_array().map(Vec::len), &answer["more"]), (Some(3), &json!(false)));
        assert!(asked("many").is_err());
        assert!(Question::read(&Parameters::from([("handle".to_owned(), "xyz".to_owned())])).is_err());
    }
}
