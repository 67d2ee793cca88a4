//! What members may begin to send, by the rules of a policy.
//!
//! ICC, inner packets: a page and no ssh; refused connections are refused at once; what this side began is answered; a reload applies other
//! rules, and one whose own tests fail changes nothing.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::process::Signal;
use wayleave_lab::netns;

use super::{A, B, Options, World, text};
use crate::common::eventually;

const POLICY: &str = "[[rule]]\nname = \"web\"\nallow = true\nsenders = [\"a\"]\ninner = [\"tcp/80\"]\n\
                      [[test]]\nname = \"the page\"\nsender = \"a\"\ninner = \"tcp/80\"\nallow = true\n\
                      [[test]]\nname = \"no ssh\"\nsender = \"a\"\ninner = \"tcp/22\"\nallow = false\n";

#[test]
fn a_member_reaches_the_ports_that_the_policy_names() {
    if netns::enter_for_test("gateway::admitted::a_member_reaches_the_ports_that_the_policy_names").is_none() {
        return;
    }
    let options = Options { lines: ["", "consent_policy = \"policy.toml\"\n"], ..Options::default() };
    let world = World::start_with("gateway-admitted", options, |world| {
        world.folder.write("policy.toml", POLICY);
    });
    for (place, port) in [(B, 80), (B, 22), (A, 9)] {
        let address = if place == A { "10.0.1.1" } else { "10.0.2.1" };
        let listener =
            world.places[place].within(|| TcpListener::bind((address, port))).expect("in its place").expect("bound");
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = (&stream).write_all(b"served");
            }
        });
    }
    let name = world.address_of("clean.b.demo.");
    let ask = |place: usize, to: SocketAddr| {
        let ask = || {
            let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(20))?;
            let mut said = String::new();
            stream.read_to_string(&mut said).map(|_| said)
        };
        world.places[place].within(ask).expect("in its place").map_err(|error| error.kind())
    };
    eventually("the page is served", || ask(A, (name, 80).into()).is_ok_and(|said| said == "served"));
    // At once, and not after TCP has given up.
    assert_eq!(ask(A, (name, 22).into()), Err(ErrorKind::ConnectionRefused));
    assert_eq!(ask(A, ([10, 0, 2, 1], 22).into()), Err(ErrorKind::ConnectionRefused));
    assert!(world.gateways[B].dropped("inner-refused") >= 2);
    // b began this one.
    assert_eq!(ask(B, ([10, 0, 1, 1], 9).into()).as_deref(), Ok("served"));
    let shown = text(&world.gateways[B].ask(&["show", "peers"]).stdout);
    assert!(shown.contains("may begin here: tcp/80"), "{shown}");

    // A policy that its own tests refute is not taken, and one that holds is.
    world.folder.write("policy.toml", &POLICY.replace("tcp/80\"]", "tcp/22\"]"));
    world.gateways[B].daemon.signal(Signal::HUP).expect("sent");
    eventually("it says why", || world.log(B).contains("test \"the page\": refused"));
    assert!(ask(A, (name, 80).into()).is_ok());
    world.folder.write("policy.toml", "[[rule]]\nname = \"ssh\"\nallow = true\ninner = [\"tcp/22\"]\n");
    world.gateways[B].daemon.signal(Signal::HUP).expect("sent");
    eventually("the other one is reached", || ask(A, (name, 22).into()).is_ok());
    assert_eq!(ask(A, (name, 80).into()), Err(ErrorKind::ConnectionRefused));
}
