//! A gateway without root and without a TUN interface, which serves applications by SOCKS5 and HTTP; the other one has a TUN interface.
//!
//! ICC, proxy: as another user without capabilities: `curl` by SOCKS5 and by HTTP, by name under two policies, both ways: SHA-256
//! right; the gateway is killed meanwhile: the next one serves.
//! ICC, proxy's datagrams: by SOCKS5, by name and by address of both families, ten each way and a question for a name: each answer says where
//! it is from as the application did; fragments, others' datagrams and those to elsewhere go nowhere; all ends with the connection.
//! ICC, proxy's limits: names and addresses elsewhere, this node, what is not well-formed: refused with the protocol's code and a sentence, and
//! nothing leaves in clear.
//! ICC, proxy's port: the role is killed, where systemd keeps its socket: nobody else takes the port, and who connects meanwhile is served by the
//! next one; another address is refused.
//! ICC, proxy's descriptors: connections use up those of a gateway, at its proxy and at its port for names: who waits meanwhile is served as soon
//! as they are closed, by the same process.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::chown;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::json;
use wayleave_crypto::hash::sha256;
use wayleave_lab::process::Daemon;

use super::*;
use crate::common::descriptors::Descriptors;
use crate::common::eventually;
use crate::overlay::applications::{page, serve};

const NOBODY: u32 = 65_534;
const PROXY: &str = "127.0.0.1:1080";

/// Starts a in the place of the one that runs, as nobody, without any capability and without a TUN interface.
fn start(world: &mut World) {
    start_with(world, None);
}

/// The role is started by this, with descriptor $0 as what systemd hands over.
const HAND_OVER: &str = "exec 3<&$0; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";

/// The same with a socket that is handed over.
fn start_with(world: &mut World, handed_over: Option<&TcpListener>) {
    world.gateways[0].daemon.kill();
    let folder = world.folder.0.join("proxy");
    if !folder.exists() {
        let config = fs::read_to_string(world.folder.0.join("a.toml")).expect("a configuration");
        let lines = config.lines().filter(|line| !line.starts_with("interface") && !line.starts_with("dns"));
        let config = lines.collect::<Vec<_>>().join("\n").replace("a.json", "../a.json");
        fs::create_dir(&folder).expect("a folder");
        world.folder.write("proxy/a.toml", &config);
        let owned = [&folder, &folder.join("a.toml")].map(|path| chown(path, Some(NOBODY), Some(NOBODY)));
        if owned.iter().any(Result::is_err) {
            netns::skipped(
                "the proxy as another user: there is one user only in this namespace; it has no capabilities",
            );
        }
        let checked = world.folder.run(&["check", "proxy/a.toml"]);
        assert!(checked.status.success(), "{}", text(&checked.stderr));
    }
    let mut arguments = vec!["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs"];
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let others = Command::new("setpriv").args(user).arg("true").stderr(Stdio::null()).status();
    if others.expect("setpriv runs").success() {
        arguments.extend(user);
    }
    let mut command = world.places[A].command("setpriv");
    command.args(arguments);
    if let Some(socket) = handed_over {
        command.args(["bash", "-c", HAND_OVER, &socket.as_raw_fd().to_string()]);
    }
    command.arg(env!("CARGO_BIN_EXE_wayleave"));
    command.args(["run", "gateway", "--proxy", PROXY, "--config", "a.toml"]).current_dir(folder);
    let daemon = Daemon::start(&mut command, &world.folder.0.join("a.log")).expect("started");
    let begin = Instant::now();
    world.gateways[0].daemon = daemon;
    while world.gateways[0].status().is_null() {
        let is_there = world.gateways[0].daemon.is_running() && begin.elapsed() < TIMEOUT;
        assert!(is_there, "a did not start: {}", world.gateways[0].daemon.log_tail(20));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_named_by_the_rule("gateway", &world.gateways[0].place, world.gateways[0].page);
    assert_one_screen(&world.gateways[0].place, world.gateways[0].page);
}

#[test]
fn a_connection_that_came_between_two_runs_is_served_where_systemd_keeps_the_port() {
    let test = "gateway::proxy::a_connection_that_came_between_two_runs_is_served_where_systemd_keeps_the_port";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let mut world = World::start("gateway-proxy-socket");
    let socket = world.places[A].within(|| TcpListener::bind(PROXY)).expect("in its place").expect("bound");
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty()).expect("set");
    start_with(&mut world, Some(&socket));
    assert_eq!(proxy(&world)["inherited"], true, "{}", proxy(&world));
    let content = page(1 << 20);
    serve(&world.places[B], &["10.0.2.1:80"], &content, &world.folder.0);
    assert_eq!(fetched(&world, &["--socks5-hostname", PROXY, "http://fast.b.demo/page"]), content);
    world.gateways[0].daemon.kill();
    let taken = world.places[A].within(|| TcpListener::bind(PROXY)).expect("in its place");
    assert!(taken.is_err(), "nobody else has the port meanwhile");
    let mut between = connected(&world);
    between.write_all(&[5, 1, 0]).expect("sent");
    // A service that is to listen elsewhere says so, and leaves nobody to wait for it.
    let mut command = world.places[A].command("bash");
    command.args(["-c", HAND_OVER, &socket.as_raw_fd().to_string(), env!("CARGO_BIN_EXE_wayleave")]);
    command.args(["run", "gateway", "--proxy", "127.0.0.1:1081", "--config", "proxy/a.toml"]);
    let refused = command.current_dir(&world.folder.0).output().expect("it runs");
    let said = text(&refused.stderr);
    assert!(!refused.status.success(), "{said}");
    assert!(
        said.contains("systemd hands over a socket at 127.0.0.1:1080, and the proxy is to be at 127.0.0.1:1081"),
        "{said}"
    );
    start_with(&mut world, Some(&socket));
    let mut answer = [0; 2];
    between.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer, [5, 0]);
    assert_eq!(fetched(&world, &["--socks5-hostname", PROXY, "http://fast.b.demo/page"]), content);
}

