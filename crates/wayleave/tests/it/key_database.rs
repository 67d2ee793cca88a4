//! A key server whose accounts are in a database, as a process: SQLite, and PostgreSQL with several key servers.
//!
//! PLA-06, the database: a row that somebody changed: the server does not start, and names it.
//! PLA, a database that hangs: look-ups are answered all the while, and orders are refused.
//! PLA-06, hints of the database that are lost: a revocation is known at the other key server all the same.
//! PLA-06, behind and set back: an old copy of a SQLite file, a lost standby: refused until an operator adopts it.
//! PLA-06, kills and a full disk: commands killed at any moment, a disk that fills: what was said is there, once.
//! PLA-06, key servers: two on one PostgreSQL, one killed; PostgreSQL killed and started again: look-ups are answered from memory for as
//! long as is configured, nothing that was acknowledged is lost, and what was not can be repeated.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, ResponseCode};
use sqlx::Connection as _;
use wayleave_control::capability::{Credential, Order, Ordering, Status};
use wayleave_lab::netns::enter_for_test;
use wayleave_lab::postgres::Postgres;
use wayleave_packet::platypus::header::DelegationId;
use wayleave_packet::platypus::mint::epoch;
use wayleave_runtime::clock::unix_now;

use crate::common::{eventually, free, text};
use crate::key::{Server, copy_database, live};
use crate::overlay::harness::Running;

#[test]
fn a_capability_lives_in_postgresql_as_in_sqlite() {
    let Some(postgres) = Postgres::start_for_test() else { return };
    live(Server::with("postgres-life", &["--database", &postgres.url()]));
}

/// Somebody who can write to the file.
fn write(server: &Server, sql: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let path = server.folder.0.join("server/accounts.db");
    runtime.block_on(async {
        let uri = format!("sqlite://{}", path.display());
        let mut connection = sqlx::SqliteConnection::connect(&uri).await.expect("opened");
        let done = sqlx::query(sql).execute(&mut connection).await.expect("written");
        assert_eq!(done.rows_affected(), 1);
        connection.close().await.expect("closed");
    });
}

fn run_fails(server: &Server) -> String {
    let output = server.folder.run(&["run", "key", "--config", &server.config]);
    assert!(!output.status.success(), "{}", text(&output.stderr));
    text(&output.stderr)
}

#[test]
fn an_old_copy_of_a_database_is_refused_until_an_operator_adopts_it() {
    let mut server = Server::new("sqlite-old");
    server.grant("own.line", &["--principal", "7"]);
    eventually("the server follows", || server.running.count("grants") == 1);
    let (folder, backup) = (server.folder.0.join("server"), server.folder.0.join("backup"));
    server.running.kill();
    copy_database(&folder, &backup);
    server.running.resume();
    server.folder.ok(&["cap", "revoke", "7", "--config", &server.config]);
    eventually("the list follows", || server.list().1 == ["7"]);
    server.refused(&["cap", "lookup", "--line", "own.line"], "revoked");
    // The backup comes back, and commands and the server refuse it.
    server.running.kill();
    copy_database(&backup, &folder);
    let said = run_fails(&server);
    assert!(
        said.contains("ends with change 1, and change 2 was seen") && said.contains("wayleave cap adopt"),
        "{said}"
    );
    let refused = server.folder.run(&["cap", "revoke", "7", "--config", &server.config]);
    assert!(text(&refused.stderr).contains("ends with change 1"), "{}", text(&refused.stderr));
    let checked = server.folder.run(&["check", &server.config]);
    assert!(
        text(&checked.stderr).contains("ends with change 1") || text(&checked.stdout).contains("ends with change 1")
    );
    // What is there says who made it.
    let trail = server.folder.ok(&["cap", "changes", "--config", &server.config]);
    assert!(
        trail.contains("granted: waypoint 198.51.100.1, principal 7") && trail.contains("of this machine"),
        "{trail}"
    );
    // Accepted, it goes on above all that was seen, and what was revoked is revoked again.
    let adopt = ["cap", "adopt", "--config", &server.config, "--reason", "the disk was lost"];
    let adopted = server.folder.ok(&adopt);
    assert!(adopted.contains("timeline  1") && adopted.contains("revoke again"), "{adopted}");
    server.folder.ok(&["cap", "revoke", "7", "--config", &server.config]);
    let trail = server.folder.ok(&["cap", "changes", "--config", &server.config, "--after", "2"]);
    assert!(trail.contains("the disk was lost") && trail.contains("revoked: 7"), "{trail}");
    server.running.resume();
    server.refused(&["cap", "lookup", "--line", "own.line"], "revoked");
    assert_eq!(server.list().1, ["7"]);
}

