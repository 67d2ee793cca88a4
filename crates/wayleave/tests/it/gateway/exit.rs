//! A member as an exit to the Internet, and another that uses it, on a machine with a strict reverse path filter whose neighbours are behind
//! its default route.
//!
//! ICC, exit: members reach the Internet by b's address, and each other as before; nobody reaches b's own networks or its other addresses, and
//! b forwards for nobody else. Settings and packet filter are as before at the end, and at the next start after a kill.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use wayleave_lab::netns::{self, NetworkNamespace};

use super::{A, B, Options, World, text};
use crate::common::eventually;

pub(crate) const WEB: &str = "203.0.113.80:80";
pub(crate) const WEB_V6: &str = "[2001:db8:53::80]:80";
const OPTIONS: Options =
    Options { grants: &["0.0.0.0/0", "::/0"], lines: ["accept = [\"0.0.0.0/0\", \"::/0\"]\n", "exit = true\n"] };

pub(crate) fn run(place: &NetworkNamespace, line: &str) -> String {
    let mut words = line.split(' ');
    let output = place.command(words.next().expect("a program")).args(words).output().expect("it runs");
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Who connects is told from which address.
pub(crate) fn serve(place: &NetworkNamespace, at: &str) {
    let listener = place.within(|| TcpListener::bind(at)).expect("in its place").expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let from = stream.peer_addr().map(|from| from.ip().to_canonical().to_string()).unwrap_or_default();
            let _ = (&stream).write_all(from.as_bytes());
        }
    });
}

/// How a host at `place` is seen by who serves there.
pub(crate) fn seen(place: &NetworkNamespace, to: &str) -> std::io::Result<String> {
    let to: SocketAddr = to.parse().expect("an address");
    place.within(|| {
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(3))?;
        let mut seen = String::new();
        stream.read_to_string(&mut seen)?;
        Ok(seen)
    })?
}

pub(crate) fn settings(place: &NetworkNamespace) -> [String; 5] {
    [
        "cat /proc/sys/net/ipv4/conf/all/accept_redirects",
        "cat /proc/sys/net/ipv4/ip_forward",
        "cat /proc/sys/net/ipv6/conf/all/forwarding",
        "cat /proc/sys/net/ipv6/conf/eth0/accept_ra",
        "nft list ruleset",
    ]
    .map(|line| run(place, line))
}