#[test]
fn a_gateway_without_a_free_descriptor_serves_who_waits_once_there_is_one() {
    let test = "gateway::proxy::a_gateway_without_a_free_descriptor_serves_who_waits_once_there_is_one";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let mut world = World::start("gateway-descriptors");
    start(&mut world);
    let connect = |node: usize, at: &str| {
        let connected = world.places[node].within(|| TcpStream::connect(at)).expect("in its place");
        let stream = connected.expect("the system takes what waits to be accepted");
        stream.set_read_timeout(Some(TIMEOUT)).expect("set");
        stream
    };
    let mut question = Message::query();
    question.add_query(Query::query("fast.a.demo.".parse().expect("a name"), RecordType::A));
    let question = question.to_vec().expect("encoded");
    let question = [&(question.len() as u16).to_be_bytes()[..], &question].concat();
    // a by its proxy, b by its port for names.
    for (node, at, asked) in [(A, PROXY, &[5, 1, 0][..]), (B, "127.0.0.1:53", &question[..])] {
        let descriptors = Descriptors::leave(world.gateways[node].daemon.id(), 4);
        let all = descriptors.use_up(|| connect(node, at));
        let mut waits = connect(node, at);
        waits.write_all(asked).expect("sent");
        drop(all);
        let mut answer = [0; 2];
        waits.read_exact(&mut answer).unwrap_or_else(|error| panic!("{at}: {error}: {}", world.log(node)));
        if node == A {
            assert_eq!(answer, [5, 0]);
        } else {
            let mut octets = vec![0; u16::from_be_bytes(answer).into()];
            waits.read_exact(&mut octets).expect("the rest");
            let answer = Message::from_vec(&octets).expect("an answer");
            assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
            assert_eq!(answer.answers.len(), 1, "fast.a.demo has an address");
        }
    }
    assert!(world.gateways.iter_mut().all(|gateway| gateway.daemon.is_running()));
}

fn curl(world: &World, arguments: &[&str]) -> Output {
    world.run(A, "curl", &[&["-sS", "--max-time", "100"], arguments].concat())
}

fn fetched(world: &World, arguments: &[&str]) -> Vec<u8> {
    let output = curl(world, arguments);
    assert!(output.status.success(), "{arguments:?}: {}\n{}", text(&output.stderr), world.log(A));
    output.stdout
}

fn proxy(world: &World) -> Value {
    world.gateways[0].status()["proxy"].clone()
}

