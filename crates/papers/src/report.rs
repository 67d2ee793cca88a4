//! The results of one benchmark, and the summaries of samples that they are made of.

use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};

/// What a benchmark measured. `wayleave-lab bench` prints it as JSON or as a table.
#[derive(Clone, Debug)]
pub struct Report {
    pub name: &'static str,
    pub params: Map<String, Value>,
    pub results: Vec<Measurement>,
}

/// One result: a summary of all repetitions of one measurement.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Stable, since scripts read it; `.` separates its parts.
    pub name: Cow<'static, str>,
    /// SI, or `packets/s`, `bytes`, `ratio` and the like.
    pub unit: &'static str,
    /// The median of the samples, unless the benchmark gives another summary.
    pub value: f64,
    /// Samples, or things counted.
    pub n: usize,
    pub min: f64,
    pub max: f64,
}

/// What was measured so far by this process, for who stops it.
static MEASURED: Mutex<Vec<Measurement>> = Mutex::new(Vec::new());

fn measured() -> MutexGuard<'static, Vec<Measurement>> {
    // A measurement is whole or not there.
    MEASURED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The results that all reports of this process have so far; of one that was added again, as a median of more samples, the last.
#[must_use]
pub fn so_far() -> Vec<Measurement> {
    measured().clone()
}

impl Report {
    /// A report without results. `params` is a JSON object.
    #[must_use]
    pub fn new(name: &'static str, params: Value) -> Self {
        let params = match params {
            Value::Object(params) => params,
            _ => Map::new(),
        };
        Self { name, params, results: Vec::new() }
    }

    /// Adds the median of `samples`.
    pub fn add(&mut self, name: impl Into<Cow<'static, str>>, unit: &'static str, samples: &[f64]) {
        self.summary(name, unit, samples, median(samples));
    }

    /// Adds another summary of `samples`.
    pub fn summary(&mut self, name: impl Into<Cow<'static, str>>, unit: &'static str, samples: &[f64], value: f64) {
        let min = samples.iter().copied().fold(f64::INFINITY, f64::min);
        let max = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        self.push(Measurement { name: name.into(), unit, value, n: samples.len(), min, max });
    }

    fn push(&mut self, measurement: Measurement) {
        let mut measured = measured();
        measured.retain(|known| known.name != measurement.name);
        measured.push(measurement.clone());
        drop(measured);
        self.results.push(measurement);
    }

    /// Adds a value that comes from `n` counted things in one run.
    pub fn counted(&mut self, name: impl Into<Cow<'static, str>>, unit: &'static str, value: f64, n: usize) {
        self.push(Measurement { name: name.into(), unit, value, n, min: value, max: value });
    }

    /// Adds a value that is the same in every repetition.
    pub fn exact(&mut self, name: impl Into<Cow<'static, str>>, unit: &'static str, value: f64) {
        self.add(name, unit, &[value]);
    }

    /// The value of the result `name`, if it was added.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<f64> {
        self.results.iter().find(|result| result.name == name).map(|result| result.value)
    }
}

/// The middle sample, or the mean of the two in the middle; zero without samples.
#[must_use]
pub fn median(samples: &[f64]) -> f64 {
    let sorted = sorted(samples);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
    f64::midpoint(at(sorted.len().saturating_sub(1) / 2), at(sorted.len() / 2))
}

/// The least sample that at least `percent` of all do not exceed; zero without samples.
#[must_use]
pub fn percentile(samples: &[f64], percent: usize) -> f64 {
    let sorted = sorted(samples);
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// The arithmetic mean; zero without samples.
#[must_use]
pub fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len().max(1) as f64
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The same times in seconds.
#[must_use]
pub fn seconds(times: &[Duration]) -> Vec<f64> {
    times.iter().map(Duration::as_secs_f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0, 2.0]), 2.0);
        assert_eq!((median(&[5.0]), median(&[])), (5.0, 0.0));
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((percentile(&hundred, 99), percentile(&hundred, 100), percentile(&[7.0], 99)), (99.0, 100.0, 7.0));
    }
}
