//! What an application asks of a gateway that is a proxy, and what it is answered: SOCKS5 (RFC 1928) and HTTP/1.1 (RFC 9110,
//! RFC 9112), at one port. The first octet tells them apart: 5 is SOCKS', and begins no method.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Octets of the longest head of a request.
pub const LONGEST_HEAD: usize = 16 << 10;
/// Octets of the longest name (RFC 1035 section 2.3.4).
const LONGEST_NAME: usize = 253;
/// Header fields of one connection alone (RFC 9110 section 7.6.1). `Host` is written anew.
const OWN_FIELDS: [&str; 9] = [
    "connection",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
];

/// Whom a connection is to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Host {
    Name(String),
    Address(IpAddr),
}

/// Whom, and at which port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    pub host: Host,
    pub port: u16,
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.host {
            Host::Name(name) => write!(f, "{name}:{}", self.port),
            Host::Address(address) => write!(f, "{}", SocketAddr::new(*address, self.port)),
        }
    }
}

/// How an application speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    Socks,
    Http,
}

/// What an application wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    pub protocol: Protocol,
    pub target: Target,
    pub command: Command,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// A connection to the target, which takes all that the application sends once it has been told of success.
    Connect,
    /// One that takes this head, and so many octets of the application's behind it.
    Forward(Vec<u8>, u64),
    /// Datagrams ([`super::socks_datagram`]). The target is where the application sends them from; port 0, which no other request has: it does
    /// not say.
    Associate,
}

/// What is to be done with the octets of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// More are needed.
    More,
    /// So many are done with, and are answered by these.
    Answer(usize, [u8; 2]),
    /// So many are done with, and ask for this.
    Request(usize, Box<Request>),
}

/// Why nothing is done for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Too much is done already.
    Busy,
    /// It is not in the overlay, or this node itself.
    NotAllowed,
    /// No path is allowed, or no node consents.
    Prohibited,
    /// There is no such node.
    Unreachable,
    /// The far end refused the connection.
    Refused,
    /// The far end does not answer.
    Silent,
    /// The request is not well-formed.
    Malformed,
    /// Not a way to authenticate that there is.
    Method,
    /// A command, or a method of HTTP, that there is not.
    Command,
    /// A kind of address, or a scheme, that there is not.
    AddressKind,
    /// The head of the request is too long.
    TooLong,
    /// The request's body has no length.
    NoLength,
}

/// A request that is refused by its form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// How the application is told; `None`: it speaks neither protocol.
    pub protocol: Option<Protocol>,
    pub refusal: Refusal,
    pub why: &'static str,
}

impl Protocol {
    /// What tells an application that its connection is open.
    #[must_use]
    pub fn success(self) -> &'static [u8] {
        match self {
            // The address at which the connection begins is nobody's concern.
            Self::Socks => &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0],
            Self::Http => b"HTTP/1.1 200 Connection established\r\n\r\n",
        }
    }

    /// What tells an application that there is no connection; `why` is a sentence.
    #[must_use]
    pub fn refusal(self, refusal: Refusal, why: &str) -> Vec<u8> {
        let (code, status) = match refusal {
            Refusal::Busy => (1, "503 Service Unavailable"),
            Refusal::NotAllowed => (2, "403 Forbidden"),
            Refusal::Prohibited => (3, "502 Bad Gateway"),
            Refusal::Unreachable => (4, "502 Bad Gateway"),
            Refusal::Refused => (5, "502 Bad Gateway"),
            Refusal::Silent => (4, "504 Gateway Timeout"),
            Refusal::Malformed => (1, "400 Bad Request"),
            Refusal::Method => (0xff, "407 Proxy Authentication Required"),
            Refusal::Command => (7, "501 Not Implemented"),
            Refusal::AddressKind => (8, "400 Bad Request"),
            Refusal::TooLong => (1, "431 Request Header Fields Too Large"),
            Refusal::NoLength => (1, "411 Length Required"),
        };
        match self {
            Self::Socks if refusal == Refusal::Method => vec![5, code],
            Self::Socks => vec![5, code, 0, 1, 0, 0, 0, 0, 0, 0],
            Self::Http => format!(
                "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n{why}\n",
                why.len() + 1
            )
            .into_bytes(),
        }
    }
}

