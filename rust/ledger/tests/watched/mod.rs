//! The operating system's files with a hook: one that records which directories were synced, and one that pauses.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};

use dra_ledger::{Disk, DiskFile, FileSystem, QueueLock};

/// Called before a rename, before a sync of a directory and before one of a file.
pub trait Hook: Debug + Send + Sync + 'static {
    fn renaming(&self, _to: &Path) {}
    fn syncing(&self, _dir: &Path) {}
    fn syncing_file(&self) {}
}

#[derive(Debug)]
pub struct Watched<H>(pub Arc<H>);

#[derive(Debug)]
struct WatchedFile<H>(Box<dyn DiskFile>, Arc<H>);

impl<H: Hook> DiskFile for WatchedFile<H> {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(bytes, offset)
    }

    fn allocate(&mut self, length: u64) -> io::Result<()> {
        self.0.allocate(length)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.1.syncing_file();
        self.0.sync()
    }
}

impl<H: Hook> Disk for Watched<H> {
    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        FileSystem.create_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        FileSystem.list(dir)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        FileSystem.read(path)
    }

    fn read_start(&self, path: &Path, length: usize) -> io::Result<Vec<u8>> {
        FileSystem.read_start(path, length)
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        FileSystem.size(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = FileSystem.create(path)?;
        Ok(Box::new(WatchedFile(file, Arc::clone(&self.0))))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.renaming(to);
        FileSystem.rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        FileSystem.link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        FileSystem.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.syncing(dir);
        FileSystem.sync_dir(dir)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        FileSystem.open(path)
    }

    fn lock(&self, path: &Path, shared: bool) -> io::Result<Box<dyn Debug + Send + Sync>> {
        FileSystem.lock(path, shared)
    }

    fn queue_lock(&self, path: &Path) -> io::Result<Box<dyn QueueLock>> {
        FileSystem.queue_lock(path)
    }
}

/// Directories that were synced, in order.
#[derive(Debug, Default)]
pub struct Synced(pub Mutex<Vec<PathBuf>>);

impl Hook for Synced {
    fn syncing(&self, dir: &Path) {
        self.0.lock().unwrap().push(dir.to_owned());
    }
}

/// The operation that waits while paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    RenameTo(&'static str),
    SyncOfFile,
}

#[derive(Debug)]
pub struct Pause {
    at: At,
    /// Whether the operation has to wait, and whether a thread waits.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

pub type Paused = Watched<Pause>;

impl Paused {
    pub fn new(at: At) -> Self {
        Self(Arc::new(Pause {
            at,
            state: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    pub fn pause(&self, paused: bool) {
        self.0.state.lock().unwrap().0 = paused;
        self.0.changed.notify_all();
    }

    pub fn wait_until_paused(&self) {
        let state = self.0.state.lock().unwrap();
        drop(
            self.0
                .changed
                .wait_while(state, |(_, waits)| !*waits)
                .unwrap(),
        );
    }
}

impl Pause {
    fn wait(&self) {
        let mut state = self.state.lock().unwrap();
        if !state.0 {
            return;
        }
        state.1 = true;
        self.changed.notify_all();
        let mut state = self
            .changed
            .wait_while(state, |(paused, _)| *paused)
            .unwrap();
        state.1 = false;
    }
}

impl Hook for Pause {
    fn renaming(&self, to: &Path) {
        if matches!(self.at, At::RenameTo(name) if to.ends_with(name)) {
            self.wait();
        }
    }

    fn syncing_file(&self) {
        if self.at == At::SyncOfFile {
            self.wait();
        }
    }
}
