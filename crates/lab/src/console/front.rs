//! What stands in front of a laboratory's console. The product's console only reads: orders end here, and everything else goes on to it.

use std::fmt::Write as _;
use std::io::{self, Read, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use serde_json::{Value, json};
use wayleave_runtime::http::Token;

use super::attacks::{Attacks, NotMade};
use super::experiments::{Experiments, NotStarted};
use super::{ANSWER, CONNECT, Stream as _, answer_each, join};

/// The document that only a laboratory serves; orders are below it.
const PLACE: &str = "/api/v1/laboratory";
/// Octets of the head of a request.
const MAX_HEAD: usize = 16 << 10;
/// Fields of one connection or of a body, which are not passed on: each request has a connection of its own, and none a body.
const OF_CONNECTION: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

/// The console behind, who may give orders, and what can be ordered.
pub struct Front {
    console: SocketAddr,
    /// The name of the cookie that the console gives for its token.
    cookie: String,
    /// Its value, which nobody has without the token.
    token: Token,
    experiments: Arc<Experiments>,
    attacks: Attacks,
}

impl Front {
    /// In front of `console`, which gives this cookie; `None` if it is none.
    #[must_use]
    pub fn new(console: SocketAddr, cookie: &str, experiments: Arc<Experiments>, attacks: Attacks) -> Option<Self> {
        let (name, value) = cookie.split_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty())?;
        Some(Self { console, cookie: name.to_owned(), token: Token::new(value.to_owned()), experiments, attacks })
    }

    /// Serves for as long as this process runs.
    pub fn serve(self, listener: TcpListener) {
        answer_each(
            move || listener.accept().map(|(asker, _)| asker),
            move |asker| {
                let _ = self.answer_one(asker); // who asked sees that it ends
            },
        );
    }

    fn answer_one(&self, mut asker: TcpStream) -> io::Result<()> {
        asker.limit(ANSWER)?;
        let text = read_head(&mut asker)?;
        let Some(head) = Head::parse(&text) else {
            return Answer::refused(400, "the request cannot be read").write(&mut asker);
        };
        match head.path().strip_prefix(PLACE).filter(|rest| rest.is_empty() || rest.starts_with('/')) {
            Some(rest) => self.answer(&head, rest).write(&mut asker),
            None => {
                let mut console = TcpStream::connect_timeout(&self.console, CONNECT)?;
                console.limit(ANSWER)?;
                console.write_all(head.passed_on().as_bytes())?;
                join(asker, console)
            }
        }
    }

    /// The document, or what became of an order; `rest` is the path below [`PLACE`].
    fn answer(&self, head: &Head<'_>, rest: &str) -> Answer {
        if let Some(refused) = self.refusal(head) {
            return refused;
        }
        let order = match rest.strip_prefix('/').map(|order| order.split_once('/').unwrap_or((order, ""))) {
            None if head.method == "GET" => return Answer { status: 200, body: self.document() },
            Some(order @ ("start" | "stop" | "attack", _)) if head.method == "POST" => order,
            None | Some(("start" | "stop" | "attack", _)) => {
                return Answer::refused(405, "the document is a GET, and an order is a POST");
            }
            Some(_) => return Answer::refused(404, "a laboratory has no such page or order"),
        };
        match self.obey(order) {
            Ok(()) => Answer { status: 200, body: json!({}) },
            Err((status, why)) => Answer::refused(status, &why),
        }
    }

    fn document(&self) -> Value {
        let mut document = self.experiments.document();
        document["attacks"] = self.attacks.document();
        document
    }

    /// Does what is ordered; or the status of the answer, and why not.
    fn obey(&self, order: (&str, &str)) -> Result<(), (u16, String)> {
        match order {
            ("start", id) => self.experiments.start(id).map_err(|error| (of_start(&error), error.to_string())),
            ("attack", of) => {
                let (attack, place) = of.split_once('/').unwrap_or((of, ""));
                self.attacks.make(attack, place).map_err(|error| (of_attack(&error), error.to_string()))
            }
            _ if self.experiments.stop() => Ok(()),
            _ => Err((409, "no experiment runs".to_owned())),
        }
    }

    /// Why a request is not for its asker: one of another host (DNS rebinding), of a page of another site, or without the token.
    fn refusal(&self, head: &Head<'_>) -> Option<Answer> {
        let Some(host) = head.field("host").filter(|host| is_of_this_machine(host)) else {
            return Some(Answer::refused(
                403,
                "the request names another host; use the address that `wayleave-lab console` printed",
            ));
        };
        // A browser says with each order of which page it is.
        let is_own = |origin: &str| origin.eq_ignore_ascii_case(&format!("http://{host}"));
        let is_of_own_page = match head.field("origin") {
            Some(origin) => is_own(origin),
            None => head.method == "GET" && !head.has("origin"),
        };
        if !is_of_own_page {
            return Some(Answer::refused(
                403,
                "only the console's own page gives orders: the request has no Origin, or another one",
            ));
        }
        if !self.has_token(head) {
            return Some(Answer::refused(
                401,
                "open the console once by the address that `wayleave-lab console` printed, with its token",
            ));
        }
        None
    }

    fn has_token(&self, head: &Head<'_>) -> bool {
        let cookies = head.field("cookie").into_iter().flat_map(|all| all.split(';'));
        let own = cookies.filter_map(|cookie| cookie.trim().strip_prefix(self.cookie.as_str())?.strip_prefix('='));
        own.fold(false, |has, value| has | self.token.is(value.as_bytes()))
    }
}

