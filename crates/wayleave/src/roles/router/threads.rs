//! The forwarding threads, as the rest of the process sees them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use tokio::sync::oneshot;
use tracing::warn;

use super::format::Format;
use super::worker::Worker;

/// A question or request to a thread, which it serves between two bursts.
pub type Query<F> = Box<dyn FnOnce(&mut Worker<F>) + Send>;

/// The queues to all threads. They need no bound of their own: who queries waits for the answer before it queries again, and
/// who does not wait (BFD) sends a few packets a second.
pub struct Threads<F>(Arc<[Sender<Query<F>>]>);

impl<F> Clone for Threads<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F: Format> Threads<F> {
    /// Queues to `count` threads, and their other ends.
    pub fn channels(count: usize) -> (Self, Vec<Receiver<Query<F>>>) {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| channel()).unzip();
        (Self(senders.into()), receivers)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Queries one thread and waits for its answer; `None` if it has ended.
    pub async fn query<T: Send + 'static>(
        &self,
        thread: usize,
        question: impl FnOnce(&mut Worker<F>) -> T + Send + 'static,
    ) -> Option<T> {
        self.ask(thread, question)?.await.ok()
    }

    /// Queries one thread, whose answer comes later; `None` if it has ended.
    pub fn ask<T: Send + 'static>(
        &self,
        thread: usize,
        question: impl FnOnce(&mut Worker<F>) -> T + Send + 'static,
    ) -> Option<oneshot::Receiver<T>> {
        let (answer, answered) = oneshot::channel();
        let query = Box::new(move |worker: &mut Worker<F>| {
            let _ = answer.send(question(worker)); // nobody waits any more
        });
        self.0.get(thread)?.send(query).ok()?;
        Some(answered)
    }

    /// Queries all threads, one after the other; `None` if one has ended.
    pub async fn query_all<T: Send + 'static>(
        &self,
        question: impl Fn(&mut Worker<F>) -> T + Clone + Send + 'static,
    ) -> Option<Vec<T>> {
        let mut answers = Vec::with_capacity(self.count());
        for thread in 0..self.count() {
            answers.push(self.query(thread, question.clone()).await?);
        }
        Some(answers)
    }

    /// Requests something of one thread without waiting.
    pub fn request(&self, thread: usize, request: impl FnOnce(&mut Worker<F>) + Send + 'static) {
        if let Some(queue) = self.0.get(thread) {
            let _ = queue.send(Box::new(request)); // it has ended
        }
    }
}

/// Starts a thread, on `core` if one is given. It ends with its format, which holds what was counted last.
///
/// # Errors
/// What the system said.
pub fn start<F: Format>(number: usize, core: Option<usize>, worker: Worker<F>) -> std::io::Result<JoinHandle<F>> {
    std::thread::Builder::new().name(format!("forward-{number}")).spawn(move || {
        if let Some(core) = core {
            pin(core);
        }
        worker.run()
    })
}

fn pin(core: usize) {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &cores) {
        warn!(
            core, %error,
            "a forwarding thread cannot be bound to its core and runs on any; check `cores` in [forwarding]"
        );
    }
}
