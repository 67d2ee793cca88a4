//! Applications that know nothing of an overlay, by name, over paths and consents from servers.
//!
//! ICC, applications: with paths and consents from servers: `curl` of 100 MiB in both directions at once, over IPv4 and
//! IPv6, `ssh` to an unmodified `sshd`, and on when a forwarder is killed, `git clone`, `iperf3`, a page with a script
//! in Chromium: SHA-256 right; forwarders' counters show the policy's path alone; a forwarder that is back serves
//! again.
//! ICC-09, by process: 1,280 octets of IPv6, and packets that are too long with "don't fragment", over a path of five
//! nodes: the first is split and passes; the others are refused to the application, and the length that it is told then
//! passes.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wayleave_crypto::hash::sha256;
use wayleave_lab::netns::{self, NetworkNamespace};
use wayleave_lab::process::Daemon;
use wayleave_lab::routers::{
    CHROMIUM, IPERF3, Installation, RouterPackage, SSHD, default_cache, locate_or_fetch_router,
};
use wayleave_runtime::identity::to_hex;

use super::world::{World, use_names};
use crate::common::{eventually, text};

/// An application's installation; where it cannot be had the test says so.
pub(super) fn fetched(what: &RouterPackage, test: &str) -> Option<Installation> {
    match locate_or_fetch_router(what, &default_cache(), &mut |_| ()) {
        Ok(found) => Some(found),
        Err(error) => {
            netns::skipped(&format!("{test} with {}: {error}", what.name));
            None
        }
    }
}

/// Whether this system has a program that is not fetched; where it has not the test says so.
pub(super) fn has(program: &str, test: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !is_there {
        netns::skipped(&format!("{test} with {program}, which this system lacks; scripts/setup installs it as root"));
    }
    is_there
}

pub(crate) fn page(octets: usize) -> Vec<u8> {
    (0..octets as u32 / 4).flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()).collect()
}

/// Reads a request; the head, and what of the body came with it.
fn request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut octets = Vec::new();
    let mut more = [0; 4096];
    loop {
        if let Some(end) = octets.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&octets[..end]).into_owned();
            return Some((head, octets.split_off(end + 4)));
        }
        let length = stream.read(&mut more).ok().filter(|length| *length > 0)?;
        octets.extend_from_slice(&more[..length]);
    }
}

/// A server: GET gives the page, its first fifth as `/part`, files below `folder`; PUT answers with the SHA-256 of what came.
pub(crate) fn serve(place: &NetworkNamespace, at: &[&str], page: &[u8], folder: &Path) {
    for at in at {
        let listener = place.within(|| TcpListener::bind(at)).expect("in its place").expect("an address");
        let (page, folder) = (page.to_vec(), folder.to_owned());
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (page, folder) = (page.clone(), folder.clone());
                std::thread::spawn(move || answer(&mut stream, &page, &folder));
            }
        });
    }
}

fn answer(stream: &mut TcpStream, page: &[u8], folder: &Path) -> Option<()> {
    let (head, mut body) = request(stream)?;
    let mut words = head.split_whitespace();
    let (method, path) = (words.next()?, words.next()?);
    let field = |name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(':'));
        lines.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned()).next()
    };
    let mut status = "200 OK";
    let content = if method == "PUT" {
        let length: usize = field("content-length")?.parse().ok()?;
        if field("expect").is_some() {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
        }
        let have = body.len();
        body.resize(length, 0);
        stream.read_exact(&mut body[have..]).ok()?;
        to_hex(&sha256(&body)).into_bytes()
    } else {
        match path.split('?').next()? {
            "/page" => page.to_vec(),
            "/part" => page[..page.len() / 5].to_vec(),
            path => fs::read(folder.join(path.trim_start_matches('/'))).unwrap_or_else(|_| {
                status = "404 Not Found";
                Vec::new()
            }),
        }
    };
    let kind = if path.ends_with(".html") { "text/html" } else { "application/octet-stream" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        content.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&content)).ok()
}

fn spawn_curl(world: &World, from: &str, arguments: &[&str]) -> Child {
    let mut command = world.command(from, "curl");
    command.args(["-sS", "--max-time", "180"]).args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("curl runs")
}

fn ended(child: Child, world: &World) -> Vec<u8> {
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}\n{}", text(&output.stderr), world.logs());
    output.stdout
}

