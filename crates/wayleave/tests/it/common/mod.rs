//! The program, run in folders of its own.
#![allow(unreachable_pub, dead_code, reason = "each test uses its part")]

pub mod attesting;
pub mod certified;
pub mod cpu_cap;
pub mod descriptors;
pub mod history;
pub mod metrics;
pub mod relay;
pub mod rtr;
pub mod screen;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use wayleave_lab::ports::free_address;

/// How long a test waits for something.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A folder that is gone when the test ends well.
pub struct Folder(pub PathBuf);

impl Folder {
    /// Each test has a name of its own.
    pub fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).expect("written");
    }

    /// Runs the program; the laboratory's, if the first argument is `wayleave-lab`.
    pub fn run(&self, arguments: &[&str]) -> Output {
        let mut command = program(arguments);
        command.current_dir(&self.0).env_remove("WAYLEAVE_LOG").env("NO_COLOR", "1");
        command.stdin(Stdio::null()).output().expect("the program runs")
    }

    /// Runs what must succeed, and gives what it printed.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs what must fail with this code, and gives what it said on standard error.
    pub fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stdout));
        text(&output.stderr)
    }

    /// Signs an object as the folder's anchor.
    pub fn sign(&self, what: &[&str]) {
        self.ok(&[&["keys"], what, &["--anchor", "anchor.key", "--objects", "objects"]].concat());
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// Checks that `keys show` knows every file below a folder, whoever wrote it but the tests: `log` is what a program said to them.
pub fn assert_known(folder: &Folder, below: &Path) {
    for entry in fs::read_dir(below).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            assert_known(folder, &path);
        } else if path.is_file() && !path.ends_with("log") {
            let shown = folder.run(&["keys", "show", path.to_str().expect("UTF-8")]);
            assert!(shown.status.success(), "{}: {}", path.display(), text(&shown.stderr));
        }
    }
}

/// The laboratory's program, which cargo builds beside the product's when it builds the workspace.
pub fn laboratory() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_wayleave")).with_file_name("wayleave-lab");
    assert!(program.is_file(), "{} is missing: cargo build --package wayleave-lab", program.display());
    program
}

/// The program with these arguments; the laboratory's, if the first one is `wayleave-lab`.
pub fn program(arguments: &[&str]) -> Command {
    let (program, arguments) = match arguments {
        ["wayleave-lab", arguments @ ..] => (laboratory(), arguments),
        _ => (PathBuf::from(env!("CARGO_BIN_EXE_wayleave")), arguments),
    };
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Whether Python can serve pages: Debian's minimal package of it cannot.
pub fn serves_pages() -> bool {
    Command::new("python3").args(["-c", "import http.server"]).output().is_ok_and(|output| output.status.success())
}

/// An address of the loopback that is free.
pub fn free() -> String {
    free_address().expect("a port").to_string()
}

pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < TIMEOUT, "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
