//! Usage of long ago is folded into months at the key server and forgotten at routers: the statement stays what it was, whoever is
//! killed, and whatever is reported again is on no bill.
//!
//! PLA, folded usage: a router that was away when time was closed: its usage is on the next statement once; old usage
//! is folded and stays on the bill once.

use std::time::Duration;

use serde_json::Value;
use sqlx::Connection as _;
use wayleave_dataplane::platypus::record;
use wayleave_packet::platypus::header::{Interval, Principal};
use wayleave_packet::platypus::verify::Charge;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::store::{Change, FileStore, Store};

use super::billed::{Sender, Site};
use super::common::eventually;

const DAY: u64 = 86_400;
const INTERVAL: u8 = 12;

/// The account of principal 7 in the key epoch so many days ago.
fn account(days: u64) -> Vec<u8> {
    let interval = Interval::new(INTERVAL).expect("in range");
    let epoch = ((unix_now().secs() - days * DAY) >> INTERVAL) as u32;
    let principal = Principal::new(7).expect("24 bits");
    record::encode(&Charge { principal, delegation: None, interval: Some(interval), epoch }).to_vec()
}

/// Puts records into a router's store, as a process of that time left them; and perhaps another identity of them.
fn put(site: &Site, router: usize, totals: &[(u64, u128)], journal: Option<[u8; 16]>) {
    let store = FileStore::open(&site.folder.0.join(format!("{router}.redb"))).expect("nobody has it open");
    let record = |(days, packets): &(u64, u128)| Change {
        table: "accounts",
        key: [&[0, 0][..], &account(*days)].concat(),
        value: Some([packets.to_be_bytes(), (packets * 100).to_be_bytes()].concat()),
    };
    let identity = |id: [u8; 16]| Change { table: "usage", key: b"journal".to_vec(), value: Some(id.to_vec()) };
    let changes = totals.iter().map(record).chain(journal.map(identity)).collect();
    store.submit(changes, Box::new(|| ())).expect("there is room");
    store.close();
}

/// Does something to the database behind the key server's back.
fn write(site: &Site, statements: &[&str]) {
    let uri = format!("sqlite://{}", site.folder.0.join("server/accounts.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        sqlx::any::install_default_drivers();
        let mut connection = sqlx::AnyConnection::connect(&uri).await.expect("a database");
        for statement in statements {
            sqlx::query(statement).execute(&mut connection).await.expect("written");
        }
        connection.close().await.expect("closed");
    });
}

fn lines(site: &Site, more: &[&str]) -> Vec<Value> {
    let said = site.ok(&[&["cap", "usage", "--config", "key.toml", "--json"], more].concat());
    let said: Value = serde_json::from_str(&said).expect("JSON");
    said["usage"].as_array().expect("lines").clone()
}

/// Lines of key epochs, and of months.
fn kinds(site: &Site) -> (usize, usize) {
    let lines = lines(site, &["--by", "epoch"]);
    let months = lines.iter().filter(|line| line["epoch"].is_null()).count();
    (lines.len() - months, months)
}