/// 100 MB in both directions at once, each over a family of its own; then the other way round.
fn curl(world: &World, page: &[u8]) {
    let upload = world.path("upload");
    fs::write(&upload, page).expect("written");
    fs::write(world.path("upload-part"), &page[..page.len() / 5]).expect("written");
    let expected = |page: &[u8]| to_hex(&sha256(page));
    for (part, down, up, octets) in [("page", "-4", "-6", page.len()), ("part", "-6", "-4", page.len() / 5)] {
        let before = ["w1", "w2", "w3", "e"].map(|node| world.forwarded(node));
        let begin = Instant::now();
        let file = world.path(part).display().to_string();
        let url = format!("http://clean.b.overlay:8080/{part}");
        let down = spawn_curl(world, "a", &[down, "-o", &file, &url]);
        let upload = if part == "page" { "upload" } else { "upload-part" };
        let up = spawn_curl(world, "a", &[up, "-T", upload, "http://clean.b.overlay:8080/up"]);
        let hash = ended(up, world);
        ended(down, world);
        assert_eq!(text(&hash), expected(&page[..octets]), "up");
        assert_eq!(to_hex(&sha256(&fs::read(file).expect("the page"))), expected(&page[..octets]), "down");
        let rate = 16.0 * octets as f64 / begin.elapsed().as_secs_f64() / 1e6;
        eprintln!("curl of {octets} octets both ways at once: {rate:.0} Mb/s together");
        let after = ["w1", "w2", "w3", "e"].map(|node| world.forwarded(node));
        let passed: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        assert!(passed[..3].iter().all(|count| *count > 10_000), "clean.b goes over w1, w2 and w3: {passed:?}");
        // Probes and their answers cross e; how many depends on how long this machine takes.
        assert!(passed[3] < passed[0] / 100, "and not over e: {passed:?}");
    }
    // On a machine that does not run a node for a second its path looks dead, and is gone back to once it has proven itself.
    let goes_over_e = (0..3).any(|_| {
        eventually("fast.b has the shorter path", || {
            let why = world.nodes["a"].json(&["why", "fast.b.overlay"]);
            why["active"]["nodes"].as_array().is_some_and(|nodes| nodes.len() == 3) && why["active"]["dead"] == false
        });
        let before = world.forwarded("e");
        ended(spawn_curl(world, "a", &["-o", "fast", "http://fast.b.overlay:8080/part"]), world);
        let came = fs::read(world.path("fast")).expect("the page");
        assert_eq!(to_hex(&sha256(&came)), expected(&page[..page.len() / 5]));
        world.forwarded("e") - before > 5_000
    });
    assert!(goes_over_e, "fast.b goes over e");
    for gateway in ["a", "b"] {
        eventually(&format!("nothing is wrong at {gateway}: {}", world.statuses()), || {
            let status = world.nodes[gateway].show("status", &[]);
            assert_eq!(status["dropped"]["inner-source"], 0, "{status}");
            status["problems"] == json!([])
        });
    }
}

/// Names that do not exist.
const NOTHINGS: [&str; 4] = ["clean.c.overlay", "none.b.overlay", "c.overlay", "example.org"];

/// What the operator of a sees of it.
fn commands(world: &World, has_curl: bool) {
    let a = &world.nodes["a"];
    let names = a.json(&["show", "names"]);
    assert_eq!(names["names"][0]["name"], "clean.b.overlay", "{names}");
    // On a machine that does not run a node for a second its path looks dead for a while.
    eventually(&format!("clean.b has the longest path: {}", world.logs()), || {
        let why = a.json(&["why", "clean.b.overlay"]);
        let trace = text(&a.ask(&["path", "trace", "clean.b.overlay"]).stdout);
        let list = text(&a.ask(&["path", "list"]).stdout);
        why["state"] == "ready"
            && why["active"]["nodes"].as_array().map(Vec::len) == Some(5)
            && trace.lines().eq(["a", "w1", "w2", "w3", "b"])
            && list.contains("active of clean")
    });
    eventually(&format!("it answers: {}", world.logs()), || {
        let ping = a.ask(&["ping", "pinned.b.overlay"]);
        ping.status.success() && text(&ping.stdout).contains("ms")
    });
    let nothings = if has_curl { &NOTHINGS[..] } else { &[] };
    for nothing in nothings {
        let output = world.run("a", "curl", &["-sS", "--max-time", "5", &format!("http://{nothing}:8080/")]);
        assert_eq!(output.status.code(), Some(6), "{nothing}: no such host");
    }
}

