//! The laboratory's PostgreSQL: the server of the fetched package, its kill, its restart, and standbys.

#![allow(clippy::disallowed_methods, reason = "a test of the laboratory does I/O")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use wayleave_lab::netns;
use wayleave_lab::postgres::Postgres;
use wayleave_lab::process::wait_until;
use wayleave_lab::routers::{Installation, POSTGRESQL, default_cache, locate_or_fetch_router};

/// How many commits are confirmed before the server is killed.
const BEFORE: usize = 50;
/// The longest list of commits.
const MOST: usize = 1_000_000;
/// Until when a process must have ended.
const LIMIT: Duration = Duration::from_secs(60);

fn installation() -> Option<Installation> {
    let found = locate_or_fetch_router(&POSTGRESQL, &default_cache(), &mut |line| println!("{line}"));
    found.map_err(|error| netns::skipped(&error.to_string())).ok()
}

/// Commits rows through one connection, one after the other, and kills the server amid them. Returns the numbers of those that were
/// confirmed.
fn commit_until_killed(server: &mut Postgres, installation: &Installation) -> Vec<usize> {
    server.query("CREATE TABLE line (number integer PRIMARY KEY)").expect("a table");
    let mut command = Command::new(installation.program("psql"));
    installation.prepare(&mut command);
    command.args(["-XqAt", "--set=ON_ERROR_STOP=1"]).arg(server.url());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut client = command.spawn().expect("it runs");
    let (mut input, output) = (client.stdin.take().expect("piped"), client.stdout.take().expect("piped"));
    let mut lines = BufReader::new(output).lines().map(|line| line.expect("text").parse().expect("a number"));
    let numbers = thread::scope(|scope| {
        // Until the client ends.
        scope.spawn(move || {
            (0..MOST).try_for_each(|number| writeln!(input, "INSERT INTO line VALUES ({number}) RETURNING number;"))
        });
        let mut numbers: Vec<usize> = lines.by_ref().take(BEFORE).collect();
        server.kill().expect("killed");
        numbers.extend(lines);
        numbers
    });
    client.wait().expect("it has ended");
    assert!((BEFORE..MOST).contains(&numbers.len()), "{} commits", numbers.len());
    numbers
}

/// All that are confirmed are there. The last one may have been committed without a confirmation.
fn assert_has(server: &Postgres, confirmed: &[usize]) {
    let rows = server.query("SELECT number FROM line ORDER BY number").expect("rows");
    let rows: Vec<usize> = rows.lines().map(|line| line.parse().expect("a number")).collect();
    assert!(rows.starts_with(confirmed), "{} confirmed, there are {}", confirmed.len(), rows.len());
    assert!(rows.len() <= confirmed.len() + 1, "{} confirmed, there are {}", confirmed.len(), rows.len());
}

#[test]
fn a_server_of_the_fetched_package_answers_its_own_client_on_a_socket_alone() {
    let Some(installation) = installation() else { return };
    assert!(!installation.from_system && installation.version.starts_with("15."), "{installation:?}");
    let server = Postgres::start(&installation).expect("a server");
    assert_eq!(server.query("SELECT current_user, current_database()").expect("a row"), "wayleave|wayleave");
    let line = std::fs::read_to_string(format!("/proc/{}/cmdline", server.id().expect("it runs"))).expect("it runs");
    assert_eq!(line.split('\0').next(), installation.program("postgres").to_str());
    for (setting, value) in [
        ("fsync", "on"),
        ("synchronous_commit", "on"),
        ("listen_addresses", ""),
        ("jit", "off"),
        ("wal_level", "replica"),
    ] {
        assert_eq!(server.query(&format!("SHOW {setting}")).expect("a setting"), value, "{setting}");
    }
    let refused = server.query("ALTER SYSTEM SET fsync = off").expect_err("the owner is no administrator").to_string();
    assert!(refused.contains("psql of PostgreSQL failed: ERROR"), "{refused}");
    let url = server.url();
    let folder = url.split_once("?host=").expect("a folder").1.to_owned();
    assert!(Path::new(&folder).join(".s.PGSQL.5432").exists());
    drop(server);
    assert!(!Path::new(&folder).exists());
}

#[test]
fn confirmed_commits_survive_kill_9_and_a_restart() {
    let Some(installation) = installation() else { return };
    let mut server = Postgres::start(&installation).expect("a server");
    let confirmed = commit_until_killed(&mut server, &installation);
    assert!(!server.is_running() && server.query("SELECT 1").is_err());
    server.restart().expect("it replays its log");
    assert_has(&server, &confirmed);
    server.stop().expect("it ends");
    server.restart().expect("it starts");
    assert_has(&server, &confirmed);
}

#[test]
fn a_promoted_synchronous_standby_has_every_confirmed_commit() {
    let Some(mut primary) = Postgres::start_for_test() else { return };
    let installation = installation().expect("it was there");
    let mut standby = Postgres::standby(&primary, true).expect("a standby");
    let refused = standby.query("CREATE TABLE other ()").expect_err("it only follows").to_string();
    assert!(refused.contains("read-only"), "{refused}");
    let confirmed = commit_until_killed(&mut primary, &installation);
    standby.promote().expect("promoted");
    assert_has(&standby, &confirmed);
    let next = confirmed.len() + 1;
    standby.query(&format!("INSERT INTO line VALUES ({next})")).expect("it waits for nobody");
}

#[test]
fn a_primary_confirms_nothing_without_its_synchronous_standby() {
    let Some(mut primary) = Postgres::start_for_test() else { return };
    let mut standby = Postgres::standby(&primary, true).expect("a standby");
    primary.query("CREATE TABLE line (number integer)").expect("both have it");
    standby.kill().expect("killed");
    let insert = "INSERT INTO line VALUES (1)";
    thread::scope(|scope| {
        let waits = scope.spawn(|| primary.query(insert));
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        let waited = wait_until(LIMIT, || (primary.administer(waiting).expect("a count") == "1").then_some(()));
        assert!(waited.is_some() && !waits.is_finished());
        standby.restart().expect("it follows again");
        waits.join().expect("no panic").expect("confirmed");
    });
    primary.restart().expect("it starts");
    assert!(primary.administer("SHOW synchronous_standby_names").expect("a setting").starts_with("ANY 1"));
    standby.kill().expect("killed");
    primary.set_synchronous(&[]).expect("in force");
    primary.query("INSERT INTO line VALUES (2)").expect("it waits for nobody");
}

#[test]
fn a_server_ends_with_the_thread_that_started_it() {
    let Some(installation) = installation() else { return };
    let started = thread::spawn(move || Postgres::start(&installation).expect("a server"));
    let mut server = started.join().expect("no panic");
    assert!(wait_until(LIMIT, || (!server.is_running()).then_some(())).is_some(), "{}", server.log_tail());
    assert!(server.log_tail().contains("immediate shutdown"), "{}", server.log_tail());
}