/// What tells an application where its datagrams are taken (RFC 1928 section 6).
#[must_use]
pub fn socks_bound(at: SocketAddr) -> Vec<u8> {
    let mut answer = vec![5, 0, 0];
    match at.ip() {
        IpAddr::V4(v4) => answer.extend([&[1], &v4.octets()[..]].concat()),
        IpAddr::V6(v6) => answer.extend([&[4], &v6.octets()[..]].concat()),
    }
    answer.extend(at.port().to_be_bytes());
    answer
}

/// Reads requests: it is asked again with what was not used, and more, until there is a [`Request`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Reader {
    /// The method of SOCKS was chosen.
    has_greeted: bool,
}

impl Reader {
    /// Looks at all octets that have come and were not used.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn step(&mut self, octets: &[u8]) -> Result<Step, Fault> {
        match octets.first() {
            None => Ok(Step::More),
            Some(5) if !self.has_greeted => {
                let step = greeting(octets)?;
                self.has_greeted = step != Step::More;
                Ok(step)
            }
            Some(5) => socks_request(octets),
            Some(_) if self.has_greeted => Err(socks(Refusal::Malformed, "the request is of another version")),
            Some(first) if is_token_octet(*first) => http_request(octets),
            Some(_) => Err(Fault {
                protocol: None,
                refusal: Refusal::Malformed,
                why: "this is neither SOCKS of version 5 nor HTTP",
            }),
        }
    }
}

fn socks(refusal: Refusal, why: &'static str) -> Fault {
    Fault { protocol: Some(Protocol::Socks), refusal, why }
}

fn http(refusal: Refusal, why: &'static str) -> Fault {
    Fault { protocol: Some(Protocol::Http), refusal, why }
}

/// RFC 1928 section 3.
fn greeting(octets: &[u8]) -> Result<Step, Fault> {
    let Some(count) = octets.get(1) else { return Ok(Step::More) };
    let end = 2 + usize::from(*count);
    let Some(methods) = octets.get(2..end) else { return Ok(Step::More) };
    if !methods.contains(&0) {
        return Err(socks(Refusal::Method, "the application wants to authenticate, and nobody has to"));
    }
    Ok(Step::Answer(end, [5, 0]))
}

/// RFC 1928 section 4.
fn socks_request(octets: &[u8]) -> Result<Step, Fault> {
    let Some(([_, command, _], rest)) = octets.split_first_chunk::<3>() else { return Ok(Step::More) };
    let read =
        read_socks_address(rest).map_err(|()| socks(Refusal::AddressKind, "there is no such kind of address"))?;
    let Some((host, length)) = read else { return Ok(Step::More) };
    let Some(port) = rest[length..].first_chunk::<2>() else { return Ok(Step::More) };
    let command = match command {
        1 => Command::Connect,
        3 => Command::Associate,
        _ => return Err(socks(Refusal::Command, "of the commands there are CONNECT and UDP ASSOCIATE")),
    };
    let host = host.ok_or_else(|| socks(Refusal::Malformed, "the name is not well-formed"))?;
    let port = u16::from_be_bytes(*port);
    if port == 0 && command != Command::Associate {
        return Err(socks(Refusal::Malformed, "there is no port 0"));
    }
    let request = Request { protocol: Protocol::Socks, target: Target { host, port }, command };
    Ok(Step::Request(3 + length + 2, Box::new(request)))
}

/// An address behind its kind (RFC 1928 section 5), if it has come whole: the host, if that is well-formed, and how many octets both have.
pub(super) fn read_socks_address(octets: &[u8]) -> Result<Option<(Option<Host>, usize)>, ()> {
    let Some([kind, first, ..]) = octets.first_chunk::<2>() else { return Ok(None) };
    let (begin, length) = match kind {
        1 => (1, 4),
        3 => (2, usize::from(*first)),
        4 => (1, 16),
        _ => return Err(()),
    };
    let end = begin + length;
    let Some(host) = octets.get(begin..end) else { return Ok(None) };
    let host = match kind {
        1 => host.first_chunk::<4>().map(|octets| Host::Address(Ipv4Addr::from(*octets).into())),
        4 => host.first_chunk::<16>().map(|octets| Host::Address(Ipv6Addr::from(*octets).into())),
        _ => std::str::from_utf8(host).ok().and_then(read_host),
    };
    Ok(Some((host, end)))
}

