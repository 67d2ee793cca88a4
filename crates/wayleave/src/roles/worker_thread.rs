//! A thread that works by itself, as forwarding does, and takes tasks of the rest of the process between two bursts.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tokio::sync::oneshot;

type Task<W> = Box<dyn FnOnce(&mut W) + Send>;

/// Reaches the thread between two bursts.
pub struct Handle<W> {
    tasks: Sender<Task<W>>,
    wake: Arc<OwnedFd>,
}

impl<W> Clone for Handle<W> {
    fn clone(&self) -> Self {
        Self { tasks: self.tasks.clone(), wake: Arc::clone(&self.wake) }
    }
}

impl<W: 'static> Handle<W> {
    /// Runs `task` on the thread.
    pub fn send(&self, task: impl FnOnce(&mut W) + Send + 'static) {
        // Fails if the thread has ended.
        let _ = self.tasks.send(Box::new(task));
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    /// The same, and waits for what it returns; `None` if the thread has ended.
    pub async fn ask<T: Send + 'static>(&self, task: impl FnOnce(&mut W) -> T + Send + 'static) -> Option<T> {
        let (to, answer) = oneshot::channel();
        self.send(move |worker| {
            let _ = to.send(task(worker));
        });
        answer.await.ok()
    }
}

/// The thread's end: what it is asked to do.
pub struct Inbox<W> {
    tasks: Receiver<Task<W>>,
    wake: Arc<OwnedFd>,
    pub is_stopping: bool,
}

impl<W> Inbox<W> {
    /// The next task, if one waits.
    pub fn next(&self) -> Option<Task<W>> {
        self.tasks.try_recv().ok()
    }

    /// Waits until there is something to read from one of `ends`, or a task, for at most `limit` (less than a second). Returns whether
    /// the system refused.
    pub fn wait<'a>(&'a self, ends: impl Iterator<Item = BorrowedFd<'a>>, limit: Duration) -> bool {
        let timeout = Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
        let of = |end| PollFd::from_borrowed_fd(end, PollFlags::IN);
        let mut waiting: Vec<PollFd<'_>> = ends.chain([self.wake.as_fd()]).map(of).collect();
        let result = poll(&mut waiting, Some(&timeout));
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        result.is_err_and(|error| error != rustix::io::Errno::INTR)
    }
}

/// What such a thread runs.
pub trait Work: Sized + 'static {
    /// Works until [`Inbox::is_stopping`].
    fn run(self);

    fn inbox(&mut self) -> &mut Inbox<Self>;
}

/// The thread, running.
pub struct Running<W> {
    pub handle: Handle<W>,
    thread: JoinHandle<()>,
}

impl<W: Work + Send> Running<W> {
    /// Starts the thread.
    ///
    /// # Errors
    /// What the system said.
    pub fn start(name: &str, worker: impl FnOnce(Inbox<W>) -> W) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let (tasks, inbox) = channel();
        let worker = worker(Inbox { tasks: inbox, wake: Arc::clone(&wake), is_stopping: false });
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(|| worker.run())?;
        Ok(Self { handle: Handle { tasks, wake }, thread })
    }

    /// Lets the thread end, and waits for it.
    pub fn stop(self) {
        self.handle.send(|worker| worker.inbox().is_stopping = true);
        let _ = self.thread.join();
    }
}
