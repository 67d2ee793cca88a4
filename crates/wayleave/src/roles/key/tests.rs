//! A panic with the server in hand, and a clock that goes back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;
use wayleave_core::{Now, UnixTime};
use wayleave_runtime::Clock;

use super::core::{Core, lock};
use super::dns::connection_slots;
use super::follow_database;
use super::usage_metrics::UsageMetrics;
use super::views::{Connections, KeyView};
use crate::config::testing::Provider;
use crate::roles::Events;
use crate::roles::daemon::View;

/// The names of a key server's metrics, on its page.
pub async fn metric_names() -> Vec<String> {
    let provider = Provider::new("metrics");
    let (config, source) = provider.config();
    let (core, _) = Core::open(&config, &source, Clock::start(), Events::default()).expect("opened");
    let connections = Connections { dns: connection_slots(), api: None };
    let view = KeyView::new(&Arc::new(Mutex::new(core)), &config, (None, Arc::default()), (None, connections));
    let mut metrics = view.metrics().await.expect("metrics");
    metrics.extend(UsageMetrics::default().metrics(&BTreeMap::new(), &BTreeMap::new()));
    metrics.iter().map(|metric| metric.name("key")).collect()
}

#[tokio::test]
async fn a_panic_with_the_server_in_hand_ends_the_role() {
    let provider = Provider::new("poisoned");
    let (config, source) = provider.config();
    let clock = Clock::start();
    let (core, _) = Core::open(&config, &source, clock, Events::default()).expect("opened");
    let core = Arc::new(Mutex::new(core));
    let in_hand = Arc::clone(&core);
    let thread = std::thread::spawn(move || {
        let _server = lock(&in_hand);
        panic!("a bug");
    });
    assert!(thread.join().is_err());
    let (failed, mut failures) = mpsc::channel(1);
    follow_database((core, Arc::default()), clock, None, failed).await;
    assert!(failures.try_recv().expect("reported").to_string().contains("`state` of the key server stopped"));
}

#[test]
fn a_list_that_a_clock_signed_which_was_ahead_is_signed_anew_when_it_has_gone_back() {
    let provider = Provider::new("list-clock");
    let (config, source) = provider.config();
    let clock = Clock::start();
    let (core, writer) = Core::open(&config, &source, clock, Events::default()).expect("opened");
    let (core, mut writer) = (Mutex::new(core), writer.expect("one"));
    let list = lock(&core).list().expect("one");
    let number = || list.written().list.expect("written").0;
    let begun = clock.now();
    let at = |minutes: u64, ahead: u64| Now {
        instant: begun.instant + Duration::from_secs(minutes * 60),
        unix: UnixTime(begun.unix.0 + (minutes * 60 + ahead) * 1_000_000),
    };
    let mut numbers = vec![number()];
    // An hour has passed when the clock is a year ahead; then it is right again, and a list is due after an hour.
    for (minutes, ahead) in [(30, 0), (61, 31_536_000), (62, 0), (63, 0), (121, 0), (123, 0)] {
        writer.look(&core, at(minutes, ahead));
        numbers.push(number());
    }
    let is_new: Vec<bool> = numbers.windows(2).map(|pair| pair[0] < pair[1]).collect();
    assert_eq!(is_new, [false, true, true, false, false, true]);
}
