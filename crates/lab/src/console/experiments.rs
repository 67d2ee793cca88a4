//! Experiments that a laboratory's console runs: benchmarks of papers' tables and figures, one at a time, each in a process of its own.

use std::collections::VecDeque;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use thiserror::Error;

/// Lines of progress that are kept, the last ones, and octets of each.
const MAX_LINES: usize = 100;
const MAX_LINE: u64 = 512;
/// Octets of a result; of a longer one the begin is shown.
const MAX_RESULT: u64 = 256 << 10;
/// How often to look whether a benchmark has ended.
const POLL: Duration = Duration::from_millis(100);
/// How long a benchmark that was told to end may take until it is killed, and how long the rest of its result may take to come.
const END: Duration = Duration::from_secs(5);
/// What holds of every experiment.
const SAME_WORK: &str = "The same work as the paper's, as far as the arguments of --paper make it so: where ours is other work, \
                         the titles of the result say how. Not the same: the machine, and the short form, which measures less and less often.";

/// A table or figure of a paper, as `bench --list` has it.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// What `--paper` takes.
    pub id: &'static str,
    pub shows: &'static str,
    /// About how long its short form takes.
    pub takes: &'static str,
}

/// Why an experiment did not start.
#[derive(Debug, Error)]
pub enum NotStarted {
    #[error("no experiment of the list has this name")]
    Unknown,
    #[error("{0} runs: stop it, or wait until it has ended")]
    Busy(&'static str),
    #[error("the console is ending")]
    Ending,
    #[error("the benchmark's program cannot be started: {0}")]
    System(#[from] io::Error),
}

/// The experiments of a console, and the last that was started.
pub struct Experiments {
    all: Vec<Experiment>,
    /// The program whose `bench` runs them.
    program: PathBuf,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    run: Option<Arc<Run>>,
    /// Nothing more is started.
    is_over: bool,
}

impl Experiments {
    #[must_use]
    pub fn new(all: Vec<Experiment>, program: PathBuf) -> Self {
        Self { all, program, last: Mutex::default() }
    }

    /// Starts the short form of the one that is called so.
    ///
    /// # Errors
    /// None is, one runs, or the system refuses.
    pub fn start(&self, id: &str) -> Result<(), NotStarted> {
        // Only a name out of the list comes to the command line.
        let id = self.all.iter().find(|one| one.id == id).ok_or(NotStarted::Unknown)?.id;
        let mut last = lock(&self.last);
        if last.is_over {
            return Err(NotStarted::Ending);
        }
        if let Some(run) = last.run.as_ref().filter(|run| run.is_running()) {
            return Err(NotStarted::Busy(run.id));
        }
        let mut command = Command::new(&self.program);
        command.args(arguments(id)).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        last.run = Some(Run::of(id, command.spawn()?));
        Ok(())
    }

    /// Tells the one that runs to print what it has measured and to end; a second time, to end at once. Whether one runs.
    pub fn stop(&self) -> bool {
        lock(&self.last).run.as_ref().is_some_and(|run| run.signal(Signal::INT))
    }

    /// Ends the one that runs, and starts no other.
    pub fn end(&self) {
        let run = {
            let mut last = lock(&self.last);
            last.is_over = true;
            last.run.take()
        };
        let Some(run) = run.filter(|run| run.signal(Signal::TERM)) else { return };
        let begin = Instant::now();
        while run.is_running() && begin.elapsed() < END {
            thread::sleep(POLL);
        }
        run.signal(Signal::KILL);
    }

    /// What the page shows.
    #[must_use]
    pub fn document(&self) -> Value {
        let one = |one: &Experiment| {
            let command = format!("wayleave-lab {}", arguments(one.id).join(" "));
            json!({ "id": one.id, "shows": one.shows, "takes": one.takes, "command": command })
        };
        let experiments: Vec<Value> = self.all.iter().map(one).collect();
        let run = lock(&self.last).run.as_ref().map(|run| run.document());
        json!({ "experiments": experiments, "same_work": SAME_WORK, "run": run })
    }
}

fn arguments(id: &'static str) -> [&'static str; 4] {
    ["bench", "--paper", id, "--short"]
}

/// A value behind a lock is whole after each change, so that a panic beside it leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A benchmark that runs or has run.
struct Run {
    id: &'static str,
    begin: Instant,
    child: Mutex<Child>,
    output: Mutex<Output>,
}

#[derive(Default)]
struct Output {
    progress: VecDeque<String>,
    result: String,
    /// How it ended, and after how long.
    ended: Option<(String, Duration)>,
}

impl Run {
    fn of(id: &'static str, mut child: Child) -> Arc<Self> {
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let run = Arc::new(Self { id, begin: Instant::now(), child: Mutex::new(child), output: Mutex::default() });
        let (of_result, of_progress, of_end) = (Arc::clone(&run), Arc::clone(&run), Arc::clone(&run));
        let result = thread::spawn(move || stdout.map(|stdout| of_result.take_result(stdout)));
        thread::spawn(move || stderr.map(|stderr| of_progress.take_progress(stderr)));
        thread::spawn(move || {
            let how = of_end.wait();
            // A process that the benchmark left may hold its output open: what has come by then is the result.
            let begin = Instant::now();
            while !result.is_finished() && begin.elapsed() < END {
                thread::sleep(POLL);
            }
            lock(&of_end.output).ended = Some((how, of_end.begin.elapsed()));
        });
        run
    }

    fn is_running(&self) -> bool {
        lock(&self.output).ended.is_none()
    }

    /// Whether it had not ended. It is waited for under the same lock, so that its number is no other process's.
    fn signal(&self, signal: Signal) -> bool {
        let mut child = lock(&self.child);
        matches!(child.try_wait(), Ok(None)) && kill_process(Pid::from_child(&child), signal).is_ok()
    }

    /// Waits for its end; how that was.
    fn wait(&self) -> String {
        loop {
            let looked = lock(&self.child).try_wait();
            match looked {
                Ok(None) => thread::sleep(POLL),
                Ok(Some(status)) => return status.to_string(),
                Err(error) => return error.to_string(),
            }
        }
    }

    fn take_result(&self, mut from: impl Read) {
        let mut result = Vec::new();
        let _ = from.by_ref().take(MAX_RESULT).read_to_end(&mut result); // what came before a failure is shown
        lock(&self.output).result = String::from_utf8_lossy(&result).into_owned();
        let _ = io::copy(&mut from, &mut io::sink()); // as above
    }

    fn take_progress(&self, from: impl Read) {
        let mut from = BufReader::new(from);
        loop {
            let mut line = Vec::new();
            let Ok(1..) = from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) else { return };
            let mut output = lock(&self.output);
            if output.progress.len() == MAX_LINES {
                output.progress.pop_front();
            }
            output.progress.push_back(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
    }

    fn document(&self) -> Value {
        let output = lock(&self.output);
        let ended = output.ended.as_ref();
        let time = ended.map_or_else(|| self.begin.elapsed(), |(_, time)| *time);
        json!({
            "id": self.id,
            "seconds": time.as_secs(),
            "ended": ended.map(|(how, _)| how),
            "progress": output.progress,
            "result": output.result,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiments(program: &str) -> Experiments {
        let one = Experiment { id: "paper/table-1", shows: "what it shows", takes: "seconds" };
        Experiments::new(vec![one], PathBuf::from(program))
    }

    #[test]
    fn a_name_that_is_not_in_the_list_starts_nothing() {
        let experiments = experiments("/bin/echo");
        for id in ["", "paper", "paper/table-2", "paper/table-1 --json", "--party", "PAPER/TABLE-1"] {
            assert!(matches!(experiments.start(id), Err(NotStarted::Unknown)), "{id}");
        }
        assert!(experiments.document()["run"].is_null() && !experiments.stop());
    }

    #[test]
    fn an_experiment_is_the_command_that_stands_beside_it_and_its_output_is_the_result() {
        let experiments = experiments("/bin/echo");
        experiments.start("paper/table-1").expect("it starts");
        while experiments.document()["run"]["ended"].is_null() {
            thread::sleep(POLL);
        }
        let document = experiments.document();
        assert_eq!(document["run"]["result"], "bench --paper paper/table-1 --short\n");
        assert_eq!(document["experiments"][0]["command"], "wayleave-lab bench --paper paper/table-1 --short");
        assert!(!experiments.stop(), "it has ended");
    }

    #[test]
    fn a_console_that_ends_starts_nothing_more() {
        let experiments = experiments("/bin/echo");
        experiments.end();
        assert!(matches!(experiments.start("paper/table-1"), Err(NotStarted::Ending)));
    }

    #[test]
    fn a_program_that_cannot_be_started_is_an_error_and_no_run() {
        let experiments = experiments("/nowhere/wayleave-lab");
        assert!(matches!(experiments.start("paper/table-1"), Err(NotStarted::System(_))));
        assert!(experiments.document()["run"].is_null());
    }
}