/// A name or an address.
fn read_host(text: &str) -> Option<Host> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(Host::Address(address));
    }
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|octet| octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'_'))
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_name = name.len() <= LONGEST_NAME && name.split('.').all(is_label);
    is_name.then(|| Host::Name(name.to_ascii_lowercase()))
}

fn http_request(octets: &[u8]) -> Result<Step, Fault> {
    let malformed = |why| http(Refusal::Malformed, why);
    let window = &octets[..octets.len().min(LONGEST_HEAD)];
    let Some(end) = window.windows(4).position(|four| four == b"\r\n\r\n") else {
        // What can be no line of a request is not waited for.
        return match octets.len() < LONGEST_HEAD {
            true => Ok(Step::More),
            false => Err(http(Refusal::TooLong, "the head of the request is longer than 16 KiB")),
        };
    };
    let head = std::str::from_utf8(&octets[..end]).map_err(|_| malformed("the head of the request is not text"))?;
    let mut lines = head.split("\r\n");
    if lines.clone().any(|line| line.bytes().any(|octet| octet.is_ascii_control() && octet != b'\t')) {
        return Err(malformed("there is a control character in the head of the request"));
    }
    let first: Vec<&str> = lines.next().unwrap_or("").split(' ').collect();
    let [method, target, version] = first[..] else { return Err(malformed("the request line has not three parts")) };
    if !method.bytes().all(is_token_octet) || !matches!(version, "HTTP/1.1" | "HTTP/1.0") {
        return Err(malformed("the request line is not that of HTTP/1.1"));
    }
    let mut fields = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or_else(|| malformed("a header field has no colon"))?;
        if name.is_empty() || !name.bytes().all(is_token_octet) {
            return Err(malformed("the name of a header field is not well-formed"));
        }
        fields.push((name, value.trim_matches([' ', '\t'])));
    }
    let used = end + 4;
    let request =
        |target, command| Ok(Step::Request(used, Box::new(Request { protocol: Protocol::Http, target, command })));
    if method == "CONNECT" {
        let target = read_authority(target, None).ok_or_else(|| malformed("CONNECT takes a host and a port"))?;
        return request(target, Command::Connect);
    }
    let (scheme, rest) = target
        .split_once("://")
        .ok_or_else(|| malformed("this is a proxy: it takes http://HOST/PATH, or CONNECT HOST:PORT"))?;
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(http(Refusal::AddressKind, "of the schemes a proxy forwards http alone: use CONNECT"));
    }
    if method == "TRACE" {
        return Err(http(Refusal::Command, "there is no TRACE"));
    }
    let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(authority_end);
    let target = read_authority(authority, Some(80)).ok_or_else(|| malformed("the host is not well-formed"))?;
    if path.contains('#') {
        return Err(malformed("there is a fragment in the request's target"));
    }
    let slash = match path {
        "" if method == "OPTIONS" => "*",
        path if path.starts_with('/') => "",
        _ => "/",
    };
    let body = body_length(&fields)?;
    let is_listed = |name: &str| {
        let connection = fields.iter().filter(|(field, _)| field.eq_ignore_ascii_case("connection"));
        connection.flat_map(|(_, value)| value.split(',')).any(|listed| listed.trim().eq_ignore_ascii_case(name))
    };
    let received = version.trim_start_matches("HTTP/");
    // A client of before takes the parts of a chunked answer for its content: the server is to know whom it answers.
    let spoken = if received == "1.0" { "1.0" } else { "1.1" };
    let mut forward = format!("{method} {slash}{path} HTTP/{spoken}\r\nHost: {authority}\r\n");
    for (name, value) in &fields {
        let is_own = OWN_FIELDS.iter().any(|own| name.eq_ignore_ascii_case(own)) || is_listed(name);
        // Without its length nobody could tell where the body ends, whatever `Connection` lists.
        if !is_own || name.eq_ignore_ascii_case("content-length") {
            forward += &format!("{name}: {value}\r\n");
        }
    }
    forward += &format!("Via: {received} wayleave\r\nConnection: close\r\n\r\n");
    request(target, Command::Forward(forward.into_bytes(), body))
}