/// A secret of 12 days that was looked up is good for up to 36: who wants such key epochs says so.
#[test]
fn key_epochs_of_more_than_three_days_are_granted_only_if_the_configuration_allows_them() {
    let server = Server::new("sqlite-interval");
    let grant = |interval: &str| {
        let command = ["cap", "grant", "--principal", "7", "--waypoint", "198.51.100.1", "--interval", interval];
        server.folder.run(&[&command[..], &["--config", &server.config]].concat())
    };
    assert!(grant("18").status.success());
    let refused = grant("19");
    let said = text(&refused.stderr).split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
    assert!(
        !refused.status.success() && said.contains("expected 4 to 18") && said.contains("longest_interval"),
        "{said}"
    );
    let path = server.folder.0.join(&server.config);
    let config = fs::read_to_string(&path).expect("there").replace("#longest_interval = 18", "longest_interval = 20");
    fs::write(&path, config).expect("written");
    assert!(grant("19").status.success());
}

#[test]
fn a_database_that_somebody_changed_is_refused_by_name() {
    let mut server = Server::new("sqlite-changed");
    server.grant("own.line", &["--principal", "7"]);
    server.running.kill();
    write(&server, "UPDATE capability SET not_after = not_after + 86400");
    let said = run_fails(&server);
    assert!(said.contains("table `capability`") && said.contains("principal 7"), "{said}");
    assert!(said.contains("somebody without the key servers' secret changed the database"), "{said}");
    write(&server, "UPDATE capability SET not_after = not_after - 86400");
    server.running.resume();
    server.answered(&["cap", "lookup", "--line", "own.line"]);
}

/// `test-data/key-records` has the files of a key server of an earlier version, before and after it compacted them.
#[test]
fn the_records_of_an_earlier_version_are_brought_into_a_database_once() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/key-records");
    for file in ["records-v1", "records-v2"] {
        let mut server = Server::new(file);
        let folder = server.folder.0.join("server");
        let path = server.folder.0.join(&server.config);
        server.running.kill();
        let config = fs::read_to_string(&path).expect("there");
        let earlier = fs::read_to_string(data.join("key.toml")).expect("there");
        let writer = earlier.lines().find(|line| line.starts_with("writer = ")).expect("a key");
        server.writer = writer.split('"').nth(1).expect("a key").to_owned();
        let lines = config.lines().map(|line| if line.starts_with("writer = ") { writer } else { line });
        let config: String = lines.map(|line| line.to_owned() + "\n").collect();
        for key in ["accounts.key", "writer.key"] {
            fs::copy(data.join(key), folder.join(key)).expect("copied");
            fs::set_permissions(folder.join(key), fs::Permissions::from_mode(0o600)).expect("set");
        }
        fs::copy(data.join("revoked"), folder.join("revoked")).expect("copied");
        fs::copy(data.join(file), folder.join("records")).expect("copied");
        for made in ["accounts.db", "accounts.db-wal", "accounts.db-shm", "position"] {
            let _ = fs::remove_file(folder.join(made));
        }
        // As it was configured: what to do is said.
        fs::write(&path, config.replace("database = \"accounts.db\"", "records = \"records\"")).expect("written");
        let said = text(&server.folder.run(&["check", &server.config]).stderr);
        assert!(said.contains("wayleave cap import --records"), "{said}");
        fs::write(&path, config).expect("written");
        let import = ["cap", "import", "--config", &server.config, "--records", "server/records"];
        // Nothing is written before it is seen that the file is not of a later list, or another provider's.
        server.folder.fails(1, &["cap", "import", "--config", &server.config, "--records", "router.key"]);
        let said = server.folder.ok(&import);
        assert!(said.contains("change    9\n"), "{said}");
        let again = server.folder.run(&import);
        assert!(text(&again.stderr).contains("it has changes already"), "{}", text(&again.stderr));
        server.folder.ok(&["check", &server.config]);
        // As that version listed them, which did not name those that are revoked.
        let listed = server.folder.ok(&["cap", "list", "--config", &server.config]).replace("revoked: 8\n", "");
        assert_eq!(listed, fs::read_to_string(data.join("list.txt")).expect("there"));
        server.running.resume();
        for line in ["own.line", "revoked.line"] {
            fs::copy(data.join(line), server.folder.0.join(line)).expect("copied");
        }
        server.answered(&["cap", "lookup", "--line", "own.line"]);
        server.refused(&["cap", "lookup", "--line", "revoked.line"], "revoked");
        server.grant("new.line", &["--principal", "9"]);
        eventually("the server follows", || server.running.count("number") == 10);
        assert_eq!(server.list().1.len(), 1);
    }
}

