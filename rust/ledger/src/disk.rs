//! The file operations that durability rests on, as a trait: tests put a disk behind it that fails, tears and crashes.

use std::fmt::Debug;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

pub trait Disk: Debug + Send + Sync {
    /// Creates `dir` and its parents, readable by its owner alone. An existing one is fine.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Creates `path` empty, whatever was there.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives `from` the second name `to`.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Takes the lock `path` for as long as the result lives; `WouldBlock` if another has it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Debug + Send + Sync>>;
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
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)
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

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Debug + Send + Sync>> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.set_len(0)?;
        // For the message that a second process prints. A full disk must not keep the first one from running.
        let _ = file.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0);
        Ok(Box::new(file))
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