fn of_start(error: &NotStarted) -> u16 {
    match error {
        NotStarted::Unknown => 404,
        NotStarted::Busy(_) => 409,
        NotStarted::Ending | NotStarted::System(_) => 503,
    }
}

fn of_attack(error: &NotMade) -> u16 {
    match error {
        NotMade::Unknown => 404,
        NotMade::Busy | NotMade::State { .. } => 409,
        NotMade::System(_) | NotMade::Failed(_) => 503,
    }
}

/// Whether a Host field, with its port, is of loopback.
fn is_of_this_machine(host: &str) -> bool {
    let ip = host.parse().map(|at: SocketAddr| at.ip()).or_else(|_| host.parse::<IpAddr>());
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    ip.map_or_else(|_| name.eq_ignore_ascii_case("localhost"), |ip| ip.is_loopback())
}

/// Reads up to the empty line; what comes after it is no part of a request that this takes.
fn read_head(from: &mut impl Read) -> io::Result<String> {
    let (mut head, mut part) = (Vec::new(), [0; 4 << 10]);
    loop {
        let length = from.read(&mut part)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&part[..length]);
        if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            head.truncate(end);
            return String::from_utf8(head).map_err(|_| io::ErrorKind::InvalidData.into());
        }
        if head.len() > MAX_HEAD {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

/// The head of a request (RFC 9112).
struct Head<'a> {
    method: &'a str,
    target: &'a str,
    version: &'a str,
    fields: Vec<(&'a str, &'a str)>,
}

impl<'a> Head<'a> {
    /// Of a text without the empty line at its end.
    fn parse(text: &'a str) -> Option<Self> {
        let mut lines = text.split("\r\n");
        let first = lines.next()?;
        let mut words = first.split(' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        let is_known = ["HTTP/1.0", "HTTP/1.1"].contains(&version) && words.next().is_none();
        let is_whole = target.starts_with('/') && !method.is_empty() && !first.contains(|c: char| c.is_control());
        let field = |line: &'a str| {
            let (name, value) = line.split_once(':')?;
            let is_fit = !name.is_empty() && name.bytes().all(|octet| octet.is_ascii_graphic());
            (is_fit && !value.contains(['\r', '\n', '\0'])).then_some((name, value.trim()))
        };
        let fields = lines.map(field).collect::<Option<Vec<_>>>()?;
        (is_known && is_whole).then_some(Self { method, target, version, fields })
    }

    fn path(&self) -> &'a str {
        self.target.split_once('?').map_or(self.target, |(path, _)| path)
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.fields.iter().filter(move |(of, _)| of.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    }

    fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }

    /// The field of this name, if there is one and no second, of which nobody knows which one counts.
    fn field(&self, name: &str) -> Option<&'a str> {
        let mut all = self.all(name);
        let field = all.next()?;
        all.next().is_none().then_some(field)
    }

    /// As the console behind is sent it: alone on its connection, and without a body.
    fn passed_on(&self) -> String {
        let mut text = format!("{} {} {}\r\n", self.method, self.target, self.version);
        for (name, value) in &self.fields {
            if !OF_CONNECTION.iter().any(|of| name.eq_ignore_ascii_case(of)) {
                let _ = write!(text, "{name}: {value}\r\n"); // writing to a text cannot fail
            }
        }
        text + "Connection: close\r\n\r\n"
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    body: Value,
}

impl Answer {
    fn refused(status: u16, why: &str) -> Self {
        Self { status, body: json!({ "error": why }) }
    }

    fn write(&self, to: &mut TcpStream) -> io::Result<()> {
        let (status, body) = (self.status, self.body.to_string());
        let reason = if status == 200 { "OK" } else { "Refused" };
        write!(
            to,
            "HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::experiments::Experiment;
    use super::*;

    const COOKIE: &str = "wayleave-8471=0123abcd";

    /// A front of one experiment, whose program does nothing.
    fn front() -> Front {
        let one = Experiment { id: "paper/table-1", shows: "what it shows", takes: "seconds" };
        let experiments = Arc::new(Experiments::new(vec![one], PathBuf::from("/bin/true")));
        let attacks = Attacks::new(vec!["alpha".to_owned()], PathBuf::from("/bin/false"), PathBuf::from("/lab"));
        Front::new("127.0.0.1:8471".parse().expect("an address"), COOKIE, experiments, attacks).expect("a cookie")
    }

    /// The status and the words of the answer to a request of these lines.
    fn answer(front: &Front, lines: &[&str]) -> (u16, String) {
        let text = lines.join("\r\n");
        let head = Head::parse(&text).expect("a head");
        let answer = front.answer(&head, head.path().strip_prefix(PLACE).expect("a laboratory's"));
        (answer.status, answer.body.to_string())
    }

    const START: &str = "POST /api/v1/laboratory/start/paper/table-1 HTTP/1.1";
    const HOST: &str = "Host: 127.0.0.1:8470";
    const ORIGIN: &str = "Origin: http://127.0.0.1:8470";
    const OWN: &str = "Cookie: other=1; wayleave-8471=0123abcd";

    #[test]
    fn an_order_needs_the_token_and_so_does_the_document() {
        let front = front();
        let attack = "POST /api/v1/laboratory/attack/kill/alpha HTTP/1.1";
        for line in [START, attack, "POST /api/v1/laboratory/stop HTTP/1.1", "GET /api/v1/laboratory HTTP/1.1"] {
            assert_eq!(answer(&front, &[line, HOST, ORIGIN]).0, 401, "{line}");
            for wrong in ["", "wayleave-8471=", "wayleave-8471=0123abce", "wayleave-8470=0123abcd", "x=0123abcd"] {
                let cookie = format!("Cookie: {wrong}");
                assert_eq!(answer(&front, &[line, HOST, ORIGIN, &cookie]).0, 401, "{line} {wrong}");
            }
            assert_eq!(answer(&front, &[line, HOST, ORIGIN, OWN, OWN]).0, 401, "{line}: two fields");
        }
        assert!(front.experiments.document()["run"].is_null(), "nothing has started");
    }

    #[test]
    fn an_order_of_a_foreign_page_is_refused_whatever_its_cookie() {
        let front = front();
        let foreign = ["http://evil.example", "http://127.0.0.1:8472", "https://127.0.0.1:8470", "null", ""];
        for origin in foreign.map(|origin| format!("Origin: {origin}")) {
            assert_eq!(answer(&front, &[START, HOST, &origin, OWN]).0, 403, "{origin}");
            assert_eq!(answer(&front, &["GET /api/v1/laboratory HTTP/1.1", HOST, &origin, OWN]).0, 403, "{origin}");
        }
        assert_eq!(answer(&front, &[START, HOST, OWN]).0, 403, "without an Origin");
        assert_eq!(answer(&front, &[START, HOST, ORIGIN, ORIGIN, OWN]).0, 403, "with two");
        assert!(front.experiments.document()["run"].is_null(), "nothing has started");
    }

    #[test]
    fn a_request_to_another_host_is_refused_even_of_its_own_page() {
        let front = front();
        for host in ["evil.example:8470", "192.0.2.1:8470", "localhost.evil.example", ""] {
            let (named, origin) = (format!("Host: {host}"), format!("Origin: http://{host}"));
            assert_eq!(answer(&front, &[START, &named, &origin, OWN]).0, 403, "{host}");
        }
        assert_eq!(answer(&front, &[START, ORIGIN, OWN]).0, 403, "without a host");
        for host in ["localhost:8470", "LocalHost", "127.0.0.1", "[::1]:8470", "127.0.0.1:9000"] {
            assert!(is_of_this_machine(host), "{host}");
        }
    }

    #[test]
    fn a_name_that_is_not_in_the_list_is_refused_and_an_order_is_a_post() {
        let front = front();
        let ask = |line: &str| answer(&front, &[line, HOST, ORIGIN, OWN]);
        for path in ["start/", "start/paper", "start/paper/table-1/", "start/paper%2Ftable-1", "start/--party"] {
            let (status, words) = ask(&format!("POST {PLACE}/{path} HTTP/1.1"));
            assert!(status == 404 && words.contains("no experiment of the list"), "{path}: {status} {words}");
        }
        for path in ["attack", "attack/", "attack/kill", "attack/kill/bravo", "attack/kill/alpha/", "attack/halt/alpha"]
        {
            let (status, words) = ask(&format!("POST {PLACE}/{path} HTTP/1.1"));
            assert!(status == 404 && words.contains("no attack and process"), "{path}: {status} {words}");
        }
        assert_eq!(ask(&format!("POST {PLACE}/attack/kill/alpha HTTP/1.1")).0, 503, "its program fails");
        assert_eq!(ask(&format!("POST {PLACE}/halt HTTP/1.1")).0, 404);
        assert_eq!(ask(&format!("GET {PLACE}/attack/kill/alpha HTTP/1.1")).0, 405);
        assert_eq!(ask(&format!("POST {PLACE} HTTP/1.1")).0, 405);
        assert_eq!(ask(&format!("GET {PLACE}/start/paper/table-1 HTTP/1.1")).0, 405);
        assert_eq!(ask(&format!("GET {PLACE}/stop HTTP/1.1")).0, 405);
        assert_eq!(ask(&format!("POST {PLACE}/stop HTTP/1.1")).0, 409, "nothing runs");
        assert!(front.experiments.document()["run"].is_null(), "nothing has started");
    }

    #[test]
    fn the_page_itself_may_start_what_is_in_the_list() {
        let front = front();
        assert_eq!(answer(&front, &["GET /api/v1/laboratory HTTP/1.1", HOST, OWN]).0, 200);
        assert_eq!(answer(&front, &[START, HOST, ORIGIN, OWN]).0, 200);
        assert_eq!(front.experiments.document()["run"]["id"], "paper/table-1");
    }

    #[test]
    fn what_is_passed_on_is_alone_on_its_connection_and_has_no_body() {
        let head = "GET /api/v1/stream?x=1 HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\
                    content-length: 7\r\nCookie: a=b";
        let passed = Head::parse(head).expect("a head").passed_on();
        let expected = "GET /api/v1/stream?x=1 HTTP/1.1\r\nHost: localhost\r\nCookie: a=b\r\nConnection: close\r\n\r\n";
        assert_eq!(passed, expected);
    }

    #[test]
    fn what_is_no_head_of_a_request_is_none() {
        let wrong = [
            "",
            "GET /",
            "GET / HTTP/2",
            "GET  / HTTP/1.1",
            "GET http://evil.example/ HTTP/1.1",
            "GET / HTTP/1.1 x",
            "GET / HTTP/1.1\r\nno field",
            "GET / HTTP/1.1\r\n: x",
            "GET / HTTP/1.1\r\na b: x",
            "GET / HTTP/1.1\r\nHost: a\nCookie: b",
        ];
        for text in wrong {
            assert!(Head::parse(text).is_none(), "{text:?}");
        }
        let long = "x".repeat(2 * MAX_HEAD);
        assert!(read_head(&mut long.as_bytes()).is_err() && read_head(&mut &b"GET / HTTP/1.1\r\n"[..]).is_err());
        assert_eq!(read_head(&mut &b"GET / HTTP/1.1\r\n\r\nmore"[..]).expect("a head"), "GET / HTTP/1.1");
    }
}
