//! The file operations that durability rests on, as a trait: tests put a disk behind it that fails, tears and crashes.

use std::fmt::Debug;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, flock};

/// More than any note.
const NOTE: usize = 512;

pub trait Disk: Debug + Send + Sync {
    /// Creates `dir`, readable by its owner alone; false if it exists, `NotFound` if its parent does not.
    fn create_dir(&self, dir: &Path) -> io::Result<bool>;
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// At most the first `length` bytes of a regular file; empty for anything else.
    fn read_start(&self, path: &Path, length: usize) -> io::Result<Vec<u8>>;
    /// Creates `path` empty, whatever was there.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives `from` the second name `to`.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Opens `path`, which is there, for writing.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Takes the lock `path` for as long as the result lives, alone or with others that share it; `WouldBlock` if
    /// another excludes that. On a read-only file system an existing lock file can be locked.
    fn lock(&self, path: &Path, shared: bool) -> io::Result<Box<dyn Debug + Send + Sync>>;
    /// The turnstile at `path`, closed. On a read-only file system its files must exist, and a note cannot be written.
    fn turnstile(&self, path: &Path) -> io::Result<Box<dyn Turnstile>>;
}

/// Lets one process through at a time, in the order in which they came. It opens with the death of who is inside.
pub trait Turnstile: Debug + Send + Sync {
    /// Goes through, or stands in the queue; false where another is inside or ahead.
    fn try_enter(&self) -> io::Result<bool>;
    /// Goes out, or out of the queue.
    fn leave(&self);
    /// Whether another process stands in the queue.
    fn queued(&self) -> bool;
    /// What whoever wrote last left here; empty at first.
    fn note(&self) -> io::Result<Vec<u8>>;
    fn write_note(&self, note: &[u8]) -> io::Result<()>;
}

pub trait DiskFile: Debug + Send {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// fdatasync(2). After an error the page cache may hold what the disk does not: the file must not be used again.
    fn sync(&mut self) -> io::Result<()>;
}

/// The operating system's own files.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileSystem;

impl Disk for FileSystem {
    fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        match DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => Ok(true),
            // A read-only file system may refuse before it says that the name exists.
            Err(_) if dir.is_dir() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for file in dir.read_dir()? {
            // A name that is not UTF-8 is not one of the ledger's.
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
        // For the message that a second process prints. A full or read-only disk must not keep the first one from
        // running.
        let _ = file
            .set_len(0)
            .and_then(|()| file.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0));
        Ok(Box::new(file))
    }

    fn turnstile(&self, path: &Path) -> io::Result<Box<dyn Turnstile>> {
        let (inside, writable) = lock_file(path)?;
        Ok(Box::new(FileTurnstile {
            inside,
            path: path.to_owned(),
            writable,
            next: lock_file(&path.with_extension("next"))?.0,
            is_next: AtomicBool::new(false),
        }))
    }
}

/// The file, and whether it can be written: flock(2) needs no more than a file that can be read.
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

/// Two locks: who waits for the first holds the second, so that whoever has just left cannot go in again before them.
#[derive(Debug)]
struct FileTurnstile {
    inside: File,
    path: PathBuf,
    /// Whether `inside` was opened for writing.
    writable: bool,
    next: File,
    is_next: AtomicBool,
}

impl Turnstile for FileTurnstile {
    fn try_enter(&self) -> io::Result<bool> {
        if !self.is_next.load(Ordering::Relaxed) {
            if !try_lock(&self.next)? {
                return Ok(false);
            }
            self.is_next.store(true, Ordering::Relaxed);
        }
        if !try_lock(&self.inside)? {
            return Ok(false);
        }
        self.is_next.store(false, Ordering::Relaxed);
        flock(&self.next, FlockOperation::NonBlockingUnlock)?;
        Ok(true)
    }

    fn leave(&self) {
        self.is_next.store(false, Ordering::Relaxed);
        // flock(2) has no reason to refuse an unlock.
        let _ = flock(&self.next, FlockOperation::NonBlockingUnlock);
        let _ = flock(&self.inside, FlockOperation::NonBlockingUnlock);
    }

    fn queued(&self) -> bool {
        if self.is_next.load(Ordering::Relaxed) {
            return false;
        }
        let free = try_lock(&self.next).unwrap_or(false);
        if free {
            let _ = flock(&self.next, FlockOperation::NonBlockingUnlock);
        }
        !free
    }

    fn note(&self) -> io::Result<Vec<u8>> {
        let mut note = vec![0; NOTE];
        let length = self.inside.read_at(&mut note, 0)?;
        note.truncate(length);
        Ok(note)
    }

    fn write_note(&self, note: &[u8]) -> io::Result<()> {
        if self.writable {
            return self.inside.write_all_at(note, 0);
        }
        // The file system was read-only when the file was opened, and may be writable by now.
        OpenOptions::new()
            .write(true)
            .open(&self.path)?
            .write_all_at(note, 0)
    }
}

fn try_lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(error) if error == rustix::io::Errno::WOULDBLOCK => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[derive(Debug)]
struct OpenFile(File);

impl DiskFile for OpenFile {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }
}
