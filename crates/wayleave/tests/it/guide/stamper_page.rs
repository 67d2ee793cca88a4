//! `stamper.md`: its example, on four machines.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use wayleave_lab::netns::{NetworkNamespace, Rung, enter_for_test, skipped};
use wayleave_lab::process::wait_until;
use wayleave_lab::role_process::RoleProcess;

use super::{Shell, commands, snippets};
use crate::common::text;
use crate::stamping::world::Site;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a line of the page on one of the machines.
fn run(shell: &Shell, place: &NetworkNamespace, line: &str) -> String {
    let mut command: Command = place.command("bash");
    command.args(["-euo", "pipefail", "-c", line]).current_dir(&shell.folder.0);
    command.env("PATH", &shell.path).env("NO_COLOR", "1").stdin(Stdio::null());
    let output = command.output().expect("bash runs");
    assert!(output.status.success(), "{line}\n{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Principals and packets of a waypoint's books.
fn books(shell: &Shell, place: &NetworkNamespace, line: &str) -> Vec<(u64, u64)> {
    let accounts: Value = serde_json::from_str(&run(shell, place, &format!("{line} --json"))).expect("JSON");
    let row = |row: &Value| Some((row["principal"].as_u64()?, row["packets"].as_str()?.parse().ok()?));
    accounts["accounts"].as_array().expect("rows").iter().filter_map(row).collect()
}

#[test]
fn a_paid_transit_between_ordinary_hosts_works_as_the_guide_says() {
    let name = "guide::stamper_page::a_paid_transit_between_ordinary_hosts_works_as_the_guide_says";
    let Some(rung) = enter_for_test(name) else { return };
    let site = Site::new(false);
    let shell = Shell::new("guide-stamper");
    let [keys, start, requests, bills, own] = snippets("stamper.md", "sh").try_into().expect("five snippets");
    let [w1, w2, desk, closed, registering, forwarding, families] =
        snippets("stamper.md", "toml").try_into().expect("seven snippets");
    commands(&keys).iter().for_each(|command| drop(shell.run(command)));
    for (file, content) in [
        ("w1.toml", &w1),
        ("w2.toml", &w2),
        ("desk.toml", &desk),
        ("edge.toml", &forwarding),
        ("closed.toml", &closed),
        ("open.toml", &registering),
        ("families.toml", &families),
    ] {
        shell.folder.write(file, content);
    }
    shell.run("wayleave check edge.toml");
    shell.run("wayleave check open.toml");
    shell.run("wayleave check closed.toml");
    shell.run("wayleave check families.toml");
    let place = |line: &str| match line {
        line if line.contains("w1.toml") => &site.waypoints[0],
        line if line.contains("w2.toml") => &site.waypoints[1],
        _ => &site.client,
    };
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_wayleave"));
    let mut running = Vec::new();
    for command in commands(&start) {
        let Some(line) = command.strip_prefix("wayleave run ") else {
            run(&shell, place(&command), &command);
            continue;
        };
        let (role, config) = line.split_once(" --config ").expect("a role and its configuration");
        let role = ["router", "stamper"].into_iter().find(|known| *known == role).expect("a role");
        let log = shell.folder.0.join(format!("{config}.log"));
        let mut process =
            RoleProcess::new(config.to_owned(), place(config), binary, role, shell.folder.0.join(config), log);
        process.start().expect("started");
        running.push(process);
    }
    assert_eq!(running.len(), 3);
    // Until a router accepts what is stamped now.
    for (process, line) in running.iter().zip(["w1.toml", "w2.toml", "desk.toml"]) {
        let is_ready = || {
            let mut command = place(line).command(binary);
            command.args(["show", "status", "--json", "--config", line]).current_dir(&shell.folder.0);
            let output = command.output().ok().filter(|output| output.status.success())?;
            let status: Value = serde_json::from_slice(&output.stdout).ok()?;
            status["refuses_until"].is_null().then_some(())
        };
        wait_until(TIMEOUT, is_ready).unwrap_or_else(|| panic!("{}", process.log_tail()));
    }
    let bills = commands(&bills);
    let forwarded = || bills.iter().map(|line| books(&shell, place(line), line)).collect::<Vec<_>>();
    let [paid, free, shown @ ..] = &commands(&requests)[..] else { panic!("two requests") };
    run(&shell, &site.client, free);
    assert_eq!(forwarded(), [[], []], "another user pays nothing");
    if rung == Rung::Root {
        run(&shell, &site.client, paid);
        let both_paid = || {
            let books = forwarded();
            let [[(7, first)], [(8, second)]] = [&books[0][..], &books[1][..]] else { return None };
            (*first > 10 && first == second).then_some(())
        };
        wait_until(TIMEOUT, both_paid).unwrap_or_else(|| panic!("{:?}", forwarded()));
        let before = forwarded();
        run(&shell, &site.client, free);
        assert_eq!(forwarded(), before);
    } else {
        skipped("requests by another user: the namespace has one user only, since this test does not run as root");
    }
    let printed: Vec<String> = shown.iter().map(|line| run(&shell, &site.client, line)).collect();
    assert!(
        printed[0].contains("is stamped for route transit") && printed[0].contains("anybody else"),
        "{}",
        printed[0]
    );
    assert!(printed[1].contains("198.51.100.2") && printed[2].contains("stamped"), "{printed:?}");
    // A user's own capabilities: the stamper starts again with a socket.
    assert!(running[2].stop(TIMEOUT), "{}", running[2].log_tail());
    let socket = shell.folder.0.join("stamper.sock").display().to_string();
    shell.folder.write("desk.toml", &registering.replace("/run/wayleave/desk/stamper.sock", &socket));
    running[2].start().expect("started");
    let [line] = commands(&own).try_into().expect("one command");
    wait_until(TIMEOUT, || std::path::Path::new(&socket).exists().then_some(())).expect("its socket");
    let before = forwarded();
    run(&shell, &site.client, &line.replace("/run/wayleave/desk/stamper.sock", &socket));
    let has_grown = || {
        (forwarded()[0].iter().map(|row| row.1).sum::<u64>() > before[0].iter().map(|row| row.1).sum::<u64>() + 10)
            .then_some(())
    };
    wait_until(TIMEOUT, has_grown).unwrap_or_else(|| panic!("{:?}", forwarded()));
    for process in &mut running {
        assert!(process.stop(TIMEOUT), "{}", process.log_tail());
    }
}
