//! Which folders of some are there, by their inode numbers, and word of when that may have changed (inotify(7)).

#![allow(unsafe_code, reason = "a promise about a descriptor, for which tokio has no safe call")]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Octets of events that are read at a time. What they say does not matter: all folders are looked at after any.
const EVENTS: usize = 4_096;

/// A watch on the folders that others are made and removed in.
#[derive(Debug)]
pub struct FolderWatch {
    /// `None` where the system has no more of them: the caller looks from time to time in any case.
    inotify: Option<AsyncFd<OwnedFd>>,
    /// Folders whose entries are watched: inode number and watch.
    watched: BTreeMap<PathBuf, (u64, i32)>,
}

impl Default for FolderWatch {
    /// Watches nothing yet. Within a runtime of tokio's.
    fn default() -> Self {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        // SAFETY: the descriptor is owned, so that it stays open and the same until it is dropped, with its registration.
        let register = |inotify| unsafe { AsyncFd::register_with_interest(inotify, Interest::READABLE) }.ok();
        let inotify = inotify.ok().and_then(register);
        Self { inotify, watched: BTreeMap::new() }
    }
}

impl FolderWatch {
    /// The inode numbers of the folders `paths` below `root`, of those that are there. What becomes of these paths from now on ends
    /// [`FolderWatch::changed`], and nothing else does but the end of a watch that a look took back.
    pub fn look<'a>(&mut self, root: &Path, paths: impl IntoIterator<Item = &'a str>) -> BTreeMap<&'a str, u64> {
        let (mut found, mut above) = (BTreeMap::new(), BTreeMap::new());
        for path in paths {
            let mut folder = root.to_owned();
            let mut number = inode(&folder);
            for part in path.split('/') {
                let Some(of) = number else { break };
                // Before the look at what is in it, so that nothing is made between both unseen.
                self.watch(&folder, of);
                above.insert(folder.clone(), of);
                folder.push(part);
                number = inode(&folder);
            }
            found.extend(number.map(|number| (path, number)));
        }
        let Self { inotify, watched } = self;
        watched.retain(|folder, (of, watch)| {
            let is_kept = above.get(folder) == Some(of);
            if let (false, Some(inotify)) = (is_kept, &inotify) {
                // Fails if the folder's end has ended it.
                let _ = inotify::remove_watch(inotify, *watch);
            }
            is_kept
        });
        found
    }

    fn watch(&mut self, folder: &Path, number: u64) {
        let Some(inotify) = &self.inotify else { return };
        if self.watched.get(folder).is_some_and(|(of, _)| *of == number) {
            return;
        }
        let events = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE | WatchFlags::ONLYDIR;
        let Ok(watch) = inotify::add_watch(inotify, folder, events) else { return };
        if let Some((_, before)) = self.watched.insert(folder.to_owned(), (number, watch))
            && before != watch
        {
            let _ = inotify::remove_watch(inotify, before);
        }
    }

    /// Waits until a folder may have been made or removed. May be given up and called again.
    pub async fn changed(&self) {
        let Some(inotify) = &self.inotify else { return std::future::pending().await };
        let read = |inotify: &OwnedFd| rustix::io::read(inotify, &mut [0; EVENTS]).map_err(io::Error::from);
        match inotify.async_io(Interest::READABLE, read).await {
            Ok(_) => {}
            Err(_) => std::future::pending().await,
        }
    }
}

/// A folder's inode number, if it is there.
fn inode(folder: &Path) -> Option<u64> {
    std::fs::metadata(folder).ok().filter(std::fs::Metadata::is_dir).map(|data| data.ino())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    /// Whether word comes soon. Reads all of it.
    async fn is_told(watch: &FolderWatch) -> bool {
        let mut is_told = false;
        while tokio::time::timeout(Duration::from_millis(100), watch.changed()).await.is_ok() {
            is_told = true;
        }
        is_told
    }

    #[tokio::test]
    async fn folders_that_are_made_removed_and_made_anew_are_told_of_at_any_depth() {
        let root = std::env::temp_dir().join(format!("wayleave-folders-{}", std::process::id()));
        fs::create_dir_all(&root).expect("a folder");
        let mut watch = FolderWatch::default();
        let path = "a/b/c";
        assert_eq!(watch.look(&root, [path]), BTreeMap::new());
        assert!(!is_told(&watch).await);
        fs::create_dir(root.join("a")).expect("a folder");
        assert!(is_told(&watch).await, "the first part");
        assert_eq!(watch.look(&root, [path]), BTreeMap::new());
        fs::create_dir_all(root.join(path)).expect("a folder");
        assert!(is_told(&watch).await, "the rest");
        let found = watch.look(&root, [path]);
        let first = found[path];
        assert!(!is_told(&watch).await, "nothing since");
        // Another one in its place; the first keeps its number for as long as it has another name.
        fs::rename(root.join(path), root.join("kept")).expect("renamed");
        fs::create_dir(root.join(path)).expect("a folder");
        assert!(is_told(&watch).await, "made anew");
        assert_ne!(watch.look(&root, [path])[path], first);
        // The same above it.
        fs::rename(root.join("a"), root.join("before")).expect("renamed");
        assert!(is_told(&watch).await, "one above is gone");
        assert_eq!(watch.look(&root, [path]), BTreeMap::new());
        fs::create_dir_all(root.join(path)).expect("a folder");
        assert!(is_told(&watch).await);
        assert!(watch.look(&root, [path]).contains_key(path));
        assert_eq!(watch.watched.len(), 3, "the root and what is between");
        // What nobody asks for any more is not watched.
        assert_eq!(watch.look(&root, []), BTreeMap::new());
        assert!(is_told(&watch).await, "of the watches that ended");
        fs::remove_dir_all(root.join("a")).expect("removed");
        assert!(!is_told(&watch).await && watch.watched.is_empty());
        fs::remove_dir_all(&root).expect("removed");
    }
}