#[test]
fn applications_reach_a_member_by_socks_and_http_without_root_and_after_a_kill() {
    let test = "gateway::proxy::applications_reach_a_member_by_socks_and_http_without_root_and_after_a_kill";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let mut world = World::start("gateway-proxy");
    start(&mut world);
    let links = world.run(A, "ip", &["-br", "link"]);
    assert!(!text(&links.stdout).contains("way0"), "there is no interface");
    let has = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let status = has(&format!("/proc/{}/status", world.gateways[0].daemon.id()));
    let capabilities: Vec<&str> =
        status.lines().filter(|line| line.starts_with("CapEff") || line.starts_with("CapPrm")).collect();
    assert!(
        capabilities.len() == 2 && capabilities.iter().all(|line| line.ends_with("0000000000000000")),
        "{capabilities:?}"
    );
    let content = page(8 << 20);
    serve(&world.places[B], &["10.0.2.1:80", "[fd00:2::1]:80"], &content, &world.folder.0);
    let digest = sha256(&content);
    let over = |world: &World, policy: &str| {
        let why = world.gateways[0].json(&["why", &format!("{policy}.b.demo")]);
        assert_eq!(why["state"], "ready", "{why}");
        why["active"]["nodes"].as_array().map(Vec::len)
    };
    for (policy, nodes) in [("fast", 3), ("clean", 5)] {
        let url = format!("http://{policy}.b.demo/page");
        for arguments in [
            &["--socks5-hostname", PROXY][..],
            &["--proxy", "http://127.0.0.1:1080"],
            &["--proxytunnel", "--proxy", "http://127.0.0.1:1080"],
        ] {
            let octets = fetched(&world, &[arguments, &[&url]].concat());
            assert_eq!((octets.len(), sha256(&octets)), (content.len(), digest), "{policy} {arguments:?}");
        }
        assert_eq!(over(&world, policy), Some(nodes), "{policy}");
    }
    // The other way.
    world.folder.write("upload", &"an upload ".repeat(200_000));
    let upload = world.folder.0.join("upload");
    let digest = to_hex(&sha256(&fs::read(&upload).expect("a file")));
    let upload = upload.to_str().expect("a path");
    for arguments in [&["--socks5-hostname", PROXY][..], &["--proxy", "http://127.0.0.1:1080"]] {
        let answer = fetched(&world, &[arguments, &["-T", upload, "http://10.0.2.1/up"]].concat());
        assert_eq!(text(&answer), digest, "{arguments:?}");
    }
    let shown = proxy(&world);
    assert_eq!(
        (&shown["address"], &shown["opened"], &shown["refused"]),
        (&json!(PROXY), &json!(8), &json!(0)),
        "{shown}"
    );
    eventually("the connections are closed", || proxy(&world)["open"] == 0);
    // It is killed under a download that is longer than what the system's buffers would still deliver.
    serve(&world.places[B], &["10.0.2.1:81"], &page(64 << 20), &world.folder.0);
    let mut download = world.places[A].command("curl");
    let url = "http://fast.b.demo:81/page";
    download
        .args(["-sS", "--limit-rate", "1M", "--socks5-hostname", PROXY, url])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut download = download.spawn().expect("curl runs");
    eventually("it is under way", || proxy(&world)["open"] == 1 && proxy(&world)["opened"] == 9);
    start(&mut world);
    assert!(!download.wait().expect("it ends").success());
    let octets = fetched(&world, &["--socks5-hostname", PROXY, "http://clean.b.demo/page"]);
    let differs = octets.iter().zip(&content).position(|(is, was)| is != was);
    assert_eq!((octets.len(), differs), (content.len(), None));
    assert_eq!(over(&world, "clean"), Some(5));
}

/// What SOCKS answers, and the connection.
fn socks(world: &World, host: &str, port: u16) -> (u8, TcpStream) {
    let mut stream = connected(world);
    let length = u8::try_from(host.len()).expect("a name");
    let address = host.parse::<IpAddr>();
    let host = match &address {
        Ok(IpAddr::V4(v4)) => [&[1][..], &v4.octets()].concat(),
        Ok(IpAddr::V6(v6)) => [&[4][..], &v6.octets()].concat(),
        Err(_) => [&[3, length], host.as_bytes()].concat(),
    };
    stream.write_all(&[&[5, 1, 0, 5, 1, 0], &host[..], &port.to_be_bytes()].concat()).expect("sent");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!((&answer[..3], &answer[4..]), (&[5, 0, 5][..], &[0, 1, 0, 0, 0, 0, 0, 0][..]));
    (answer[3], stream)
}

fn connected(world: &World) -> TcpStream {
    let at: SocketAddr = PROXY.parse().expect("an address");
    let stream = world.places[A].within(move || TcpStream::connect(at)).expect("in its place").expect("connected");
    stream.set_read_timeout(Some(TIMEOUT)).expect("set");
    stream
}

