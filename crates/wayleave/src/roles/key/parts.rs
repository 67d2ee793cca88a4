//! The parts of a key server that run beside each other: none ends alone, since those that are left would go on as if it were there.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::thread::JoinHandle;

use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinSet};

use crate::failure::Failure;

/// Tasks that run for as long as the role; they end when this is dropped.
#[derive(Default)]
pub struct Parts {
    tasks: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

impl Parts {
    /// Starts a task. `name` says what it does.
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let id = self.tasks.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Ends all of them, and waits for that.
    pub async fn end(&mut self) {
        self.tasks.shutdown().await;
    }

    /// Waits until one of them ends, by a panic or by itself, and returns which. Cancel safe.
    pub async fn failed(&mut self) -> Failure {
        let id = match self.tasks.join_next_with_id().await {
            None => std::future::pending().await,
            Some(Ok((id, ()))) => id,
            Some(Err(error)) => error.id(),
        };
        stopped(self.names.get(&id).copied().unwrap_or("a task"))
    }
}

/// Threads for tasks that nobody else's work may hold up. Its tasks end when this is dropped.
pub struct OwnRuntime(Option<Runtime>);

impl OwnRuntime {
    /// With two threads, named so.
    pub fn start(name: &'static str) -> io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        Ok(Self(Some(builder.enable_all().worker_threads(2).thread_name(name).build()?)))
    }

    /// Runs a task on it, and whatever that starts.
    ///
    /// # Errors
    /// If it panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, tokio::task::JoinError> {
        match &self.0 {
            Some(runtime) => runtime.spawn(task).await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        // Within another runtime nobody may wait for its threads.
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Starts a thread; if it panics, that is reported.
pub fn start_thread(
    name: &'static str,
    failed: mpsc::Sender<Failure>,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let watch = PanicWatch { name, failed };
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _watch = watch;
        work();
    })
}

/// Reports a panic of the thread that drops it.
struct PanicWatch {
    name: &'static str,
    failed: mpsc::Sender<Failure>,
}

impl Drop for PanicWatch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.failed.try_send(stopped(self.name)); // fails if another is reported
        }
    }
}

/// What is reported of a part that ended; its panic is in the lines above.
pub fn stopped(what: &str) -> Failure {
    Failure::new(format!("`{what}` of the key server stopped: a bug, please report it with the lines above"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_is_reported_and_one_that_ends_is_not() {
        let (failed, mut failures) = mpsc::channel(1);
        let start = |work: fn()| start_thread("dns", failed.clone(), work).expect("started").join();
        assert!(start(|| ()).is_ok());
        assert!(failures.try_recv().is_err());
        assert!(start(|| panic!("a bug")).is_err());
        assert!(failures.try_recv().expect("reported").to_string().contains("`dns` of the key server stopped"));
    }

    #[tokio::test]
    async fn a_task_that_panics_or_ends_is_reported_by_its_name_and_others_are_not() {
        let mut parts = Parts::default();
        parts.spawn("other", std::future::pending());
        parts.spawn("database", async { panic!("a bug") });
        assert!(parts.failed().await.to_string().contains("`database` of the key server stopped"));
        parts.spawn("list", async {});
        assert!(parts.failed().await.to_string().contains("`list`"));
        let other = tokio::time::timeout(std::time::Duration::from_millis(1), parts.failed()).await;
        assert!(other.is_err(), "it runs on");
    }
}