/// How many octets the body has (RFC 9112 section 6.3).
fn body_length(fields: &[(&str, &str)]) -> Result<u64, Fault> {
    let of = |name: &'static str| fields.iter().filter(move |(field, _)| field.eq_ignore_ascii_case(name));
    if of("transfer-encoding").next().is_some() {
        return Err(http(Refusal::NoLength, "the body of a request needs Content-Length"));
    }
    let mut lengths = of("content-length").map(|(_, value)| value);
    let Some(first) = lengths.next() else { return Ok(0) };
    let is_number = !first.is_empty() && first.bytes().all(|octet| octet.is_ascii_digit());
    let length = first.parse().ok().filter(|_| is_number && lengths.all(|other| other == first));
    length.ok_or_else(|| http(Refusal::Malformed, "Content-Length is not well-formed"))
}

/// A host and a port.
fn read_authority(text: &str, default: Option<u16>) -> Option<Target> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) = rest.split_once(']')?;
            (Host::Address(address.parse::<Ipv6Addr>().ok()?.into()), rest)
        }
        None => {
            let end = text.find(':').unwrap_or(text.len());
            (read_host(&text[..end])?, &text[end..])
        }
    };
    let port = match port.strip_prefix(':') {
        Some(port) if !port.is_empty() => {
            port.parse().ok().filter(|_| port.bytes().all(|octet| octet.is_ascii_digit()))?
        }
        _ if matches!(port, "" | ":") => default?,
        _ => return None,
    };
    (port != 0).then_some(Target { host, port })
}

/// Whether an octet may be in a token (RFC 9110 section 5.6.2).
fn is_token_octet(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&octet)
}

#[cfg(test)]
mod tests {
    //! ICD, requests to a proxy: what an application says: cut at every octet, too long, with names that hide others, or garbage.

    use super::*;

    type Read = (Request, Vec<u8>, Vec<u8>);

    /// The request that comes out if the octets come in pieces of `piece`, what was answered, and what was not used.
    fn read(octets: &[u8], piece: usize) -> Result<Option<Read>, Fault> {
        let (mut reader, mut waiting, mut answered) = (Reader::default(), Vec::new(), Vec::new());
        let mut pieces = octets.chunks(piece);
        loop {
            match reader.step(&waiting)? {
                Step::More => match pieces.next() {
                    Some(more) => waiting.extend_from_slice(more),
                    None => return Ok(None),
                },
                Step::Answer(used, answer) => {
                    waiting.drain(..used);
                    answered.extend(answer);
                }
                Step::Request(used, request) => {
                    waiting.drain(..used);
                    pieces.for_each(|more| waiting.extend_from_slice(more));
                    return Ok(Some((*request, answered, waiting)));
                }
            }
        }
    }

    fn target(host: &str, port: u16) -> Target {
        Target { host: read_host(host).unwrap(), port }
    }

    fn socks_request(kind: u8, host: &[u8], port: u16) -> Vec<u8> {
        [&[5, 2, 2, 0, 5, 1, 0, kind], host, &port.to_be_bytes()].concat()
    }

    const GET: &str = "POST http://Clean.B.demo:8080/a?b=http://c HTTP/1.1\r\nHost: other.example\r\nAccept: */*\r\n\
                       Proxy-Connection: keep-alive\r\nConnection: x-own, Content-Length\r\nX-Own: 1\r\nTE: trailers\r\n\
                       Proxy-Authorization: Basic x\r\nContent-Length: 4\r\n\r\n";
    const FORWARDED: &str = "POST /a?b=http://c HTTP/1.1\r\nHost: Clean.B.demo:8080\r\nAccept: */*\r\nContent-Length: 4\r\n\
                             Via: 1.1 wayleave\r\nConnection: close\r\n\r\n";

