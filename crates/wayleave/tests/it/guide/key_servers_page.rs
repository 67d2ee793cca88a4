//! `several-key-servers.md`, played on three machines with a PostgreSQL server: until one key server is killed, and back.

use serde_json::Value;
use wayleave_lab::netns::{Network, enter_for_test};
use wayleave_lab::postgres::Postgres;

use super::laid_over;
use super::play::Play;
use crate::common::eventually;

#[test]
fn two_key_servers_share_a_database_and_one_is_killed_by_the_page_alone() {
    let test = "guide::key_servers_page::two_key_servers_share_a_database_and_one_is_killed_by_the_page_alone";
    if enter_for_test(test).is_none() {
        return;
    }
    let Some(postgres) = Postgres::start_for_test() else { return };
    let network = Network::new().expect("a network");
    // One network has all three addresses.
    let attach = |name: &str, address: &str| network.attach(name, &[format!("{address}/1")]).expect("attached");
    let (one, two, fra1) = (attach("one", "192.0.2.1"), attach("two", "192.0.2.2"), attach("fra1", "198.51.100.1"));
    let mut play = Play::new("several-key-servers.md", &[("one", &one), ("two", &two), ("fra1", &fra1)]);
    // The test's database is behind a socket.
    let uri = "postgresql://key@db.example.net/capabilities?sslmode=verify-full";
    play.put(uri, &postgres.url().replace("wayleave@localhost/wayleave?", "key@localhost/capabilities?"));
    play.run(|play, fence| {
        let fence = play.filled(fence);
        match fence.lines().next().unwrap_or_default() {
            sql if sql.starts_with("CREATE ROLE") => {
                fence.lines().for_each(|line| drop(postgres.administer(line).expect("done")));
            }
            "[key]" => {
                let file = "server/key.toml";
                play.write("one", file, &laid_over(&play.file("one", file), &fence));
            }
            "[forwarding]" => play.write("fra1", "waypoint.toml", &fence),
            _ => return false,
        }
        true
    });
    let status = |machine: &str, file: &str| -> Value {
        let said = play.ask(machine, &format!("wayleave show status --config {file} --json"));
        serde_json::from_str(&said).expect("JSON")
    };
    eventually("the router is connected to both, and goes by the one that leases", || {
        let router = status("fra1", "waypoint.toml");
        let does = |what: &str| [0, 1].map(|server| router["provider"]["servers"][server][what] == true);
        does("connected") == [true, true] && does("leases") == [false, true]
    });
    let number = |machine: &str| status(machine, "server/key.toml")["number"].clone();
    eventually("both have the same changes", || number("one") == number("two"));
}
