//! Every role, configured to run by itself on this machine.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use wayleave_lab::demo::exchange::DemoExchange;
use wayleave_lab::demo::layout::Layout;
use wayleave_lab::netns;

use crate::common::{Folder, eventually, free};
use crate::overlay::harness::Realm;
use crate::router::icing::{hex, secret};

pub(super) const ROLES: [&str; 11] =
    ["rs", "member", "attest", "router", "realm", "path", "consent", "gateway", "stamper", "key", "console"];
/// How long a test waits for something.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A role with its files.
pub(super) struct Configured {
    pub(super) role: &'static str,
    config: PathBuf,
    folder: Folder,
    /// It makes interfaces and routes, in a network namespace of its own.
    is_apart: bool,
}

/// Does something with each role at one time; those that cannot run here are named.
pub(super) fn with_each(test: &str, task: impl Fn(Configured) + Sync) {
    std::thread::scope(|scope| {
        for role in ROLES {
            let task = &task;
            scope.spawn(move || {
                if let Some(configured) = Configured::new(test, role) {
                    task(configured);
                }
            });
        }
    });
}

impl Configured {
    /// `None` if the role cannot run here.
    pub(super) fn new(test: &str, role: &'static str) -> Option<Self> {
        let is_apart = matches!(role, "gateway" | "stamper");
        if is_apart && !geteuid().is_root() {
            netns::skipped(&format!("{test}: the role {role} needs root"));
            return None;
        }
        let folder = Folder::new(&format!("ends-{test}-{role}"));
        let config = match role {
            "rs" | "member" => exchange(&folder, role),
            "attest" => attest(&folder),
            "router" => router(&folder),
            "realm" | "path" | "consent" | "gateway" => overlay(&folder, test, role),
            "stamper" => stamper(&folder),
            "key" => key_server(&folder),
            _ => console(&folder),
        };
        let config = folder.0.join(config);
        Some(Self { role, config, folder, is_apart })
    }

    /// A role whose files are there already.
    pub(super) fn of(role: &'static str, config: PathBuf, folder: Folder) -> Self {
        Self { role, config, folder, is_apart: false }
    }

    pub(super) fn config(&self) -> &Path {
        &self.config
    }

    /// Removes all of its files, and what a test laid beside them.
    pub(super) fn lose(&self) {
        fs::remove_dir_all(&self.folder.0).expect("removed");
        fs::create_dir(&self.folder.0).expect("a folder");
    }

    /// Where its configuration and state are.
    pub(super) fn folder(&self) -> &Path {
        self.config.parent().expect("a folder")
    }

    /// The first value of a setting in its configuration.
    pub(super) fn setting(&self, before: &str) -> String {
        let text = fs::read_to_string(&self.config).expect("a configuration");
        let at = text.find(before).expect("the setting") + before.len();
        text[at..].split('"').nth(1).expect("a text").to_owned()
    }

    /// Starts the role and waits until it has said that it is ready.
    pub(super) fn start(&self, stderr: impl Into<Stdio>, environment: &[(&str, &str)]) -> Process {
        let process = self.spawn(stderr, environment, &[]);
        process.expect("READY=1");
        process
    }

    /// Starts the role, with further options; it need not become ready.
    pub(super) fn spawn(&self, stderr: impl Into<Stdio>, environment: &[(&str, &str)], options: &[&str]) -> Process {
        let socket = self.folder.0.join("notify");
        let _ = fs::remove_file(&socket);
        let notices = UnixDatagram::bind(&socket).expect("a socket");
        notices.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        let mut command = match self.is_apart {
            false => Command::new(env!("CARGO_BIN_EXE_wayleave")),
            true => {
                let mut command = Command::new("unshare");
                let up = "ip link set lo up && exec \"$@\"";
                command.args(["--net", "sh", "-c", up, "sh", env!("CARGO_BIN_EXE_wayleave")]);
                command
            }
        };
        command.args(["run", self.role, "--config"]).arg(&self.config).args(options).envs(environment.iter().copied());
        command.env("NOTIFY_SOCKET", &socket).env("WAYLEAVE_TEST_FAULT", self.order_file());
        let child = command.stdin(Stdio::null()).stderr(stderr).spawn().expect("the program runs");
        Process { role: self.role, child, notices }
    }

    pub(super) fn log_file(&self) -> fs::File {
        fs::File::options().create(true).append(true).open(self.folder.0.join("log")).expect("a log")
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.folder.0.join("log")).unwrap_or_default()
    }

    fn order_file(&self) -> PathBuf {
        self.folder.0.join("order")
    }

    /// Orders a fault of the running process.
    pub(super) fn order(&self, fault: &str) {
        // Whole at once: the process may look at any time.
        let part = self.folder.0.join("order.part");
        fs::write(&part, fault).expect("written");
        fs::rename(part, self.order_file()).expect("renamed");
    }
}

impl Configured {
    /// Waits until the process has read what was ordered.
    pub(super) fn taken(&self) {
        eventually("the order is read", || !self.order_file().exists());
    }
}

/// A running role; killed on drop.
pub(super) struct Process {
    pub(super) role: &'static str,
    pub(super) child: Child,
    notices: UnixDatagram,
}

