//! A running router, its folder and its status page.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use wayleave_lab::netns::NetworkNamespace;
use wayleave_lab::ports::free_address;

use crate::common::metrics::assert_named_by_the_rule;
use crate::common::program;
use crate::common::screen::assert_one_screen;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A folder that is removed when the test passes.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("forwarding-{name}"));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).expect("written");
    }

    /// Writes a key file of one format: each key with the second from which it counts.
    pub(crate) fn keys(&self, name: &str, format: &str, keys: &[(u64, [u8; 16])]) {
        let path = self.0.join(name);
        let lines: String = keys
            .iter()
            .map(|(from, key)| format!("[[key]]\nfrom = {from}\nsecret = \"{:032x}\"\n", u128::from_be_bytes(*key)))
            .collect();
        fs::write(&path, format!("role = \"router\"\nformat = \"{format}\"\n{lines}")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("mode");
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let mut command = program(arguments);
        command.current_dir(&self.0).env_remove("WAYLEAVE_LOG").env("NO_COLOR", "1");
        command.stdin(Stdio::null()).output().expect("the program runs")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// An address on loopback that nothing uses.
pub(crate) fn free() -> String {
    free_address().expect("a port").to_string()
}

pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < TIMEOUT, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A running router, or another role with a status page.
pub(crate) struct Router {
    role: &'static str,
    name: String,
    folder: PathBuf,
    place: NetworkNamespace,
    pub(crate) child: Option<Child>,
    page: String,
    /// How it is told its configuration.
    configuration: [String; 2],
}

impl Router {
    /// Starts a router with this configuration, which has no `[status]` yet, and waits until it is ready: until it accepts what
    /// is stamped now.
    pub(crate) fn start(folder: &Folder, name: &str, place: NetworkNamespace, config: &str) -> Self {
        Self::start_role("router", folder, name, place, config)
    }

    /// The same for another role.
    pub(crate) fn start_role(
        role: &'static str,
        folder: &Folder,
        name: &str,
        place: NetworkNamespace,
        config: &str,
    ) -> Self {
        let page = place.within(free_address);
        let page = page.expect("in its place").expect("a port").to_string();
        folder.write(&format!("{name}.toml"), &format!("{config}[status]\nlisten = \"{page}\"\n"));
        let configuration = ["--config".to_owned(), format!("{name}.toml")];
        let (name, folder) = (name.to_owned(), folder.0.clone());
        let mut router = Self { role, name, folder, place, child: None, page, configuration };
        router.start_process();
        router
    }

    /// Starts a router with the files of a SCION router in the folder `name`, which have its status page.
    pub(crate) fn start_folder(folder: &Folder, name: &str, place: NetworkNamespace, page: &str) -> Self {
        let configuration = ["--scion".to_owned(), name.to_owned()];
        let (name, folder, page) = (name.to_owned(), folder.0.clone(), page.to_owned());
        let mut router = Self { role: "router", name, folder, place, child: None, page, configuration };
        router.start_process();
        router
    }

    /// Starts the process, for the first time or after a kill.
    pub(crate) fn start_process(&mut self) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.folder.join(format!("{}.log", self.name)));
        let mut command = self.place.command(env!("CARGO_BIN_EXE_wayleave"));
        command.args(["run", self.role, "--refuse-nobody"]).args(&self.configuration).current_dir(&self.folder);
        self.child = Some(command.stderr(log.expect("a log")).stdin(Stdio::null()).spawn().expect("the program runs"));
        let begin = Instant::now();
        let is_ready = |status: &Value| !status.is_null() && status["refuses_until"].is_null();
        while !is_ready(&self.status()) {
            let ended = self.child.as_mut().expect("started").try_wait().expect("a child");
            assert!(ended.is_none() && begin.elapsed() < TIMEOUT, "{} did not start: {}", self.name, self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_named_by_the_rule(self.role, &self.place, self.page.parse().expect("an address"));
        assert_one_screen(&self.place, self.page.parse().expect("an address"));
    }

    pub(crate) fn json(&self, noun: &str) -> Value {
        let mut command = self.place.command(env!("CARGO_BIN_EXE_wayleave"));
        let output = command.args(["show", noun, "--json", "--url", &self.page]).output().expect("the program runs");
        if output.status.success() { serde_json::from_slice(&output.stdout).expect("JSON") } else { Value::Null }
    }

    /// Runs a command that asks this role.
    pub(crate) fn show(&self, arguments: &[&str]) -> Output {
        let mut command = self.place.command(env!("CARGO_BIN_EXE_wayleave"));
        command.args(arguments).args(["--url", &self.page]).output().expect("the program runs")
    }

    /// What a page of the status server answers, with its head.
    pub(crate) fn ask(&self, path: &str) -> String {
        let fetch = || {
            let mut stream = TcpStream::connect(&self.page)?;
            write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map(|_| answer)
        };
        self.place.within(fetch).expect("in its place").expect("an answer")
    }

    pub(crate) fn status(&self) -> Value {
        self.json("status")
    }

    /// A counter of what was decided, or of a reason.
    pub(crate) fn count(&self, group: &str, name: &str) -> u64 {
        self.status()[group][name].as_u64().unwrap_or(0)
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.as_ref().expect("running").id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().expect("kill").success());
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops it in order.
    pub(crate) fn stop(&mut self) {
        self.signal("-TERM");
        let ended = self.child.take().expect("running").wait();
        assert!(ended.expect("a child").success(), "{}", self.log());
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join(format!("{}.log", self.name))).unwrap_or_default()
    }

    /// How often it has reloaded its configuration, by its log.
    pub(crate) fn reloads(&self) -> usize {
        self.log().matches("configuration reloaded").count()
    }

    /// Reloads the configuration, and waits until that is done.
    pub(crate) fn reload(&self) {
        let before = self.reloads();
        self.signal("-HUP");
        eventually("the configuration is reloaded", || self.reloads() > before);
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.kill();
    }
}
