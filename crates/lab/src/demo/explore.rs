//! A prompt at the end of the demonstration, to inspect the running exchange.

use std::fmt::Write as _;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use wayleave_core::Prefix;

use super::exchange::DemoExchange;
use crate::table::LearnedRoute;

/// Routes of a table that are printed.
const MOST_ROUTES: usize = 40;

const COMMANDS: &str = "    table NAME           routes that NAME's router has learned from the exchange
    show NAME PREFIX     one prefix, as the router prints it
    why NAME PREFIX      why NAME has this route or none, from its proxy
    party 1|2            status of a party
    exec NAME COMMAND    a shell command in the network namespace of NAME's router
    Enter                stop the exchange";

/// Answers commands until an empty line or the end of input. Does nothing without a terminal.
pub(super) fn explore(exchange: &mut DemoExchange) {
    if !io::stdin().is_terminal() {
        return;
    }
    println!("\nThe exchange is running. Commands:\n{COMMANDS}");
    loop {
        print!("demo> ");
        let _ = io::stdout().flush();
        let mut line = String::new();
        if !matches!(io::stdin().lock().read_line(&mut line), Ok(1..)) || line.trim().is_empty() {
            return;
        }
        match answer(exchange, line.trim()) {
            Ok(text) => println!("{text}"),
            Err(reason) => println!("{reason}\n{COMMANDS}"),
        }
    }
}

fn answer(exchange: &mut DemoExchange, line: &str) -> Result<String, String> {
    let (verb, rest) = line.split_once(' ').ok_or("unknown command")?;
    let (name, argument) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
    if verb == "party" {
        let party = exchange
            .parties
            .iter()
            .find(|party| party.at.number.to_string() == name)
            .ok_or("the parties are 1 and 2")?;
        return party.ask("/api/v1/status").map(|status| format!("{status:#}"));
    }
    let member = exchange.members.iter_mut().find(|member| member.at.name == name);
    let member = member.ok_or_else(|| format!("no member is named {name}"))?;
    match verb {
        "table" => member.router.table().map(|routes| print_table(&routes)).map_err(|error| error.to_string()),
        "show" => {
            let prefix: Prefix = argument.trim().parse().map_err(|_| format!("{argument} is not a prefix"))?;
            member.router.show(prefix).map_err(|error| error.to_string())
        }
        "why" => {
            let why = member.ask(&format!("/api/v1/why?prefix={}", argument.trim()))?;
            Ok(format!("{why:#}"))
        }
        "exec" => {
            let status = member.at.router_namespace.command("sh").args(["-c", argument]).status();
            status.map(|status| status.to_string()).map_err(|error| error.to_string())
        }
        _ => Err("unknown command".to_owned()),
    }
}

fn print_table(routes: &[LearnedRoute]) -> String {
    let mut text = String::new();
    for route in routes.iter().take(MOST_ROUTES) {
        let path: Vec<String> = route.as_path.iter().map(|asn| asn.0.to_string()).collect();
        let next_hop = route.next_hop.map_or("-".to_owned(), |address| address.to_string());
        let prefix = route.prefix.to_string();
        let _ = writeln!(text, "{prefix:24} via {next_hop:16} path {}", path.join(" "));
    }
    let _ = write!(text, "{} routes", routes.len());
    text
}