/// What the command says that closes the time before a second.
fn close(site: &Site, second: u64, more: &[&str]) -> (Option<i32>, String) {
    let second = second.to_string();
    let command = ["cap", "usage", "--config", "key.toml", "--json", "--close", &second];
    let output = site.folder.run(&[&command[..], more].concat());
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// Up to when a router has reported everything.
fn confirmed(site: &Site, router: usize) -> Option<u64> {
    site.key.status()["routers"][router]["confirmed"].as_u64()
}

#[test]
fn usage_of_a_router_that_was_away_when_time_was_closed_is_on_the_next_statement_once() {
    let name = "folded::usage_of_a_router_that_was_away_when_time_was_closed_is_on_the_next_statement_once";
    let Some(mut site) = Site::new(name, "", |_, _| String::new()) else { return };
    eventually("both routers are connected", || site.connected());
    // The server has never heard of what the second router has.
    site.routers.iter_mut().chain([&mut site.key]).for_each(|process| process.kill());
    // As if they had never said up to when they have reported everything.
    write(&site, &["DELETE FROM usage_router"]);
    put(&site, 0, &[(10, 1_000)], None);
    put(&site, 1, &[(10, 100)], None);
    site.key.start_process();
    site.routers[0].start_process();
    let day = unix_now().secs() - 5 * DAY;
    eventually("the first router has confirmed", || confirmed(&site, 0) > Some(day) && site.billed() == [1_000, 0]);
    let (code, said) = close(&site, day, &[]);
    assert!(code == Some(1) && said.contains("r1 (confirmed: nothing)"), "{said}");
    assert!(!said.contains("r0"), "{said}");
    let (code, said) = close(&site, day, &["--without", "r9"]);
    assert!(code == Some(2) && said.contains("no router r9"), "{said}");
    let (code, said) = close(&site, day, &["--without", "r1"]);
    assert!(code == Some(0) && said.contains("closed_before"), "{said}");
    eventually("it is folded", || kinds(&site) == (0, 1));
    let day = day.to_string();
    let billed = |site: &Site, more: &[&str]| -> Vec<(u64, bool, String)> {
        let line = |line: &Value| {
            let packets = line["packets"].as_str().expect("a text").to_owned();
            (line["router"].as_u64().expect("a number"), line["late"] == true, packets)
        };
        lines(site, &[&["--by", "router"], more].concat()).iter().map(line).collect()
    };
    let before = [(1, false, "1000".to_owned())];
    assert_eq!(billed(&site, &["--to", &day]), before);
    site.routers[1].start_process();
    let is_complete = |site: &Site| confirmed(site, 1) > day.parse().ok();
    eventually("the late one has confirmed", || is_complete(&site));
    let late = [(2, true, "100".to_owned())];
    assert_eq!((billed(&site, &["--to", &day]), billed(&site, &["--from", &day])), (before.to_vec(), late.to_vec()));
    assert!(site.key.log().contains("usage of closed time"), "{}", site.key.log());
    // It reports that again, also as if it were new, to a server that has started again: it is on no bill.
    site.key.kill();
    site.routers[1].kill();
    put(&site, 1, &[(10, 100)], Some([7; 16]));
    assert_eq!(billed(&site, &["--from", &day]), late, "from the database of a server that was killed");
    site.key.start_process();
    site.routers[1].start_process();
    let waiting = |site: &Site| site.routers[1].status()["provider"]["waiting"].as_u64();
    eventually("everything is acknowledged", || site.connected() && waiting(&site) == Some(0));
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!((billed(&site, &["--to", &day]), billed(&site, &["--from", &day])), (before.to_vec(), late.to_vec()));
}

#[test]
fn old_usage_is_folded_and_forgotten_and_stays_on_the_bill_once() {
    let name = "folded::old_usage_is_folded_and_forgotten_and_stays_on_the_bill_once";
    let Some(mut site) = Site::new(name, "", |_, _| String::new()) else { return };
    eventually("both routers are connected", || site.connected());
    site.routers.iter_mut().for_each(|router| router.kill());
    put(&site, 0, &[(10, 1_000), (60, 2_000), (500, 4_000)], None);
    put(&site, 1, &[(10, 100)], None);
    site.routers.iter_mut().for_each(|router| router.start_process());
    eventually("all of it is reported", || site.billed() == [7_000, 100]);
    // What ended more than 400 days before the last that routers reported is a month now.
    eventually("the oldest is folded", || kinds(&site) == (3, 1) || kinds(&site) == (2, 1));
    let before = lines(&site, &["--by", "principal"]);
    // The router forgets what ended more than forty days ago, since the server has it.
    let kept = |site: &Site| site.routers[0].json("accounts")["accounts"].as_array().map_or(0, Vec::len);
    eventually("the router forgets", || kept(&site) == 1);
    assert_eq!((site.billed(), lines(&site, &["--by", "principal"])), ([7_000, 100], before.clone()));

    // The operator closes the time before five days ago, but not a day that is not over. A router that has confirmed it may be away.
    let now = unix_now().secs();
    let (code, said) = close(&site, now, &[]);
    assert!(code == Some(2) && said.contains("not a day ago"), "{said}");
    let day = now - 5 * DAY;
    eventually("both routers have confirmed", || (0..2).all(|router| confirmed(&site, router) > Some(day)));
    site.routers[1].kill();
    let (code, said) = close(&site, day, &[]);
    assert!(code == Some(0) && said.contains("closed_before"), "{said}");
    site.routers[1].start_process();
    // The server is killed while it closes and folds.
    for kill in 0..6 {
        std::thread::sleep(Duration::from_millis(40 * kill));
        site.key.kill();
        let billed = site.billed();
        assert!(billed[0] == 7_000 && billed[1] == 100, "{billed:?}");
        site.key.start_process();
    }
    eventually("everything old is folded", || kinds(&site).0 == 0);
    assert_eq!((site.billed(), lines(&site, &["--by", "principal"])), ([7_000, 100], before.clone()));
    assert!(site.key.log().contains("usage is closed"), "{}", site.key.log());

    // Routers report what they have again; one under another identity, as if it were new: it is acknowledged, and on no bill.
    site.routers.iter_mut().for_each(|router| router.kill());
    put(&site, 0, &[(10, 1_000), (60, 2_000), (70, 5_000_000)], Some([7; 16]));
    site.routers.iter_mut().for_each(|router| router.start_process());
    let waiting = |router: usize| site.routers[router].status()["provider"]["waiting"].as_u64();
    eventually("everything is acknowledged", || site.connected() && (0..2).all(|router| waiting(router) == Some(0)));
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!((site.billed(), lines(&site, &["--by", "principal"])), ([7_000, 100], before));

    // Packets of today are billed as ever.
    let sender = Sender::start(0);
    eventually("packets arrive", || sender.arrived()[1] > 200);
    let (_, arrived) = sender.stop();
    eventually("they are on the statement", || site.billed() == [7_000 + arrived[0], 100 + arrived[1]]);
    // Months are exact by their own bounds; a time that cuts one off says so.
    let output = site.folder.run(&["cap", "usage", "--config", "key.toml", "--from", &(day - 5 * DAY).to_string()]);
    let has_warning = String::from_utf8_lossy(&output.stderr).contains("whole months");
    let begins = lines(&site, &["--by", "epoch"]).into_iter().filter(|line| line["epoch"].is_null()).count();
    assert!(output.status.success() && begins >= 3, "{begins}");
    assert!(has_warning, "{}", String::from_utf8_lossy(&output.stderr));
}

/// Threat 0b, 2: what if state is old? Links stay up while the database loses what was written last.
#[test]
fn what_a_database_that_is_set_back_under_a_running_server_lacks_is_reported_again() {
    let name = "folded::what_a_database_that_is_set_back_under_a_running_server_lacks_is_reported_again";
    let Some(mut site) = Site::new(name, "", |_, _| String::new()) else { return };
    eventually("both routers are connected", || site.connected());
    site.routers.iter_mut().for_each(|router| router.kill());
    put(&site, 0, &[(10, 1_000)], None);
    put(&site, 1, &[(10, 100)], None);
    site.routers.iter_mut().for_each(|router| router.start_process());
    eventually("all of it is reported", || site.billed() == [1_000, 100]);
    let tables = ["usage_record", "usage_journal", "usage_payer", "usage_router"];
    let delete: Vec<String> = tables.iter().map(|table| format!("DELETE FROM {table}")).collect();
    let delete: Vec<&str> = delete.iter().map(String::as_str).chain(["UPDATE usage_head SET steps = 0"]).collect();
    write(&site, &delete);
    eventually("it is noticed", || site.key.log().contains("it was set back to an old copy"));
    eventually("all of it is there again", || site.connected() && site.billed() == [1_000, 100]);
}

/// A row that no key server wrote holds up nobody but whom it is of.
#[test]
fn usage_that_cannot_be_read_is_named_and_holds_no_other_router_up() {
    let name = "folded::usage_that_cannot_be_read_is_named_and_holds_no_other_router_up";
    let Some(mut site) = Site::new(name, "", |_, _| String::new()) else { return };
    eventually("both routers are connected", || site.connected());
    site.routers.iter_mut().for_each(|router| router.kill());
    put(&site, 0, &[(10, 1_000)], None);
    site.routers[0].start_process();
    eventually("it is reported", || site.billed() == [1_000, 0]);
    site.routers[0].kill();
    write(&site, &["UPDATE usage_record SET packets = -1 WHERE router = 1"]);
    put(&site, 0, &[(10, 1_500)], None);
    put(&site, 1, &[(10, 100)], None);
    site.routers.iter_mut().for_each(|router| router.start_process());
    eventually("it is named", || site.key.log().contains("`usage_record` with router 1 and account 000007"));
    let refused = |site: &Site| site.key.status()["routers"][0]["refused"].as_u64();
    eventually("its router is told", || refused(&site) > Some(0));
    let waiting = |site: &Site| site.routers[1].status()["provider"]["waiting"].as_u64();
    eventually("the other one's usage is taken", || waiting(&site) == Some(0));
    write(&site, &["UPDATE usage_record SET packets = 1000 WHERE router = 1"]);
    assert_eq!(site.billed()[1], 100);
}