#[test]
fn members_reach_the_internet_by_an_exit_and_nothing_else_of_it() {
    if netns::enter_for_test("gateway::exit::members_reach_the_internet_by_an_exit_and_nothing_else_of_it").is_none() {
        return;
    }
    let mut stations = Vec::new();
    let mut world = World::start_with("gateway-exit", OPTIONS, |world| {
        let internet = ["203.0.113.80/24", "2001:db8:53::80/64"].map(str::to_owned);
        stations.push(world._network.attach("n-net", &internet).expect("a namespace"));
        let lan = ["192.168.7.9/24", "198.51.100.9/24"].map(str::to_owned);
        stations.push(world._network.attach("n-lan", &lan).expect("a namespace"));
        for address in ["192.168.7.2/24", "198.51.100.2/24"] {
            run(&world.places[B], &format!("ip addr add {address} dev eth0"));
        }
        // The Internet is behind the default route.
        for address in ["203.0.113.2/24", "2001:db8:53::2/64"] {
            run(&world.places[B], &format!("ip addr add {address} dev eth0 noprefixroute nodad"));
        }
        run(&world.places[B], "ip route add default dev eth0 src 203.0.113.2");
        run(&world.places[B], "ip -6 route add default dev eth0 src 2001:db8:53::2");
        run(&world.places[B], "sysctl -q -w net.ipv4.conf.all.accept_redirects=0");
        // a has no route to its neighbours but the default one, and its filter is strict.
        run(&world.places[A], "ip addr del 192.0.2.1/24 dev eth0");
        run(&world.places[A], "ip addr add 192.0.2.1/32 dev eth0");
        run(&world.places[A], "ip route add default dev eth0");
        run(&world.places[A], "sysctl -q -w net.ipv4.conf.all.rp_filter=1");
        run(&world.places[B], "sysctl -q -w net.ipv6.conf.eth0.accept_ra=1");
    });
    let (a, b) = (world.places[A].clone(), world.places[B].clone());
    let [internet, lan] = [&stations[0], &stations[1]];
    serve(internet, WEB);
    serve(internet, WEB_V6);
    for (place, at) in [(&b, "0.0.0.0:80"), (&b, "[::]:81"), (lan, "0.0.0.0:80"), (&a, "10.0.1.1:80")] {
        serve(place, at);
    }

    // The Internet, by the exit's address.
    eventually("the exit's address is seen", || seen(&a, WEB).is_ok_and(|from| from == "203.0.113.2"));
    eventually("that of IPv6 is", || seen(&a, WEB_V6).is_ok_and(|from| from == "2001:db8:53::2"));
    // Members as before, by their own addresses, and by name.
    assert_eq!(seen(&a, "10.0.2.1:80").expect("b's own"), "10.0.1.1");
    assert_eq!(seen(&b, "10.0.1.1:80").expect("a's own"), "10.0.2.1");
    let name = SocketAddr::new(world.address_of("clean.b.demo."), 80);
    assert_eq!(seen(&a, &name.to_string()).expect("by name"), "10.0.1.1");

    // Not the network behind b, nor any other address of b, and a is told so.
    for to in ["198.51.100.9:80", "198.51.100.2:80", "192.0.2.2:80", "203.0.113.2:80", "[2001:db8:53::2]:81"] {
        let error = seen(&a, to).expect_err(to);
        assert!(!matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{to}: {error}");
    }
    for to in ["192.168.7.9:80", "192.168.7.2:80", "168.63.129.16:80", "[2002:a00:1::1]:80", "[fd00:9::1]:80"] {
        assert!(seen(&a, to).is_err(), "{to}");
    }
    // Who is beside b on its network uses it neither to the members nor to the Internet.
    run(lan, "ip route add default via 192.168.7.2");
    assert!(seen(lan, "10.0.1.1:80").is_err());
    assert!(seen(lan, WEB).is_err());
    let answers =
        internet.within(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 9))).expect("in its place").expect("bound");
    answers.set_nonblocking(true).expect("set");
    let stray = |place: &NetworkNamespace| {
        let sent =
            place.within(|| UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b"x", "203.0.113.80:9")));
        sent.expect("in its place").is_ok()
    };
    assert!(stray(lan));
    assert!(stray(&a));
    eventually("a's arrives", || {
        let (_, from) = answers.recv_from(&mut [0; 9]).unwrap_or((0, ([0; 4], 0).into()));
        assert_ne!(from.ip(), IpAddr::from([192, 168, 7, 9]));
        from.ip() == IpAddr::from([203, 0, 113, 2])
    });

    let offered = world.gateways[A].json(&["show", "routes"]);
    let rows = offered["routes"].as_array().cloned().unwrap_or_default();
    let row = |prefix: &str| rows.iter().find(|row| row["prefix"] == prefix).cloned().expect(prefix);
    assert!(
        row("0.0.0.0/0")["accepted"] == true && row("10.0.2.0/24")["covered_by"] == serde_json::json!([]),
        "{offered}"
    );
    assert_eq!(offered["missing"], serde_json::json!([]));

    let during = settings(&b);
    assert_eq!(during[..4], ["0", "1", "1", "2"]);
    // Somebody's filter is loaded, which begins by flushing all there are.
    run(&b, "nft flush ruleset");
    let table = || run(&b, "nft list ruleset");
    eventually("the table is there again", || table().contains("masquerade"));
    eventually("the exit serves again", || seen(&a, WEB).is_ok_and(|from| from == "203.0.113.2"));
    assert!(seen(&a, "198.51.100.9:80").is_err());
    // A kill leaves them; the next life knows how they were before, and so does the one after, without `exit`.
    world.gateways[B].daemon.kill();
    assert_eq!(settings(&b)[..4], ["0", "1", "1", "2"]);
    world.gateways[B] = world.gateway(B);
    eventually("the exit serves again", || seen(&a, WEB).is_ok_and(|from| from == "203.0.113.2"));
    assert_eq!(settings(&b)[..4], during[..4]);
    world.gateways[B].daemon.kill();
    world.options.lines[B] = "";
    world.gateways[B] = world.gateway(B);
    assert_eq!(settings(&b), ["0", "0", "0", "1", ""]);
    assert!(seen(&a, WEB).is_err());
    // By a reload, both ways, and a stop.
    for (line, expected) in [("exit = true\n", "1"), ("exit = false\n", "0"), ("exit = true\n", "1")] {
        let path = world.folder.0.join("b.toml");
        let before = std::fs::read_to_string(&path).expect("read");
        let kept: Vec<&str> = before.lines().filter(|line| !line.starts_with("exit = ")).collect();
        let fresh = kept.join("\n").replace("[gateway]\n", &format!("[gateway]\n{line}"));
        std::fs::write(&path, fresh + "\n").expect("written");
        world.gateways[B].daemon.signal(rustix::process::Signal::HUP).expect("sent");
        eventually("it is reloaded", || run(&b, "cat /proc/sys/net/ipv4/ip_forward") == expected);
    }
    eventually("the exit serves again", || seen(&a, WEB).is_ok_and(|from| from == "203.0.113.2"));
    for gateway in &mut world.gateways {
        assert!(gateway.daemon.stop(Duration::from_secs(30)));
    }
    assert_eq!(settings(&b), ["0", "0", "0", "1", ""]);
    assert_eq!(run(&a, "nft list ruleset"), "");
    assert_eq!(run(&a, "cat /proc/sys/net/ipv4/conf/all/src_valid_mark"), "0");
}
