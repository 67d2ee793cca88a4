//! The file of the exchange's data: read at the start, when it changes and at a reload, and offered to the machine, which decides whether
//! it counts.

use std::fs::{self, File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::warn;
use wayleave_member::Input;
use wayleave_route_server::data::MAX_ENCODED;
use wayleave_route_server::member::{DataStatus, OfferedData};
use wayleave_runtime::clock::utc;
use wayleave_runtime::http::Metric;
use wayleave_runtime::metrics;

use super::io::Event;

/// Interval between looks at the file.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Looks until it is read again, changed or not: what nobody's machine had signed may count under another member set, and is not kept.
const LOOKS_UNTIL_READ: u32 = 720;

/// Follows the file until it is dropped.
pub struct DataFile {
    path: watch::Sender<Option<PathBuf>>,
    /// The file, if one is named, and why it cannot be read.
    pub state: watch::Receiver<FileState>,
    task: JoinHandle<()>,
}

/// How the file stands.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileState {
    is_named: bool,
    problem: Option<String>,
}

/// What tells one state of a file from another.
type Stamp = (u64, u64, i64, i64);

impl DataFile {
    pub fn follow(path: Option<PathBuf>, events: mpsc::Sender<Event>) -> Self {
        let (path, changes) = watch::channel(path);
        let (said, state) = watch::channel(FileState::default());
        let task = tokio::spawn(follow(changes, said, events, CHECK_INTERVAL));
        Self { path, state, task }
    }

    /// Follows this file from now on, and reads it at once.
    pub fn follow_other(&self, path: Option<PathBuf>) {
        self.path.send_replace(path);
    }
}

impl Drop for DataFile {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow(
    mut path: watch::Receiver<Option<PathBuf>>,
    said: watch::Sender<FileState>,
    events: mpsc::Sender<Event>,
    interval: Duration,
) {
    let (mut ticks, mut last, mut looks) = (tokio::time::interval(interval), None, 0_u32);
    loop {
        tokio::select! {
            changed = path.changed() => match changed {
                Ok(()) => last = None,
                Err(_) => return,
            },
            _ = ticks.tick() => {
                looks += 1;
                if looks >= LOOKS_UNTIL_READ {
                    (looks, last) = (0, None);
                }
            }
        }
        let Some(at) = path.borrow_and_update().clone() else {
            said.send_replace(FileState::default());
            continue;
        };
        let before = last;
        let read = spawn_blocking(move || read(&at, before)).await;
        let problem = match read {
            Ok(Ok(None)) => None,
            Ok(Ok(Some((stamp, offered)))) => {
                last = Some(stamp);
                if events.send(Input::Data(Box::new(offered)).into()).await.is_err() {
                    return;
                }
                None
            }
            Ok(Err(why)) => Some(why),
            Err(failed) => Some(format!("it was not read ({failed}): a bug, please report it")),
        };
        let now = FileState { is_named: true, problem };
        if *said.borrow() != now {
            if let Some(why) = &now.problem {
                warn!("the file of data: {why}; data in force go on to count");
            }
            said.send_replace(now);
        }
    }
}

fn stamp(of: &Metadata) -> Stamp {
    (of.ino(), of.len(), of.mtime(), of.mtime_nsec())
}

/// What the file has, if it is not as it was.
fn read(path: &Path, before: Option<Stamp>) -> Result<Option<(Stamp, OfferedData)>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(format!("{} is no regular file", path.display()));
    }
    let file = File::open(path).map_err(failed)?;
    let now = stamp(&file.metadata().map_err(failed)?);
    if before == Some(now) {
        return Ok(None);
    }
    let mut octets = Vec::new();
    file.take(MAX_ENCODED as u64 + 1).read_to_end(&mut octets).map_err(failed)?;
    let offered = OfferedData::of(octets).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Some((now, offered)))
}

/// What is wrong with the data, if something is: what counts meanwhile, and what to do.
pub fn problems(status: Option<&DataStatus>, file: &FileState, now: u64) -> Vec<String> {
    let mut problems = Vec::new();
    let cannot_read = file.problem.as_ref().map(|why| format!("the file of data cannot be read: {why}"));
    let Some(status) = status else {
        problems.extend(cannot_read);
        return problems;
    };
    let counts = match status.number {
        Some(number) => format!("data {number} go on to count"),
        None => "nothing is refused by them".to_owned(),
    };
    problems.extend(cannot_read.map(|why| format!("{why}; {counts}")));
    if let Some(why) = &status.refused {
        problems.push(format!("data that were offered are not taken: {why}; {counts}: tell both operators"));
    }
    match (status.number, status.until) {
        (None, _) if !file.is_named => problems.push(
            "the exchange has data (IRR lists), and this proxy reads none, so that nothing is refused by them: name their file in [data]"
                .to_owned(),
        ),
        (None, _) if problems.is_empty() => {
            problems.push(format!("no data count yet: {counts}; see whether the file in [data] is there"));
        }
        (Some(number), Some(until)) if until <= now => problems.push(format!(
            "data {number} were current until {}: they go on to count; get the exchange's new ones, which both operators' machines sign",
            utc(until)
        )),
        _ => {}
    }
    problems
}