/// ICC-09: what IPv6 lets nobody refuse passes a path of five nodes; what is too long is refused with the length that fits.
fn lengths(world: &World) {
    let behind = world.places["b"].within(|| UdpSocket::bind("[::]:9")).expect("in its place").expect("b's end");
    behind.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
    // What was sent before may still come.
    let received = |length: usize| std::iter::from_fn(|| behind.recv(&mut [0; 2_000]).ok()).any(|have| have == length);
    let open = |any: &'static str, to: &'static str| {
        let socket = world.places["a"].within(|| UdpSocket::bind(any).and_then(|s| s.connect(to).map(|()| s)));
        socket.expect("in its place").expect("a socket")
    };
    let names = world.nodes["a"].json(&["show", "names"]);
    let clean = names["names"].as_array().into_iter().flatten().find(|row| row["name"] == "clean.b.overlay");
    let address = |family: &str| clean.expect("in use")[family].as_str().expect("an address").to_owned();
    let (v4, v6) = (format!("{}:9", address("ipv4")), format!("[{}]:9", address("ipv6")));
    let (v4, v6) = (open("0.0.0.0:0", v4.leak()), open("[::]:0", v6.leak()));
    // A packet of 1,280 octets: split over two. Of a few one arrives on any machine.
    let passes = |socket: &UdpSocket, octets: &[u8]| {
        (0..5).any(|_| {
            // The first tells what came back before.
            let _ = socket.send(octets).or_else(|_| socket.send(octets)).expect("sent");
            received(octets.len())
        })
    };
    assert!(passes(&v6, &[6; 1_232]), "1,280 octets of IPv6");
    for (family, socket, address, head) in [("-4", &v4, address("ipv4"), 28), ("-6", &v6, address("ipv6"), 48)] {
        // What comes back shortens the path's MTU, as the system keeps it.
        let mut mtu = 0;
        eventually("the system is told of a length", || {
            let _ = socket.send(&[4; 1_440]);
            std::thread::sleep(Duration::from_millis(50));
            let route = text(&world.run("a", "ip", &[family, "route", "get", &address]).stdout);
            let mut words = route.split_whitespace().skip_while(|word| *word != "mtu");
            mtu = words.nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
            mtu > 0
        });
        eprintln!("{mtu} octets of a packet fit a path of five nodes ({family})");
        assert!((1_000..1_468).contains(&mtu), "{mtu}");
        // Fragments of what was too long do not pass either.
        while behind.recv(&mut [0; 2_000]).is_ok_and(|length| length != mtu - head) {}
        assert!(passes(socket, &vec![4; mtu - head]), "{mtu}");
    }
}