    #[test]
    fn requests_are_read_however_they_are_cut_and_what_follows_is_kept() {
        let v6 = [0xfd, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let socks =
            |host: &str, port, command| Request { protocol: Protocol::Socks, target: target(host, port), command };
        let http = |host: &str, port, forward: Option<(&str, u64)>| Request {
            protocol: Protocol::Http,
            target: target(host, port),
            command: forward.map_or(Command::Connect, |(head, body)| Command::Forward(head.as_bytes().to_vec(), body)),
        };
        let plain = "GET / HTTP/1.0\r\nHost: b.demo\r\nVia: 1.0 wayleave\r\nConnection: close\r\n\r\n";
        let query = "GET /?q HTTP/1.1\r\nHost: [fd00:2::1]\r\nVia: 1.1 wayleave\r\nConnection: close\r\n\r\n";
        let options = "OPTIONS * HTTP/1.1\r\nHost: b.demo\r\nVia: 1.1 wayleave\r\nConnection: close\r\n\r\n";
        for (octets, expected, answered) in [
            (socks_request(3, b"\x0cclean.B.demo", 22), socks("clean.b.demo", 22, Command::Connect), &[5, 0][..]),
            (socks_request(3, b"\x0810.0.2.1", 22), socks("10.0.2.1", 22, Command::Connect), &[5, 0]),
            (socks_request(1, &[10, 0, 2, 1], 65_535), socks("10.0.2.1", 65_535, Command::Connect), &[5, 0]),
            (socks_request(4, &v6, 1), socks("fd00:2::1", 1, Command::Connect), &[5, 0]),
            (b"\x05\x01\x00\x05\x03\x00\x01\0\0\0\0\0\0".to_vec(), socks("0.0.0.0", 0, Command::Associate), &[5, 0]),
            (b"CONNECT b.demo:443 HTTP/1.1\r\nHost: b.demo\r\n\r\n".to_vec(), http("b.demo", 443, None), &[]),
            (b"CONNECT [fd00:2::1]:443 HTTP/1.1\r\n\r\n".to_vec(), http("fd00:2::1", 443, None), &[]),
            (GET.into(), http("clean.b.demo", 8_080, Some((FORWARDED, 4))), &[]),
            (b"GET http://b.demo HTTP/1.0\r\n\r\n".to_vec(), http("b.demo", 80, Some((plain, 0))), &[]),
            (b"GET HTTP://[fd00:2::1]?q HTTP/1.1\r\n\r\n".to_vec(), http("fd00:2::1", 80, Some((query, 0))), &[]),
            (b"OPTIONS http://b.demo HTTP/1.1\r\n\r\n".to_vec(), http("b.demo", 80, Some((options, 0))), &[]),
        ] {
            let whole = [&octets, &b"and more"[..]].concat();
            for piece in 1..=whole.len() {
                let found = read(&whole, piece).unwrap();
                let more = b"and more".to_vec();
                assert_eq!(found, Some((expected.clone(), answered.to_vec(), more)), "{}", octets.escape_ascii());
            }
            for length in 0..octets.len() {
                assert_eq!(read(&octets[..length], 1), Ok(None), "{length}: {}", octets.escape_ascii());
            }
        }
    }

    #[test]
    fn what_is_not_well_formed_is_refused_by_the_code_of_its_protocol() {
        let long = [b"GET http://b.demo/".to_vec(), vec![b'a'; LONGEST_HEAD]].concat();
        let fields = |fields: &str| format!("POST http://b.demo/ HTTP/1.1\r\n{fields}\r\n\r\n").into_bytes();
        for (octets, protocol, refusal) in [
            (b"\x16\x03\x01\x02\x00".to_vec(), None, Refusal::Malformed),
            (b"\x04\x01\x00\x50".to_vec(), None, Refusal::Malformed),
            (b"\r\n\r\n".to_vec(), None, Refusal::Malformed),
            (b"\x05\x00".to_vec(), Some(Protocol::Socks), Refusal::Method),
            (b"\x05\x01\x02".to_vec(), Some(Protocol::Socks), Refusal::Method),
            (b"\x05\x01\x00\x04\x01\x00".to_vec(), Some(Protocol::Socks), Refusal::Malformed),
            (b"\x05\x01\x00\x05\x02\x00\x01\x0a\x00\x02\x01\x00\x16".to_vec(), Some(Protocol::Socks), Refusal::Command),
            (b"\x05\x01\x00\x05\x01\x00\x02\x0a".to_vec(), Some(Protocol::Socks), Refusal::AddressKind),
            (socks_request(3, b"\x00", 22), Some(Protocol::Socks), Refusal::Malformed),
            (socks_request(3, b"\x04b\0.a", 22), Some(Protocol::Socks), Refusal::Malformed),
            (socks_request(3, b"\x02\xc3\xa4", 22), Some(Protocol::Socks), Refusal::Malformed),
            (socks_request(1, &[10, 0, 2, 1], 0), Some(Protocol::Socks), Refusal::Malformed),
            (long, Some(Protocol::Http), Refusal::TooLong),
            (b"GET / HTTP/1.1\r\nHost: b.demo\r\n\r\n".to_vec(), Some(Protocol::Http), Refusal::Malformed),
            (b"GET https://b.demo/ HTTP/1.1\r\n\r\n".to_vec(), Some(Protocol::Http), Refusal::AddressKind),
            (b"GET http://u@b.demo/ HTTP/1.1\r\n\r\n".to_vec(), Some(Protocol::Http), Refusal::Malformed),
            (b"GET http://b.demo:99999/ HTTP/1.1\r\n\r\n".to_vec(), Some(Protocol::Http), Refusal::Malformed),
            (b"GET http://b.demo:+80/ HTTP/1.1\r\n\r\n".to_vec(), Some(Protocol::Http), Refusal::Malformed),
            (b"GET http:///a HTTP/1.1\r\n\r\n".to_vec(), Some(Protocol::Http), Refusal::Malformed),
            (b"GET http://b.demo/#a HTTP/1.1\r\n\r\n".to_vec(), Some(Protocol::Http), Refusal::Malformed),
            (b"GET  http://b.demo/ HTTP/1.1\r\n\r\n".to_vec(), Some(Protocol::Http), Refusal::Malformed),
            (b"GET http://b.demo/ HTTP/2.0\r\n\r\n".to_vec(), Some(Protocol::Http), Refusal::Malformed),
            (b"TRACE http://b.demo/ HTTP/1.1\r\n\r\n".to_vec(), Some(Protocol::Http), Refusal::Command),
            (b"CONNECT b.demo HTTP/1.1\r\n\r\n".to_vec(), Some(Protocol::Http), Refusal::Malformed),
            (b"CONNECT [::1 HTTP/1.1\r\n\r\n".to_vec(), Some(Protocol::Http), Refusal::Malformed),
            (fields("A: b\nC: d"), Some(Protocol::Http), Refusal::Malformed),
            (fields("A: b\rC: d"), Some(Protocol::Http), Refusal::Malformed),
            (fields("A : b"), Some(Protocol::Http), Refusal::Malformed),
            (fields("A: b\r\n folded"), Some(Protocol::Http), Refusal::Malformed),
            (fields("A: \u{e4}\0"), Some(Protocol::Http), Refusal::Malformed),
            (fields("Transfer-Encoding: chunked"), Some(Protocol::Http), Refusal::NoLength),
            (fields("Content-Length: 4\r\nContent-Length: 5"), Some(Protocol::Http), Refusal::Malformed),
            (fields("Content-Length: +4"), Some(Protocol::Http), Refusal::Malformed),
            (fields("Content-Length: 4, 4"), Some(Protocol::Http), Refusal::Malformed),
            (fields("Content-Length: 18446744073709551616"), Some(Protocol::Http), Refusal::Malformed),
        ] {
            for piece in [1, octets.len()] {
                let found = read(&octets, piece).expect_err(&octets.escape_ascii().to_string());
                assert_eq!((found.protocol, found.refusal), (protocol, refusal), "{}", octets.escape_ascii());
            }
        }
        assert_eq!(socks_bound("127.0.0.1:258".parse().unwrap()), [5, 0, 0, 1, 127, 0, 0, 1, 1, 2]);
        assert_eq!(socks_bound("[::1]:258".parse().unwrap())[3..], [&[4][..], &[0; 15], &[1, 1, 2]].concat());
        for (refusal, code, status) in [
            (Refusal::NotAllowed, 2, "403 "),
            (Refusal::Prohibited, 3, "502 "),
            (Refusal::Unreachable, 4, "502 "),
            (Refusal::Refused, 5, "502 "),
            (Refusal::Silent, 4, "504 "),
            (Refusal::Busy, 1, "503 "),
        ] {
            let answer = Protocol::Socks.refusal(refusal, "why");
            assert_eq!((answer.len(), answer[0], answer[1]), (10, 5, code));
            let answer = String::from_utf8(Protocol::Http.refusal(refusal, "why")).unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.ends_with("\r\n\r\nwhy\n"));
        }
    }
}