/// How the data stand, where the profile asks for some.
pub fn metrics(status: &DataStatus, now: u64) -> Vec<Metric> {
    metrics! {
        gauge "data" Number "The number of the exchange's data in force, 0 without" = status.number.unwrap_or(0);
        gauge "data_until" Seconds "Until when the data in force are current, in seconds since 1970" = status.until.unwrap_or(0);
        gauge "data" Up "Whether data are in force and current, and those that were offered last count" =
            is_current(status, now);
    }
}

fn is_current(status: &DataStatus, now: u64) -> bool {
    status.until.is_some_and(|until| until > now) && status.refused.is_none()
}

#[cfg(test)]
mod tests {
    use wayleave_route_server::data::DataObject;

    use super::*;

    fn status(number: Option<u64>, refused: Option<&str>) -> DataStatus {
        let refused = refused.map(str::to_owned);
        DataStatus {
            number,
            made: number.map(|_| 1_000),
            until: number.map(|_| 2_000),
            members: 0,
            prefixes: 0,
            refused,
        }
    }

    #[test]
    fn what_is_wrong_with_data_is_said_with_what_counts_meanwhile() {
        let named = FileState { is_named: true, problem: None };
        let lost = FileState { is_named: true, problem: Some("ix.data: gone".to_owned()) };
        for (status, file, now, expected) in [
            (None, &FileState::default(), 0, vec![]),
            (Some(status(Some(3), None)), &named, 1_999, vec![]),
            (Some(status(Some(3), None)), &named, 2_000, vec!["data 3 were current until"]),
            (
                Some(status(Some(3), None)),
                &lost,
                0,
                vec!["the file of data cannot be read: ix.data: gone; data 3 go on"],
            ),
            (
                Some(status(None, None)),
                &FileState::default(),
                0,
                vec!["the exchange has data (IRR lists), and this proxy"],
            ),
            (Some(status(None, None)), &named, 0, vec!["no data count yet: nothing is refused by them"]),
            (
                Some(status(None, Some("no"))),
                &named,
                0,
                vec!["data that were offered are not taken: no; nothing is refused"],
            ),
        ] {
            let said = problems(status.as_ref(), file, now);
            let begin =
                said.len() == expected.len() && said.iter().zip(&expected).all(|(said, with)| said.starts_with(with));
            assert!(begin, "{said:?}, expected {expected:?}");
        }
    }

    #[test]
    fn metrics_say_whether_data_are_current_and_none_is_refused() {
        for (status, now, is_up) in [
            (status(Some(3), None), 1_999, true),
            (status(Some(3), None), 2_000, false),
            (status(Some(3), Some("no")), 0, false),
            (status(None, None), 0, false),
        ] {
            assert_eq!(is_current(&status, now), is_up, "{status:?}");
            let names: Vec<String> = metrics(&status, now).iter().map(|metric| metric.name("member")).collect();
            let expected =
                ["data_number", "data_until_seconds", "data_up"].map(|name| format!("wayleave_member_{name}"));
            assert_eq!(names, expected);
        }
    }

    #[test]
    fn a_file_is_read_once_until_it_changes() {
        let path = std::env::temp_dir().join(format!("wayleave-data-{}", std::process::id()));
        std::fs::write(&path, b"no data").expect("written");
        assert!(read(&path, None).is_err_and(|why| why.contains("wayleave-data-")));
        let object = DataObject::new(Default::default()).expect("sound");
        std::fs::write(&path, object.encode()).expect("written");
        let (stamp, offered) = read(&path, None).expect("sound").expect("new");
        assert_eq!(Ok(offered), OfferedData::of(object.encode()));
        assert!(read(&path, Some(stamp)).expect("sound").is_none());
        std::fs::remove_file(&path).expect("removed");
        assert!(read(Path::new("/dev/zero"), None).is_err_and(|why| why.contains("no regular file")));
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_read_for_a_while_is_no_problem_once_it_is_there_unchanged() {
        let path = std::env::temp_dir().join(format!("wayleave-data-back-{}", std::process::id()));
        let away = path.with_extension("away");
        let object = DataObject::new(Default::default()).expect("sound");
        fs::write(&path, object.encode()).expect("written");
        let (events, mut offered) = mpsc::channel(10);
        let (_path, changes) = watch::channel(Some(path.clone()));
        let (said, mut state) = watch::channel(FileState::default());
        let task = tokio::spawn(follow(changes, said, events, Duration::from_millis(1)));
        offered.recv().await.expect("offered");
        for (from, to, is_lost) in [(&path, &away, true), (&away, &path, false)] {
            fs::rename(from, to).expect("moved");
            state.wait_for(|state| state.is_named && state.problem.is_some() == is_lost).await.expect("it follows");
        }
        task.abort();
        fs::remove_file(&path).expect("removed");
    }
}
