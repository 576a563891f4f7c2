//! The file operations that durability depends on, as a trait: tests implement it with a disk that fails, tears writes
//! and loses power.

use std::fmt::Debug;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;

/// An upper bound of the length of a note.
const MAX_NOTE_BYTES: usize = 512;

pub trait Disk: Debug + Send + Sync {
    /// Creates `dir` with mode 0700; returns false if it exists, `NotFound` if its parent does not exist.
    fn create_dir(&self, dir: &Path) -> io::Result<bool>;
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Reads at most the first `length` bytes of a regular file; empty for any other file type.
    fn read_start(&self, path: &Path, length: usize) -> io::Result<Vec<u8>>;
    /// The length of the file `path`.
    fn size(&self, path: &Path) -> io::Result<u64>;
    /// Creates `path`, or truncates it, which frees its space at once.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Creates the hard link `to` to `from`.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Opens the existing file `path` for writing.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Locks `path`, exclusively or shared, until the result is dropped; `WouldBlock` if another process holds a
    /// conflicting lock. On a read-only file system, an existing lock file can be locked.
    fn lock(&self, path: &Path, shared: bool) -> io::Result<Box<dyn Debug + Send + Sync>>;
    /// Opens the queue lock at `path` without acquiring it. On a read-only file system its files must exist, and a note
    /// cannot be written.
    fn queue_lock(&self, path: &Path) -> io::Result<Box<dyn QueueLock>>;
}

/// A lock between processes. A process that waits for it is served before one that has just released it. It is released
/// when its holder exits.
pub trait QueueLock: Debug + Send + Sync {
    /// Acquires the lock, or enters the queue; false if another process holds the lock or is ahead in the queue.
    fn try_acquire(&self) -> io::Result<bool>;
    /// Releases the lock, or leaves the queue.
    fn release(&self);
    /// Whether another process is in the queue.
    fn is_contended(&self) -> bool;
    /// Reads the note that was written last; empty if there is none.
    fn read_note(&self) -> io::Result<Vec<u8>>;
    fn write_note(&self, note: &[u8]) -> io::Result<()>;
}

pub trait DiskFile: Debug + Send {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Extends the file to `length` bytes of allocated space.
    fn allocate(&mut self, length: u64) -> io::Result<()>;
    /// fdatasync(2). After an error, the page cache may contain data that is not on disk: the file must not be used
    /// again.
    fn sync(&mut self) -> io::Result<()>;
}

/// The files of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileSystem;

impl Disk for FileSystem {
    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        match DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => Ok(true),
            // A read-only file system may return EROFS for a name that exists.
            Err(_) if dir.is_dir() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for file in dir.read_dir()? {
            // The names of the ledger's files are UTF-8.
            names.extend(file?.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn read_start(&self, path: &Path, length: usize) -> io::Result<Vec<u8>> {
        let mut start = Vec::new();
        // Checked before it is opened: opening a FIFO would wait for a writer.
        if path.symlink_metadata()?.is_file() {
            File::open(path)?
                .take(length as u64)
                .read_to_end(&mut start)?;
        }
        Ok(start)
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        Ok(path.symlink_metadata()?.len())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        Ok(Box::new(OpenFile(file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().write(true).open(path)?;
        Ok(Box::new(OpenFile(file)))
    }

    fn lock(&self, path: &Path, shared: bool) -> io::Result<Box<dyn Debug + Send + Sync>> {
        let (file, _) = lock_file(path)?;
        flock(
            &file,
            if shared {
                FlockOperation::NonBlockingLockShared
            } else {
                FlockOperation::NonBlockingLockExclusive
            },
        )?;
        // The process ID is for the error message of a second process. A full or read-only disk must not prevent the
        // first one from starting.
        let _ = file
            .set_len(0)
            .and_then(|()| file.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0));
        Ok(Box::new(file))
    }

    fn queue_lock(&self, path: &Path) -> io::Result<Box<dyn QueueLock>> {
        let (lock, writable) = lock_file(path)?;
        Ok(Box::new(FileQueueLock {
            lock,
            path: path.to_owned(),
            writable,
            queue: lock_file(&path.with_extension("next"))?.0,
            in_queue: AtomicBool::new(false),
        }))
    }
}

/// Returns the file, and whether it can be written: flock(2) also works on a file opened for reading.
fn lock_file(path: &Path) -> io::Result<(File, bool)> {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path);
    match opened {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            Ok((File::open(path)?, false))
        }
        opened => Ok((opened?, true)),
    }
}

/// Two locks: the process that waits for `lock` holds `queue`, so a process that has just released `lock` cannot
/// acquire it again first.
#[derive(Debug)]
struct FileQueueLock {
    lock: File,
    path: PathBuf,
    /// Whether `lock` was opened for writing.
    writable: bool,
    queue: File,
    in_queue: AtomicBool,
}

impl QueueLock for FileQueueLock {
    fn try_acquire(&self) -> io::Result<bool> {
        if !self.in_queue.load(Ordering::Relaxed) {
            if !try_lock(&self.queue)? {
                return Ok(false);
            }
            self.in_queue.store(true, Ordering::Relaxed);
        }
        if !try_lock(&self.lock)? {
            return Ok(false);
        }
        self.in_queue.store(false, Ordering::Relaxed);
        flock(&self.queue, FlockOperation::NonBlockingUnlock)?;
        Ok(true)
    }

    fn release(&self) {
        self.in_queue.store(false, Ordering::Relaxed);
        // flock(2) does not fail to unlock an open file.
        let _ = flock(&self.queue, FlockOperation::NonBlockingUnlock);
        let _ = flock(&self.lock, FlockOperation::NonBlockingUnlock);
    }

    fn is_contended(&self) -> bool {
        if self.in_queue.load(Ordering::Relaxed) {
            return false;
        }
        let free = try_lock(&self.queue).unwrap_or(false);
        if free {
            let _ = flock(&self.queue, FlockOperation::NonBlockingUnlock);
        }
        !free
    }

    fn read_note(&self) -> io::Result<Vec<u8>> {
        let mut note = vec![0; MAX_NOTE_BYTES];
        let length = self.lock.read_at(&mut note, 0)?;
        note.truncate(length);
        Ok(note)
    }

    fn write_note(&self, note: &[u8]) -> io::Result<()> {
        if self.writable {
            return self.lock.write_all_at(note, 0);
        }
        // The file system was read-only when the file was opened. It may be writable now.
        OpenOptions::new()
            .write(true)
            .open(&self.path)?
            .write_all_at(note, 0)
    }
}

fn try_lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(error) if error == Errno::WOULDBLOCK => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[derive(Debug)]
struct OpenFile(File);

impl DiskFile for OpenFile {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn allocate(&mut self, length: u64) -> io::Result<()> {
        match fallocate(&self.0, FallocateFlags::empty(), 0, length) {
            // Written zeros are allocated too, except on a file system that compresses them.
            Err(Errno::OPNOTSUPP) => self.0.write_all_at(&vec![0; length as usize], 0),
            allocated => Ok(allocated?),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }
}