impl Process {
    /// The next notification to systemd; `None` if there is none in this time.
    pub(super) fn notice(&self, within: Duration) -> Option<String> {
        self.notices.set_read_timeout(Some(within)).expect("a timeout");
        let mut buffer = [0; 256];
        let length = self.notices.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    pub(super) fn expect(&self, notice: &str) {
        let received = self.notice(TIMEOUT);
        assert!(
            received.as_ref().is_some_and(|text| text.starts_with(notice)),
            "{}: {notice}: {received:?}",
            self.role
        );
    }

    /// The role reads its configuration again, and goes on.
    pub(super) fn reloads(&self) {
        self.signal(Signal::HUP);
        self.expect("RELOADING=1");
        self.expect("READY=1");
    }

    pub(super) fn signal(&self, signal: Signal) {
        let process = Pid::from_child(&self.child);
        kill_process(process, signal).expect("it runs");
    }

    /// Waits for its end.
    pub(super) fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        eventually(&format!("{} ends", self.role), || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        status.expect("ended")
    }

    /// Waits for its end, for no longer than this.
    pub(super) fn ends_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let begin = Instant::now();
        while begin.elapsed() < limit {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn exchange(folder: &Folder, role: &str) -> PathBuf {
    let layout = Layout::simulated(&folder.0).expect("free ports");
    let exchange = DemoExchange::new(layout, env!("CARGO_BIN_EXE_wayleave").as_ref(), None).expect("files");
    if role == "rs" { exchange.files.party(1) } else { exchange.files.member(&exchange.members[0].at.name) }
}

fn console(folder: &Folder) -> PathBuf {
    let text = format!(
        "[console]\n[[source]]\nname = \"alpha\"\nat = \"http://{}\"\n[status]\nlisten = \"{}\"\n",
        free(),
        free()
    );
    folder.write("console.toml", &text);
    "console.toml".into()
}

fn attest(folder: &Folder) -> PathBuf {
    folder.ok(&["keys", "attest", "attest.key", "--asn", "64496"]);
    let [inside, outside, status] = [free(), free(), free()];
    let text = format!(
        "[attest]\nasn = 64496\nstate = \"attest.redb\"\n[keys]\nsigning = \"attest.key\"\n[[pair]]\nname = \"there\"\ninside = {{ listen = \"{inside}\" }}\n\
         outside = {{ listen = \"{outside}\" }}\n[status]\nlisten = \"{status}\"\n"
    );
    folder.write("attest.toml", &text);
    "attest.toml".into()
}

fn router(folder: &Folder) -> PathBuf {
    let path = folder.0.join("router.key");
    folder.ok(&["keys", "forwarding", path.to_str().expect("UTF-8"), "--format", "icing"]);
    let [status, local, remote] = [free(), free(), free()];
    let text = format!(
        "[forwarding]\nformat = \"icing\"\nkeys = \"router.key\"\nstate = \"router.redb\"\n[icing]\n\
         tags = [{{ prefix = \"49000000/8\" }}]\n[[link]]\nid = 1\nlocal = \"{local}\"\nremote = \"{remote}\"\n\
         nodes = [\"{}\"]\n[status]\nlisten = \"{status}\"\n",
        hex(&secret(2).id())
    );
    folder.write("router.toml", &text);
    "router.toml".into()
}

/// A server or gateway of a realm whose operator is gone once it has joined; or the operator.
fn overlay(folder: &Folder, test: &str, role: &'static str) -> PathBuf {
    let realm = Realm::new(&format!("ends-{test}-{role}"));
    let name = match role {
        "realm" => "realm",
        _ => "node",
    };
    let [listen, status] = [free(), free()];
    // A node needs the address of a path server, which need not answer.
    let _paths = matches!(role, "consent" | "gateway").then(|| realm.path_server("paths"));
    let invited = match role {
        "realm" => None,
        "path" => Some(realm.invite(&["node", "--role", "path", "--address", &listen])),
        "gateway" => Some(realm.invite(&["node", "--role", role, "--prefix", "10.0.1.0/24"])),
        _ => Some(realm.invite(&["node", "--role", role])),
    };
    if let Some(token) = &invited {
        let listening: &[&str] = if role == "gateway" { &[] } else { &["--listen", &listen] };
        let joining = [&["join", token, "--dir", name, "--status", &status], listening].concat();
        realm.folder.ok(&joining);
    }
    let at = folder.0.join("realm");
    copy(&realm.folder.0, &at);
    at.join(name).join(format!("{role}.toml"))
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().expect("cp runs").success());
}

fn stamper(folder: &Folder) -> PathBuf {
    folder.ok(&["keys", "forwarding", "waypoint.key", "--format", "platypus"]);
    let minting = ["cap", "mint", "0.cap", "--key", "waypoint.key", "--waypoint", "198.51.100.1", "--principal", "7"];
    folder.ok(&minting);
    let text = "[host]\n[stamper]\nroutes = [{ name = \"paid\", capabilities = [\"0.cap\"] }]\n\
                rules = [{ to = \"203.0.113.0/24\", route = \"paid\" }]\n";
    folder.write("stamper.toml", text);
    "stamper.toml".into()
}

fn key_server(folder: &Folder) -> PathBuf {
    let [listen, status, api] = [free(), free(), free()];
    folder.ok(&["keys", "forwarding", "router.key", "--format", "platypus"]);
    let server = ["cap", "init", "server", "--zone", "keys.example.net", "--name-server", "ns1.example.net"];
    folder.ok(&[&server[..], &["--listen", &listen, "--status", &status, "--api", &api]].concat());
    let file = folder.0.join("server/key.toml");
    let text = fs::read_to_string(&file).expect("there");
    let waypoint = "[[key.waypoint]]\naddress = \"198.51.100.1\"\nkey = \"../router.key\"\n\n[status]";
    fs::write(&file, text.replace("[status]", waypoint)).expect("written");
    "server/key.toml".into()
}
