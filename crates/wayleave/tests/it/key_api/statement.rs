//! A statement in pages, of a key server that adds usage of closed time up while they are read.
//!
//! PLA, usage by pages: usage of closed time is added up while a statement is read in pages: pages of one time, or
//! refused; the command begins again.

use std::fs;
use std::thread;

use serde_json::Value;
use wayleave_dataplane::platypus::record;
use wayleave_packet::platypus::header::{DelegationId, Interval, Principal};
use wayleave_packet::platypus::verify::Charge;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::store::{Change, FileStore, Store};

use super::world::World;
use crate::common::{eventually, free};

const DAY: u64 = 86_400;
const INTERVAL: u8 = 12;
/// Totals: three times as many as a page has lines, or the server reads at a time.
const TOTALS: u32 = 3_000;

/// Puts totals of one router into the file of a server that does not run: of a few principals, their delegations, and ten key epochs
/// a week ago. All have as many packets as the one before, and one more.
fn put(world: &World) -> u128 {
    let store = FileStore::open(&world.folder.0.join("server/usage")).expect("nobody has it open");
    let first = ((unix_now().secs() - 7 * DAY) >> INTERVAL) as u32;
    let change = |number: u32| {
        let id = DelegationId::new(1 + number / 40).expect("24 bits");
        let account = record::encode(&Charge {
            principal: Principal::new(7 + number % 4).expect("24 bits"),
            delegation: Some((id, None)),
            interval: Interval::new(INTERVAL),
            epoch: first + number / 4 % 10,
        });
        let packets = u128::from(number);
        Change {
            table: "usage",
            key: [&1_u16.to_be_bytes()[..], &[5; 16], &account].concat(),
            value: Some([packets.to_be_bytes(), (packets * 100).to_be_bytes()].concat()),
        }
    };
    store.submit((0..TOTALS).map(change).collect(), Box::new(|| ())).expect("there is room");
    store.close();
    (0..u128::from(TOTALS)).sum()
}

fn packets(page: &Value) -> u128 {
    let lines = page["usage"].as_array().expect("lines");
    lines
        .iter()
        .map(|line| line["packets"].as_str().and_then(|text| text.parse::<u128>().ok()).expect("a number"))
        .sum()
}

/// Closes the time before so many days ago, and waits until all of it is folded.
fn close(world: &World, days: u64) {
    let before = (unix_now().secs() - days * DAY).to_string();
    world.folder.ok(&["cap", "usage", "--close", &before, "--force", "--config", "server/key.toml"]);
    let folded = || world.call(Some(&world.read), "GET", "/v1/usage?by=epoch&most=10000", None).json();
    let is_month = |line: &Value| line["epoch"].is_null();
    eventually("it is folded", || folded()["usage"].as_array().expect("lines").iter().all(is_month));
}

#[test]
fn pages_of_a_statement_are_of_one_time_or_are_refused_and_the_command_begins_again() {
    let routers = format!("[key.routers]\nlisten = \"{}\"\nidentity = \"identity.key\"\nusage = \"usage\"\n", free());
    let mut world = World::with("statement", &routers);
    world.running.kill();
    let all = put(&world);
    world.running.resume();
    let page = |after: Option<&str>| {
        let after = after.map_or(String::new(), |after| format!("&after={after}"));
        world.call(Some(&world.read), "GET", &format!("/v1/usage?by=epoch&most=1000{after}"), None)
    };
    // Undisturbed, the pages have all of it.
    let (mut sum, mut lines, mut after) = (0, 0, None::<String>);
    loop {
        let page = page(after.as_deref()).json();
        lines += page["usage"].as_array().expect("lines").len();
        sum += packets(&page);
        let Some(next) = page["next"].as_str() else { break };
        after = Some(next.to_owned());
    }
    assert_eq!((sum, lines), (all, TOTALS as usize));
    // The command reads page after page while usage is folded.
    let shown = world.folder.ok(&["keys", "show", "server/api.key", "--json"]);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    let pin = shown["api_pin"].as_str().expect("a pin");
    let url = format!("https://{}", world.api);
    let command = ["cap", "usage", "--by", "epoch", "--json", "--api", &url, "--token", "read.token", "--pin", pin];
    let first = page(None).json();
    let next = first["next"].as_str().expect("more");
    thread::scope(|scope| {
        let reading = scope.spawn(|| {
            (0..4).map(|_| serde_json::from_str(&world.folder.ok(&command)).expect("JSON")).collect::<Vec<Value>>()
        });
        close(&world, 5);
        for statement in reading.join().expect("no panic") {
            assert_eq!(packets(&statement), all);
        }
    });
    // A page that was begun before would have usage that an earlier one had, in a sum of its month.
    let refused = page(Some(next));
    assert!(refused.status == 410 && refused.is("gone"), "{refused:?}");
    assert!(refused.json()["help"].as_str().is_some_and(|help| help.contains("begin again")), "{refused:?}");
    assert_eq!(packets(&page(None).json()), all);
    let csv = world.call(Some(&world.read), "GET", &format!("/v1/usage?by=epoch&format=csv&after={next}"), None);
    assert_eq!(csv.status, 410);
    assert!(fs::metadata(world.folder.0.join("server/usage.closed")).is_ok());
}