/// What HTTP answers, to the end.
fn http(world: &World, head: &str) -> String {
    let mut stream = connected(world);
    stream.write_all(head.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn what_is_not_in_the_overlay_is_refused_by_the_code_of_the_protocol_and_nothing_leaves_in_clear() {
    let test =
        "gateway::proxy::what_is_not_in_the_overlay_is_refused_by_the_code_of_the_protocol_and_nothing_leaves_in_clear";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let mut world = World::start("gateway-proxy-refusals");
    start(&mut world);
    // TCP, or a question for a name, to another machine: all that is carried is UDP at other ports.
    let is_clear = |frame: &[u8]| {
        let is_ip = frame.len() > 38 && frame[12..14] == [8, 0] && frame[26] != 127;
        is_ip && (frame[23] == 6 || frame[23] == 17 && frame[36..38] == [0, 53])
    };
    let capture = Capture::start(&world.places[A], is_clear).expect("a packet socket");
    for (host, port, code) in [
        ("example.org", 80, 2),
        ("localhost", 80, 2),
        ("127.0.0.1", 80, 2),
        ("192.0.2.2", 22, 2),
        ("203.0.113.1", 22, 2),
        ("224.0.0.1", 22, 2),
        ("::1", 22, 2),
        ("10.0.1.1", 22, 2),
        ("198.18.0.99", 22, 2),
        ("a.demo", 22, 2),
        ("fast.a.demo", 22, 2),
        ("fast.nobody.demo", 80, 4),
        ("slow.b.demo", 80, 4),
        ("x.fast.b.demo", 80, 4),
        ("fast.b.demo", 81, 5),
        ("fd00:2::1", 81, 5),
    ] {
        assert_eq!(socks(&world, host, port).0, code, "{host}:{port}");
    }
    for (head, status, sentence) in [
        ("GET http://example.org/a HTTP/1.1\r\n\r\n", "403", "example.org is not in the overlay"),
        ("CONNECT 10.0.1.1:22 HTTP/1.1\r\n\r\n", "403", "10.0.1.1 is no other member's address"),
        ("GET http://a.demo/ HTTP/1.1\r\n\r\n", "403", "a.demo is this node"),
        ("CONNECT fast.nobody.demo:80 HTTP/1.1\r\n\r\n", "502", "no member that is called so"),
        ("CONNECT fast.b.demo:81 HTTP/1.1\r\n\r\n", "502", "fast.b.demo:81 refused the connection"),
        ("GET / HTTP/1.1\r\nHost: 127.0.0.1:1080\r\n\r\n", "400", "this is a proxy"),
        ("POST http://fast.b.demo/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "411", "Content-Length"),
    ] {
        let answer = http(&world, head);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(sentence), "{head}: {answer}");
    }
    let shown = proxy(&world);
    assert_eq!((&shown["opened"], &shown["refused"], &shown["open"]), (&json!(0), &json!(23), &json!(0)), "{shown}");
    assert!(world.log(A).contains("example.org is not in the overlay"), "{}", world.log(A));
    // No path is left.
    for node in [5, 2] {
        let arguments = ["path", "avoid", &identity(node), "--config", "proxy/a.toml"];
        let output = world.run(A, env!("CARGO_BIN_EXE_wayleave"), &arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    eventually("it is decided", || world.gateways[0].status()["avoided"] == 2);
    assert_eq!(socks(&world, "fast.b.demo", 80).0, 3);
    let answer = http(&world, "GET http://fast.b.demo/ HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("`wayleave why fast.b.demo` says more"), "{answer}");
    let why = text(&world.gateways[0].ask(&["why", "fast.b.demo"]).stdout);
    assert!(why.contains("path avoid"), "{why}");
    assert_eq!(capture.frames().len(), 0, "nothing leaves in clear");
    for at in ["0.0.0.0:1080", "[::]:1080"] {
        let arguments = ["run", "gateway", "--proxy", at, "--config", "b.toml"];
        let output = world.run(A, env!("CARGO_BIN_EXE_wayleave"), &arguments);
        assert!(!output.status.success() && text(&output.stderr).contains("proxy_remote"), "{}", text(&output.stderr));
    }
}

/// An association for datagrams: the connection on which it hangs, the application's socket, and where its datagrams are taken.
struct Association {
    _stream: TcpStream,
    socket: UdpSocket,
    at: SocketAddr,
}

fn socket(world: &World) -> UdpSocket {
    let socket = world.places[A].within(|| UdpSocket::bind("127.0.0.1:0")).expect("in its place").expect("a port");
    socket.set_read_timeout(Some(TIMEOUT)).expect("set");
    socket
}

/// Asks for an association; the application says from which port it sends, or 0.
fn associate(world: &World, says_port: bool) -> Association {
    let (mut stream, socket) = (connected(world), socket(world));
    let port = if says_port { socket.local_addr().expect("an address").port() } else { 0 };
    stream.write_all(&[&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0][..], &port.to_be_bytes()].concat()).expect("sent");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer");
    let [5, 0, 5, 0, 0, 1, a, b, c, d, high, low] = answer else { panic!("{answer:?}") };
    let at = SocketAddr::from(([a, b, c, d], u16::from_be_bytes([high, low])));
    assert_eq!(at.ip().to_string(), "127.0.0.1");
    Association { _stream: stream, socket, at }
}

/// The kind of an address and the address, as SOCKS has them.
fn form(host: &str) -> Vec<u8> {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(v4)) => [&[1][..], &v4.octets()].concat(),
        Ok(IpAddr::V6(v6)) => [&[4][..], &v6.octets()].concat(),
        Err(_) => [&[3, u8::try_from(host.len()).expect("a name")], host.as_bytes()].concat(),
    }
}

impl Association {
    fn send(&self, fragment: u8, host: &str, port: u16, payload: &[u8]) {
        let octets = [&[0, 0, fragment][..], &form(host), &port.to_be_bytes(), payload].concat();
        self.socket.send_to(&octets, self.at).expect("sent");
    }

    /// The payload of the next answer, which says that it is from there.
    fn receive(&self, host: &str, port: u16) -> Vec<u8> {
        let mut octets = vec![0; 65_535];
        let (length, from) = self.socket.recv_from(&mut octets).expect("an answer");
        assert_eq!(from, self.at);
        let header = [&[0, 0, 0][..], &form(host), &port.to_be_bytes()].concat();
        let payload = octets[..length].strip_prefix(&header[..]);
        payload.unwrap_or_else(|| panic!("{host}: {}", octets[..length].escape_ascii())).to_vec()
    }
}

/// Sends back what comes, behind the address that it came from.
fn echo(world: &World, at: &str) {
    let socket = world.places[B].within(|| UdpSocket::bind(at)).expect("in its place").expect("an address");
    std::thread::spawn(move || {
        let mut octets = vec![0; 65_535];
        while let Ok((length, from)) = socket.recv_from(&mut octets) {
            let answer = [from.ip().to_string().as_bytes(), b" ", &octets[..length]].concat();
            let _ = socket.send_to(&answer, from); // who asks waits for it
        }
    });
}

#[test]
fn datagrams_go_to_members_by_socks_and_answers_say_where_they_are_from_as_the_application_did() {
    let test =
        "gateway::proxy::datagrams_go_to_members_by_socks_and_answers_say_where_they_are_from_as_the_application_did";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let mut world = World::start("gateway-proxy-datagrams");
    start(&mut world);
    ["10.0.2.1:7", "[fd00:2::1]:7"].iter().for_each(|at| echo(&world, at));
    // A name and an address of one node cannot be told apart at one port of each end: each has an association of its own.
    for (host, own) in [("fast.b.demo", "10.0.1.1"), ("10.0.2.1", "10.0.1.1"), ("fd00:2::1", "fd00:1::1")] {
        let association = associate(&world, true);
        for number in 0..10 {
            let payload = page(1 << number);
            association.send(0, host, 7, &payload);
            assert_eq!(association.receive(host, 7), [own.as_bytes(), b" ", &payload].concat(), "{host} {number}");
        }
    }
    eventually("they end with their connections", || proxy(&world)["datagrams"]["open"] == 0);
    let association = associate(&world, true);
    // A question for a name, to a server in the realm.
    let server = world.places[B].within(|| UdpSocket::bind("10.0.2.1:53")).expect("in its place").expect("bound");
    let mut question = Message::query();
    question.add_query(Query::query("example.org.".parse().expect("a name"), RecordType::A));
    association.send(0, "clean.b.demo", 53, &question.to_vec().expect("encoded"));
    let mut octets = [0; 1_500];
    let (length, from) = server.recv_from(&mut octets).expect("a question");
    let asked = Message::from_vec(&octets[..length]).expect("decodes");
    let mut answer = Message::response(asked.metadata.id, asked.metadata.op_code);
    answer.add_query(asked.queries[0].clone());
    answer.metadata.response_code = ResponseCode::NXDomain;
    server.send_to(&answer.to_vec().expect("encoded"), from).expect("sent");
    let answer = Message::from_vec(&association.receive("clean.b.demo", 53)).expect("decodes");
    assert_eq!((answer.metadata.id, answer.metadata.response_code), (question.metadata.id, ResponseCode::NXDomain));
    // What goes nowhere: the last one, which does, comes after it.
    let stranger = socket(&world);
    let header = [&[0, 0, 0][..], &form("10.0.2.1"), &7u16.to_be_bytes(), b"a stranger's"].concat();
    stranger.send_to(&header, association.at).expect("sent");
    association.send(1, "10.0.2.1", 7, b"a fragment");
    association.socket.send_to(&[0, 0, 0, 9], association.at).expect("sent");
    for host in ["203.0.113.1", "example.org", "10.0.1.1", "127.0.0.1"] {
        association.send(0, host, 7, b"elsewhere");
    }
    association.send(0, "10.0.2.1", 7, &page(20_000));
    association.send(0, "10.0.2.1", 7, b"the last");
    assert_eq!(association.receive("10.0.2.1", 7), b"10.0.1.1 the last");
    let shown = || proxy(&world)["datagrams"].clone();
    let dropped = shown()["dropped"].clone();
    let counts = ["stranger", "fragment", "malformed", "refused", "too-long"].map(|why| dropped[why].as_u64());
    assert_eq!(counts, [1, 1, 1, 4, 1].map(Some), "{}", shown());
    assert_eq!((&shown()["open"], &shown()["sent"]), (&json!(1), &json!(32)), "{}", shown());
    // One that does not say its port is its own with what it sends first. Each ends with its connection, and is asked for no more.
    let other = associate(&world, false);
    other.send(0, "fd00:2::1", 7, b"of another");
    assert_eq!(other.receive("fd00:2::1", 7), b"fd00:1::1 of another");
    stranger.send_to(&header, other.at).expect("sent");
    eventually("it is dropped", || shown()["dropped"]["stranger"] == 2);
    assert_eq!((&shown()["open"], &shown()["opened"]), (&json!(2), &json!(5)), "{}", shown());
    drop((association, other));
    eventually("they end", || shown()["open"] == 0);
}

#[test]
fn an_end_and_a_reset_of_either_side_reach_the_other() {
    let test = "gateway::proxy::an_end_and_a_reset_of_either_side_reach_the_other";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let mut world = World::start("gateway-proxy-ends");
    start(&mut world);
    let server = world.places[B].within(|| TcpListener::bind("10.0.2.1:7")).expect("in its place").expect("bound");
    let begin = |world: &World| {
        let (code, client) = socks(world, "clean.b.demo", 7);
        assert_eq!(code, 0);
        let (connection, from) = server.accept().expect("a connection");
        assert_eq!(from.ip().to_string(), "10.0.1.1", "the node's own inner address");
        connection.set_read_timeout(Some(TIMEOUT)).expect("set");
        (client, connection)
    };
    // One end has said all; the other one goes on.
    let (mut client, mut connection) = begin(&world);
    client.write_all(b"a question").expect("sent");
    client.shutdown(std::net::Shutdown::Write).expect("shut down");
    let mut question = String::new();
    connection.read_to_string(&mut question).expect("to its end");
    assert_eq!(question, "a question");
    let answer = page(1 << 20);
    let to_write = answer.clone();
    let writing = std::thread::spawn(move || connection.write_all(&to_write).map(|()| connection));
    let mut read = vec![0; answer.len()];
    client.read_exact(&mut read).expect("all of it");
    assert!(read == answer);
    drop(writing.join().expect("it ends").expect("written"));
    assert_eq!(client.read(&mut read).expect("the end"), 0);
    // Resets.
    let (mut client, connection) = begin(&world);
    reset(connection);
    assert_eq!(client.read(&mut [0; 9]).expect_err("reset").kind(), std::io::ErrorKind::ConnectionReset);
    let (client, mut connection) = begin(&world);
    reset(client);
    assert_eq!(connection.read(&mut [0; 9]).expect_err("reset").kind(), std::io::ErrorKind::ConnectionReset);
    eventually("they are closed", || proxy(&world)["open"] == 0);
    // Nobody gets in.
    let to: SocketAddr = "10.0.1.1:22".parse().expect("an address");
    let refused = world.places[B].within(move || TcpStream::connect(to)).expect("in its place");
    assert_eq!(refused.expect_err("refused").kind(), std::io::ErrorKind::ConnectionRefused);
}

/// Closes a connection by a reset.
fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("set");
}