fn git(world: &World, arguments: &[&str]) {
    let mut command = world.command("a", "git");
    command.args(["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "safe.directory=*"]).args(arguments);
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_TERMINAL_PROMPT", "0");
    let output = command.output().expect("git runs");
    assert!(output.status.success(), "git {arguments:?}: {}\n{}", text(&output.stderr), world.logs());
}

/// A repository with a few hundred kilobytes, cloned over HTTP, and over ssh if there is a server.
fn git_clone(world: &World, has_ssh: bool) {
    git(world, &["init", "-q", "work"]);
    for number in 0..20u8 {
        let noise: Vec<u8> = (0..20_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8 ^ number).collect();
        fs::write(world.path(&format!("work/{number}")), noise).expect("written");
    }
    git(world, &["-C", "work", "add", "."]);
    git(world, &["-C", "work", "commit", "-q", "-m", "one"]);
    git(world, &["clone", "-q", "--bare", "work", "site/repository.git"]);
    git(world, &["-C", "site/repository.git", "update-server-info"]);
    git(world, &["clone", "-q", "http://clean.b.overlay:8080/repository.git", "cloned-http"]);
    let mut clones = vec!["cloned-http"];
    if has_ssh {
        let bare = world.path("site/repository.git").display().to_string();
        let ssh = format!("core.sshCommand=ssh {}", SSH.join(" "));
        git(world, &["-c", &ssh, "clone", "-q", &format!("ssh://root@clean.b.overlay{bare}"), "cloned-ssh"]);
        clones.push("cloned-ssh");
    }
    for cloned in clones {
        for number in 0..20u8 {
            let read = |folder: &str| fs::read(world.path(&format!("{folder}/{number}"))).expect("a file");
            assert_eq!(read("work"), read(cloned), "{cloned}/{number}");
        }
    }
}

/// A page whose script loads another file and writes what is in it into the page.
fn browser(world: &World, test: &str) {
    let Some(chromium) = fetched(&CHROMIUM, test) else { return };
    fs::write(
        world.path("site/index.html"),
        "<html><body><p id=x>nothing</p><script>fetch('/number').then(r => r.text()).then(t => { \
         document.getElementById('x').textContent = 'sum ' + (Number(t) + 2) })</script></body></html>",
    )
    .expect("written");
    fs::write(world.path("site/number"), "40").expect("written");
    let mut command = world.command("a", chromium.program("chromium-headless-shell"));
    chromium.prepare(&mut command);
    // Its own sandbox wants namespaces inside of those of the test.
    let profile = format!("--user-data-dir={}", world.path("browser").display());
    command.args(["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", &profile, "--virtual-time-budget=5000"]);
    let output = command.args(["--dump-dom", "http://clean.b.overlay:8080/index.html"]).output().expect("it runs");
    let shown = text(&output.stdout);
    assert!(shown.contains("sum 42"), "{shown}\n{}\n{}", text(&output.stderr), world.logs());
}

fn iperf3(world: &World, test: &str) {
    let Some(iperf) = fetched(&IPERF3, test) else { return };
    let mut command = world.command("b", iperf.program("iperf3"));
    iperf.prepare(&mut command);
    let _server = Daemon::start(command.args(["-s"]), &world.path("iperf.log")).expect("started");
    for more in [&[][..], &["-R"], &["-6"]] {
        let run = || {
            let mut command = world.command("a", iperf.program("iperf3"));
            iperf.prepare(&mut command);
            let output = command.args(["-c", "clean.b.overlay", "-t", "1", "-J"]).args(more).output();
            let result: Value = serde_json::from_slice(&output.expect("iperf3 runs").stdout).expect("JSON");
            (result["end"]["sum_received"]["bits_per_second"].as_f64().unwrap_or(0.0) / 1e6, result)
        };
        let (mut rate, mut result) = run();
        // Its server may not listen yet.
        for _ in 0..20 {
            if rate > 0.0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
            (rate, result) = run();
        }
        eprintln!("iperf3 {more:?}: {rate:.0} Mb/s");
        assert!(rate > 0.0, "{result}");
    }
}

pub(super) const SSH: [&str; 10] = [
    "-i",
    "user",
    "-o",
    "StrictHostKeyChecking=no",
    "-o",
    "UserKnownHostsFile=/dev/null",
    "-o",
    "LogLevel=ERROR",
    "-o",
    "ConnectTimeout=10",
];

/// A real sshd at `place`, unmodified; its keys and the user's are in `folder`.
pub(super) fn sshd(place: &NetworkNamespace, folder: &Path, test: &str) -> Option<Daemon> {
    let sshd = fetched(&SSHD, test)?;
    // The server wants a user to be harmless as; inside there is only one.
    let passwd = fs::read_to_string("/etc/passwd").expect("users");
    fs::write("/etc/passwd", passwd + "sshd:x:0:0::/run/sshd:/bin/false\n").expect("written");
    fs::create_dir_all("/run/sshd").expect("a folder");
    for key in ["host", "user"] {
        let made =
            Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(key)).status();
        assert!(made.expect("ssh-keygen runs").success());
    }
    fs::copy(folder.join("user.pub"), "/run/sshd/authorized").expect("copied");
    fs::set_permissions("/run/sshd/authorized", fs::Permissions::from_mode(0o600)).expect("mode");
    fs::write(
        folder.join("sshd_config"),
        format!(
            "HostKey {}/host\nAuthorizedKeysFile /run/sshd/authorized\nPermitRootLogin yes\nUsePAM no\nStrictModes no\n\
             PidFile none\nPasswordAuthentication no\nListenAddress 0.0.0.0\nListenAddress ::\nUseDNS no\n",
            folder.display()
        ),
    )
    .expect("written");
    let mut command = place.command(sshd.program("sshd"));
    sshd.prepare(&mut command);
    command.args(["-D", "-e", "-f"]).arg(folder.join("sshd_config")).current_dir(folder);
    Some(Daemon::start(&mut command, &folder.join("sshd.log")).expect("started"))
}

/// Sessions by both families and policies; one outlives a forwarder, which serves again once it is back.
fn ssh(world: &mut World, server: &Daemon) {
    let run = |world: &World, more: &[&str]| {
        let output = world.run("a", "ssh", &[&SSH[..], more].concat());
        assert!(output.status.success(), "{}\n{}\n{}", text(&output.stderr), server.log_tail(20), world.logs());
        text(&output.stdout)
    };
    assert_eq!(run(world, &["-4", "root@clean.b.overlay", "echo $SSH_CONNECTION"]).split(' ').next(), Some("10.0.1.1"));
    // A session of four seconds; the forwarder in the middle dies in the first.
    let (east, before, begin) = (world.forwarded("e"), world.forwarded("w3"), Instant::now());
    let mut command = world.command("a", "ssh");
    command.args(SSH).args(["root@clean.b.overlay", "for n in $(seq 40); do echo $n; sleep 0.1; done"]);
    let child = command.stdout(Stdio::piped()).spawn().expect("ssh runs");
    std::thread::sleep(Duration::from_millis(1_000));
    world.node("w2").kill();
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", world.logs());
    let lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    assert_eq!(lines, (1..=40).map(|n: u32| n.to_string()).collect::<Vec<_>>());
    assert!(world.forwarded("w3") > before);
    // Probes of the policy that may use it, and answers to probes of both, cross the east; the session's 40 lines with all that
    // acknowledges them do not.
    let (crossed, longer) = (world.forwarded("e") - east, begin.elapsed().as_secs().saturating_sub(5));
    assert!(crossed < 120 + 20 * longer, "{crossed} packets crossed the east: the spare path keeps the policy");
    let status = world.nodes["a"].show("status", &[]);
    assert!(status["failovers"].as_u64() >= Some(1) && status["dead"].as_u64() >= Some(1), "{status}");
    assert_eq!(run(world, &["-6", "root@fast.b.overlay", "echo $SSH_CONNECTION"]).split(' ').next(), Some("fd00:1::1"));
    // Back again, it learns the paths from the packets themselves. It refuses what was stamped before its start: a second.
    world.node("w2").resume();
    eventually("the restarted hop serves again", || {
        world.nodes["a"].ask(&["ping", "pinned.b.overlay"]).status.success()
    });
}

#[test]
fn unmodified_applications_work_by_name_over_paths_from_servers() {
    let test = "overlay::applications::unmodified_applications_work_by_name_over_paths_from_servers";
    if netns::inside().is_none() {
        // Inside there is no way to a mirror.
        for package in [SSHD, IPERF3, CHROMIUM] {
            let _ = fetched(&package, test);
        }
    }
    let [has_curl, has_git, has_ssh] = ["curl", "git", "ssh"].map(|program| has(program, test));
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let mut world = World::new("applications").settled();
    use_names(&world.network);
    fs::create_dir(world.path("site")).expect("a folder");
    let page = page(100 << 20);
    serve(&world.places["b"], &["10.0.2.1:8080", "[fd00:2::1]:8080"], &page, &world.path("site"));
    let step = |what: &str, begin: Instant| eprintln!("{what}: {:?}", begin.elapsed());
    let begin = Instant::now();
    if has_curl {
        curl(&world, &page);
    }
    step("curl", begin);
    commands(&world, has_curl);
    lengths(&world);
    let begin = Instant::now();
    iperf3(&world, test);
    step("iperf3", begin);
    let begin = Instant::now();
    let server = if has_ssh { sshd(&world.places["b"], &world.realm.folder.0, test) } else { None };
    if has_git {
        git_clone(&world, server.is_some());
    }
    step("git", begin);
    let begin = Instant::now();
    browser(&world, test);
    step("browser", begin);
    if let Some(server) = &server {
        let begin = Instant::now();
        ssh(&mut world, server);
        step("ssh", begin);
    }
}