/// Commands that are killed at any moment: what one said is there, once, and nothing else but what it was about to say.
fn kills_lose_nothing_that_was_said(name: &str, database: &str) {
    let server = Server::with(name, &["--database", database]);
    let mut random = 7_u64;
    let (mut said, mut given) = (Vec::new(), 0);
    // Each command takes about as long as the one before: the moment moves over the whole of it.
    let begin = Instant::now();
    server.folder.ok(&["cap", "revoke", "1", "--config", &server.config]);
    let whole = begin.elapsed();
    for number in 2..2 + kills() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let text = number.to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_wayleave"));
        let command = command.args(["cap", "revoke", &text, "--config", &server.config]).current_dir(&server.folder.0);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("started");
        std::thread::sleep(whole.mul_f64((random >> 33) as f64 / f64::from(1_u32 << 31) * 1.2));
        let _ = child.kill();
        let output = child.wait_with_output().expect("ended");
        given += 1;
        if text_of(&output).contains("number") {
            said.push(text);
        }
    }
    let listed = server.folder.ok(&["cap", "list", "--config", &server.config, "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    let entries = listed["revocations"].as_array().expect("a list");
    let has = |text: &String| entries.iter().filter(|entry| entry["entry"] == **text || **entry == **text).count();
    assert!(said.iter().all(|text| has(text) == 1), "{said:?}: {listed}");
    assert!(entries.len() <= given + 1, "{listed}");
    server.folder.ok(&["check", &server.config]);
    eventually("the server has all of them", || server.running.count("revocations") == entries.len() as u64);
}

/// As many as are asked for; 1,000 take some minutes.
fn kills() -> u64 {
    std::env::var("WAYLEAVE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(40)
}

fn text_of(output: &Output) -> String {
    text(&output.stdout)
}

#[test]
fn kills_of_commands_lose_nothing_in_sqlite() {
    kills_lose_nothing_that_was_said("sqlite-kills", "accounts.db");
}

#[test]
fn kills_of_commands_lose_nothing_in_postgresql() {
    let Some(postgres) = Postgres::start_for_test() else { return };
    kills_lose_nothing_that_was_said("postgres-kills", &postgres.url());
}

/// The disk of the database is full: nothing is acknowledged, look-ups go on, and with space all goes on in the same process.
#[test]
fn a_full_disk_refuses_changes_and_loses_nothing() {
    if enter_for_test("key_database::a_full_disk_refuses_changes_and_loses_nothing").is_none() {
        return;
    }
    assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("ip runs").success());
    let disk = Path::new(env!("CARGO_TARGET_TMPDIR")).join("full-disk-key");
    fs::create_dir_all(&disk).expect("a folder");
    // The mount is that of this test's own namespace, and ends with it.
    let mount = ["-t", "tmpfs", "-o", "size=2m", "tmpfs"];
    assert!(Command::new("mount").args(mount).arg(&disk).status().expect("mount runs").success());
    let database = disk.join("accounts.db").display().to_string();
    let server = Server::with("sqlite-full", &["--database", &database]);
    server.grant("own.line", &["--principal", "7"]);
    eventually("the server follows", || server.running.count("grants") == 1);
    let fill = disk.join("fill");
    let mut file = fs::File::create(&fill).expect("made");
    let block = [7; 4096];
    while file.write_all(&block).is_ok() {}
    // A change may still fit into what the database has.
    let mut number = 100;
    let revoke = |number: u32| server.folder.run(&["cap", "revoke", &number.to_string(), "--config", &server.config]);
    let refused = loop {
        let output = revoke(number);
        if !output.status.success() {
            break text(&output.stderr);
        }
        number += 1;
        assert!(number < 400, "the disk is full");
    };
    assert!(refused.contains("full") || refused.contains("cannot be used now"), "{refused}");
    server.answered(&["cap", "lookup", "--line", "own.line"]);
    server.refused(&["cap", "revoke", "--line", "own.line"], "");
    drop(file);
    fs::remove_file(&fill).expect("removed");
    let output = revoke(number);
    assert!(output.status.success(), "{}", text(&output.stderr));
    server.answered(&["cap", "revoke", "--line", "own.line"]);
    let all = u64::from(number) - 100 + 2;
    eventually("the server has all", || server.running.count("revocations") == all);
    server.folder.ok(&["check", &server.config]);
}

/// Another key server of the same database, in a folder of its own.
fn second(of: &Server) -> (Running, String) {
    let (from, to) = (of.folder.0.join("server"), of.folder.0.join("second"));
    fs::create_dir_all(&to).expect("made");
    for file in ["accounts.key", "writer.key"] {
        fs::copy(from.join(file), to.join(file)).expect("copied");
    }
    let [listen, status] = [free(), free()];
    let config = fs::read_to_string(from.join("key.toml")).expect("there");
    let config = config.replace(&of.listen, &listen).replace(&of.running.page, &status);
    fs::write(to.join("key.toml"), config).expect("written");
    of.folder.ok(&["cap", "new-list", "--config", "second/key.toml"]);
    (Running::start("key", to, "key", &status), listen)
}

#[test]
fn two_key_servers_share_a_postgresql_database_and_either_may_be_killed() {
    let Some(postgres) = Postgres::start_for_test() else { return };
    let mut one = Server::with("postgres-two", &["--database", &postgres.url()]);
    let (mut two, at_two) = second(&one);
    one.grant("own.line", &["--principal", "7"]);
    eventually("the second follows", || two.count("grants") == 1);
    // An order at one is known at the other.
    let ask_two = |command: &[&str]| one.folder.run(&[command, &["--server", &at_two]].concat());
    let delegated = ask_two(&["cap", "delegate", "--line", "own.line", "--prefix", "203.0.113.0/24", "--id", "3"]);
    assert!(delegated.status.success(), "{}", text(&delegated.stderr));
    one.folder.write("branch.line", &text(&delegated.stdout));
    eventually("the first follows", || one.running.count("grants") == 2);
    one.answered(&["cap", "lookup", "--line", "branch.line"]);
    // What the database tells is a hint: whoever cannot hear it for a while knows each change all the same.
    postgres
        .administer("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
        .expect("cut off");
    one.folder.ok(&["cap", "revoke", "9", "--config", &one.config]);
    let acknowledged = Instant::now();
    eventually("the second has the revocation", || two.count("revocations") == 1);
    println!("known at the other after {:?}", acknowledged.elapsed());
    one.folder.ok(&["cap", "revoke", "--lift", "9", "--config", &one.config]);
    eventually("the second follows", || two.count("revocations") == 0);
    one.answered(&["cap", "revoke", "--line", "own.line", "--delegation", "3"]);
    one.running.kill();
    eventually("the second has the revocation", || two.count("revocations") == 1);
    let refused = ask_two(&["cap", "lookup", "--line", "branch.line"]);
    assert!(text(&refused.stderr).contains("revoked"), "{}", text(&refused.stderr));
    // It goes on alone, and the first has all of it when it is back.
    let delegated = ask_two(&["cap", "delegate", "--line", "own.line", "--prefix", "203.0.113.0/24", "--id", "4"]);
    assert!(delegated.status.success(), "{}", text(&delegated.stderr));
    two.kill();
    one.running.resume();
    one.folder.write("branch.line", &text(&delegated.stdout));
    one.answered(&["cap", "lookup", "--line", "branch.line"]);
}

/// The response code to any question.
fn code_of(listen: &str) -> ResponseCode {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
    socket.set_read_timeout(Some(Duration::from_secs(1))).expect("set");
    let mut question = Message::query();
    question.metadata.id = 7;
    let name = "keys.example.net.".parse().expect("a name");
    question.add_query(hickory_proto::op::Query::query(name, hickory_proto::rr::RecordType::SOA));
    let mut answer = [0; 512];
    loop {
        socket.send_to(&question.to_vec().expect("encoded"), listen).expect("sent");
        if let Ok(length) = socket.recv(&mut answer) {
            return Message::from_vec(&answer[..length]).expect("an answer").metadata.response_code;
        }
    }
}

#[test]
fn without_its_database_a_key_server_answers_from_memory_and_then_refuses() {
    let Some(mut postgres) = Postgres::start_for_test() else { return };
    let mut server = Server::with("postgres-down", &["--database", &postgres.url()]);
    server.grant("own.line", &["--principal", "7"]);
    eventually("the server follows", || server.running.count("grants") == 1);
    postgres.kill().expect("killed");
    eventually("it is seen", || server.running.status("database")["up"] == false);
    postgres.restart().expect("started");
    eventually("it is back", || server.running.status("database")["up"] == true);
    // It hangs: no connection is refused or ends, and none is answered.
    let halted = postgres.halt();
    for _ in 0..3 {
        server.answered(&["cap", "lookup", "--line", "own.line"]);
    }
    eventually("it is seen", || server.running.status("database")["up"] == false);
    server.refused(&["cap", "revoke", "--line", "own.line"], "");
    server.answered(&["cap", "lookup", "--line", "own.line"]);
    drop(halted);
    eventually("it is back", || server.running.status("database")["up"] == true);
    postgres.kill().expect("killed");
    eventually("it is seen", || server.running.status("database")["up"] == false);
    // Look-ups go on; an order is not acknowledged, and says why.
    server.answered(&["cap", "lookup", "--line", "own.line"]);
    server.refused(&["cap", "revoke", "--line", "own.line"], "");
    assert_eq!(code_of(&server.listen), ResponseCode::NoError);
    postgres.restart().expect("started");
    eventually("it is back", || server.running.status("database")["up"] == true);
    server.answered(&["cap", "revoke", "--line", "own.line"]);
    assert!(server.running.log().contains("the database can be used again"), "{}", server.running.log());
    // For no longer than is configured.
    server.running.kill();
    let path = server.folder.0.join(&server.config);
    let config = fs::read_to_string(&path).expect("there");
    fs::write(&path, config.replace("#max_staleness_secs = 900", "max_staleness_secs = 1")).expect("written");
    server.running.resume();
    assert_eq!(code_of(&server.listen), ResponseCode::NoError);
    postgres.kill().expect("killed");
    eventually("it refuses", || code_of(&server.listen) == ResponseCode::ServFail);
    postgres.restart().expect("started");
    eventually("it answers again", || code_of(&server.listen) == ResponseCode::NoError);
    // One that starts before its database waits for that, which a command does not.
    postgres.kill().expect("killed");
    server.running.kill();
    server.running.spawn();
    eventually("it waits", || server.running.log().contains("waiting for the database before this server starts"));
    let listed = server.folder.run(&["cap", "rate", "--config", &server.config]);
    assert!(text(&listed.stderr).contains("cannot be used now"), "{}", text(&listed.stderr));
    postgres.restart().expect("started");
    server.running.wait();
    assert_eq!(code_of(&server.listen), ResponseCode::NoError);
}

#[test]
fn a_synchronous_standby_takes_over_with_all_that_was_acknowledged_and_one_that_lacks_some_is_refused() {
    let Some(mut primary) = Postgres::start_for_test() else { return };
    let mut standby = Postgres::standby(&primary, true).expect("a standby");
    let mut server = Server::with("postgres-standby", &["--database", &primary.url()]);
    server.grant("own.line", &["--principal", "7"]);
    server.answered(&["cap", "revoke", "--line", "own.line"]);
    let number = server.running.count("number");
    primary.kill().expect("killed");
    standby.promote().expect("promoted");
    server.running.kill();
    let path = server.folder.0.join(&server.config);
    let config = fs::read_to_string(&path).expect("there");
    fs::write(&path, config.replace(&primary.url(), &standby.url())).expect("written");
    server.running.resume();
    assert_eq!(server.running.count("number"), number);
    server.refused(&["cap", "lookup", "--line", "own.line"], "revoked");
    // The next one is for nobody to wait for, and is cut off before the last change.
    let mut late = Postgres::standby(&standby, false).expect("a standby");
    late.stop().expect("stopped");
    server.grant("second.line", &["--principal", "8"]);
    eventually("the server follows", || server.running.count("grants") == 2);
    server.running.kill();
    standby.kill().expect("killed");
    late.restart().expect("started");
    late.promote().expect("promoted");
    let config = fs::read_to_string(&path).expect("there");
    fs::write(&path, config.replace(&standby.url(), &late.url())).expect("written");
    let said = run_fails(&server);
    assert!(said.contains("was seen") && said.contains("lost its last changes"), "{said}");
}

/// Holders delegate, a hundred times in each second, and each order is acknowledged when it is durable and on the list.
#[test]
#[ignore = "a measurement of some seconds"]
fn a_hundred_orders_a_second_are_carried_out_on_a_sqlite_file() {
    const HOLDERS: usize = 25;
    const ORDERS: usize = 1_000;
    let mut server = Server::with("sqlite-orders", &[]);
    let credential = |number: usize| -> Credential {
        let line = server.grant(&format!("{number}.line"), &["--principal", &(number + 1).to_string()]);
        fs::read_to_string(line).expect("there").trim().parse().expect("a capability")
    };
    let holders: Vec<Credential> = (0..HOLDERS).map(credential).collect();
    server.running.kill();
    let path = server.folder.0.join(&server.config);
    let config = fs::read_to_string(&path).expect("there");
    fs::write(&path, config.replacen("[key]\n", "[key]\nresponses_per_second = 0\n", 1)).expect("written");
    server.running.resume();
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
    socket.connect(&server.listen).expect("an address");
    socket.set_read_timeout(Some(Duration::from_millis(1))).expect("set");
    let (mut waiting, mut answer, begin) = (HashMap::new(), [0; 512], Instant::now());
    let (mut done, mut longest, mut ordered) = (0, Duration::ZERO, 0);
    while done < ORDERS {
        assert!(begin.elapsed() < Duration::from_secs(60), "{done} of {ORDERS}");
        while ordered < ORDERS && begin.elapsed() >= Duration::from_millis(10) * ordered as u32 {
            let holder = holders[ordered % HOLDERS].clone();
            let id = DelegationId::new(ordered as u32).expect("24 bits");
            let order = Order::Delegate { id, prefix: "203.0.113.0/24".parse().expect("a prefix"), until: None };
            let now = unix_now();
            let epoch = epoch::epoch_at(holder.terms.interval, now);
            let ordering = Ordering::new(holder, order, (ordered as u32).to_be_bytes(), epoch, now);
            socket.send(&ordering.question(ordered as u16)).expect("sent");
            waiting.insert(ordered as u16, (ordering, Instant::now()));
            ordered += 1;
        }
        let Ok(length) = socket.recv(&mut answer) else { continue };
        let id = u16::from_be_bytes([answer[0], answer[1]]);
        let (ordering, sent) = waiting.remove(&id).expect("asked for");
        let acknowledged = ordering.read(&answer[..length], id).expect("an answer").expect("acknowledged");
        assert_eq!(acknowledged.status, Status::Done);
        (done, longest) = (done + 1, longest.max(sent.elapsed()));
    }
    println!("{ORDERS} orders in {:?}, each acknowledged within {longest:?}", begin.elapsed());
    eventually("all are there", || server.running.count("grants") == (HOLDERS + ORDERS) as u64);
}
