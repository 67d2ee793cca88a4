//! The audit log: each decision is on disk before its answer leaves.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use tracing::{error, info};
use wayleave_control::consent::{Audit, Decision};
use wayleave_control::database::Refusal;
use wayleave_packet::icing::header::Version;
use wayleave_runtime::faults;
use wayleave_runtime::identity::to_hex;
use wayleave_runtime::links::Links;

use crate::failure::{Failure, Outcome};

/// Decisions that wait to be written. Beyond, answers are left out: a sender asks again.
const QUEUE: usize = 16_384;
/// Decisions that share one write.
const GROUP: usize = 1_024;
/// A write that failed is tried again after this.
const RETRY: Duration = Duration::from_secs(1);

/// A decision, and the answer that leaves once it is written.
pub struct Entry {
    /// The line; none for one of many that a stranger caused.
    pub line: Option<Value>,
    pub link: u64,
    pub octets: Vec<u8>,
}

enum Order {
    Write(Box<Entry>),
    Reopen,
    Stop,
}

/// The log's file and the thread that writes it.
pub struct AuditLog {
    path: PathBuf,
    queue: SyncSender<Order>,
    state: Arc<State>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What the status pages read.
#[derive(Default)]
struct State {
    /// The role is stopping: a writer that cannot write gives up.
    is_closing: AtomicBool,
    written: AtomicU64,
    left_out: AtomicU64,
    failing: Mutex<Option<String>>,
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

impl AuditLog {
    /// Opens the file, and keeps what is in it.
    pub fn open(path: &Path, links: Links) -> Outcome<Self> {
        let file = open(path).map_err(|error| Failure::system(path.display(), &error))?;
        let (queue, orders) = sync_channel(QUEUE);
        let state = Arc::<State>::default();
        let writer = Writer { path: path.to_owned(), file, orders, links, state: Arc::clone(&state) };
        let thread = std::thread::Builder::new().name("audit".into()).spawn(move || writer.run());
        let thread = thread.map_err(|error| Failure::system("cannot start a thread", &error))?;
        Ok(Self { path: path.to_owned(), queue, state, writer: Mutex::new(Some(thread)) })
    }

    /// Writes a decision, then sends its answer. Never waits: if the disk is too slow, the answer is left out.
    pub fn write(&self, entry: Entry) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.queue.try_send(Order::Write(Box::new(entry)))
        {
            self.state.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Opens the file anew, after it was moved away.
    pub fn reopen(&self) -> Outcome {
        open(&self.path).map_err(|error| Failure::system(self.path.display(), &error))?;
        let _ = self.queue.send(Order::Reopen); // fails if the writer has ended
        Ok(())
    }

    /// Writes what waits, and ends.
    pub fn finish(&self) {
        self.state.is_closing.store(true, Ordering::Relaxed);
        let _ = self.queue.send(Order::Stop);
        let thread = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join(); // a panic of the writer has been printed already
        }
    }

    /// Decisions written, answers left out, and why nothing can be written.
    pub fn status(&self) -> (u64, u64, Option<String>) {
        let failing = self.state.failing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (read(&self.state.written), read(&self.state.left_out), failing)
    }
}

struct Writer {
    path: PathBuf,
    file: File,
    orders: Receiver<Order>,
    links: Links,
    state: Arc<State>,
}

impl Writer {
    fn run(mut self) {
        while let Ok(first) = self.orders.recv() {
            faults::point("audit");
            let mut group = Vec::new();
            let mut next = Some(first);
            let mut is_over = false;
            while let Some(order) = next.take() {
                match order {
                    Order::Write(entry) => group.push(*entry),
                    Order::Reopen => self.reopen(),
                    Order::Stop => is_over = true,
                }
                if group.len() < GROUP && !is_over {
                    next = self.orders.try_recv().ok();
                }
            }
            if !self.write(&group) {
                error!(path = %self.path.display(), "stopping: the last decisions could not be written; their answers were not sent");
            }
            if is_over {
                return;
            }
        }
    }

    fn reopen(&mut self) {
        if let Ok(file) = open(&self.path) {
            self.file = file;
        }
    }

    /// Writes until it succeeds, unless the log is being closed.
    fn write(&mut self, group: &[Entry]) -> bool {
        if group.is_empty() {
            return true;
        }
        let lines = group.iter().filter_map(|entry| entry.line.as_ref());
        let text: String = lines.clone().map(|line| format!("{line}\n")).collect();
        let written = lines.count();
        let mut tries = 0;
        while let Err(failure) = self.append(&text) {
            if tries == 0 {
                error!(path = %self.path.display(), "the audit log cannot be written: {failure}; nobody gets an answer until it can");
            }
            tries += 1;
            let why = format!("{}: {failure}", self.path.display());
            *self.state.failing.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
            if self.state.is_closing.load(Ordering::Relaxed) {
                return false;
            }
            std::thread::sleep(RETRY);
        }
        if tries > 0 {
            info!(path = %self.path.display(), "the audit log can be written again");
            *self.state.failing.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        self.state.written.fetch_add(written as u64, Ordering::Relaxed);
        for entry in group {
            self.links.send(entry.link, entry.octets.clone());
        }
        true
    }

    /// Appends whole lines: what a failed write left of one is taken away first.
    fn append(&mut self, text: &str) -> std::io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let before = self.file.metadata()?.len();
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        if written.is_err() {
            let _ = self.file.set_len(before);
        }
        written
    }
}

/// What anybody can cause without being a member, and so without end: of each such reason only some lines are written, the next
/// of which counts those that were not.
pub fn is_strangers(audit: &Audit) -> Option<&'static str> {
    let Decision::Refused { refusal, .. } = &audit.decision else { return None };
    match refusal {
        Refusal::Malformed => Some("audit-malformed"),
        Refusal::Realm => Some("audit-realm"),
        Refusal::NotOwn => Some("audit-not-own"),
        Refusal::NotMember => Some("audit-not-member"),
        Refusal::Signature => Some("audit-signature"),
        Refusal::TooOften => Some("audit-too-often"),
        Refusal::NotServed => Some("audit-not-served"),
        Refusal::Stale => Some("audit-stale"),
        Refusal::Recovering => Some("audit-recovering"),
        Refusal::StaleList => Some("audit-stale-list"),
        _ => None,
    }
}

/// A decision as it stands in the log.
pub fn describe(audit: &Audit) -> Value {
    let mut line = json!({
        "time": audit.time,
        "sender": audit.sender.to_string(),
        "node": audit.node.map(|node| node.to_string()),
        "path": audit.path.map(|path| to_hex(&path.0)),
        "tag": audit.tag.map(|tag| format!("{:08x}", tag.0)),
        "profile": audit.packets.map(Version::profile),
    });
    match &audit.decision {
        Decision::Consented { expiry, rule } => {
            line["decision"] = json!("consented");
            line["rule"] = json!(rule);
            line["until"] = json!(expiry);
        }
        Decision::Refused { refusal, rule } => {
            line["decision"] = json!("refused");
            line["rule"] = json!(rule);
            line["why"] = json!(refusal.to_string());
        }
    }
    line
}
