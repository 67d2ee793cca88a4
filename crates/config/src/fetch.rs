//! Reads the status pages of a running role.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::Value;
use wayleave_runtime::http::NO_SUCH_PAGE;

use crate::failure::{Failure, Outcome};
use crate::{Source, Text, status_of};
use clap::Args;
use std::path::PathBuf;

/// A running role.
#[derive(Args, Debug, Clone)]
pub struct Target {
    /// Its status pages, such as http://127.0.0.1:8481.
    #[arg(long, conflicts_with = "config")]
    pub url: Option<String>,
    /// Its configuration, whose `[status]` names the address. Default: wayleave.toml, if it is here.
    #[arg(long, short)]
    pub config: Option<PathBuf>,
}

/// The configuration that is taken where none is given, as `check` takes it.
const CONFIGURATION: &str = "wayleave.toml";
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest page that is read.
const MAX_OCTETS: u64 = 256 << 20;

/// Reads `path` of the role that `target` names.
pub fn json(target: &Target, path: &str) -> Outcome<Value> {
    json_within(target, path, TIMEOUT)
}

/// The same, with so much time to reach the role and for each part of its answer; zero is refused.
pub fn json_within(target: &Target, path: &str, timeout: Duration) -> Outcome<Value> {
    let host = host(target)?;
    let unreachable = |error: io::Error| {
        Failure::new(format!("no answer from http://{host}{path}: {error}")).help("is the role running?")
    };
    let (status, body) = get(&host, path, timeout).map_err(unreachable)?;
    let value: Value = serde_json::from_str(&body).map_err(|error| unreachable(io::Error::other(error)))?;
    if status != 200 {
        let why = value["error"].as_str().unwrap_or("the role reports an error");
        if let (404, NO_SUCH_PAGE, Some(what)) = (status, why, path.strip_prefix("/api/v1/")) {
            let what = what.split('?').next().unwrap_or(what);
            return Err(Failure::new(format!("this role does not show `{what}`"))
                .help("`wayleave help show` says which roles show what; all have `status` and `events`")
                .into());
        }
        // What a role says is for people; a status alone is for whoever looks for the cause.
        let failure = match value["error"].is_string() && (400..500).contains(&status) {
            true => Failure::new(why),
            false => Failure::new(format!("{why} (HTTP {status})")),
        };
        return Err(failure.into());
    }
    Ok(value)
}

/// Host and port of the role's status pages.
fn host(target: &Target) -> Outcome<String> {
    if let Some(url) = &target.url {
        let rest = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
        return Ok(rest.to_owned());
    }
    let usual = PathBuf::from(CONFIGURATION);
    let Some(config) = target.config.as_ref().or(Some(&usual).filter(|file| file.is_file())) else {
        return Err(Failure::usage("no role given").help("add --config FILE or --url http://ADDRESS:PORT").into());
    };
    let source = Source::read(config)?;
    let status = status_of(&source)?;
    let without = || {
        Failure::new(format!("{} has no [status] section, so that the role serves no status pages", config.display()))
            .help("add: [status] listen = \"127.0.0.1:8481\"")
    };
    let Text(address) = status.ok_or_else(without)?.listen.into_inner();
    Ok(address.to_string())
}

fn get(host: &str, path: &str, timeout: Duration) -> io::Result<(u16, String)> {
    let address = host.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {host}\r\nAccept: application/json\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(MAX_OCTETS).read_to_end(&mut answer)?;
    let answer = String::from_utf8(answer).map_err(io::Error::other)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    let status = head.split_whitespace().nth(1).and_then(|word| word.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok((status, body.to_owned()))
}
