//! A disk in memory that fails, tears and loses power on demand, with the page cache's rules.
//!
//! What is written is visible at once and durable after a sync. A failed sync leaves the data visible, marks it clean
//! and never makes it durable, as ext4 and XFS do (fsync(2), errors since Linux 4.13). A power cut keeps, of what was
//! not durable, an arbitrary part of each write and of the names.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dra_ledger::{Disk, DiskFile, QueueLock};

#[derive(Clone, Debug, Default)]
pub struct FaultyDisk(Arc<Mutex<Inner>>);

type Inode = u64;

#[derive(Debug, Default)]
struct Inner {
    files: BTreeMap<Inode, Content>,
    names: BTreeMap<PathBuf, Inode>,
    durable_names: BTreeMap<PathBuf, Inode>,
    next: Inode,
    operations: u64,
    plan: Option<Plan>,
    /// Whether the file system is mounted read-only.
    read_only: bool,
    locked: Option<bool>,
    sharers: usize,
    /// The queue lock: its holder, and the next one in the queue.
    holder: Option<u64>,
    queued: Option<u64>,
    queue_locks: u64,
    note: Vec<u8>,
    thrifty: bool,
    /// The size of the disk in bytes; `None` for unlimited.
    capacity: Option<u64>,
}

const BLOCK_BYTES: u64 = 4096;

/// Zeros at the end of a write that a thrifty disk stores.
const KEPT_ZEROS: usize = 64;

#[derive(Clone, Debug, Default)]
struct Content {
    /// The length, which is that of `visible` except on a thrifty disk.
    length: u64,
    durable_length: u64,
    visible: Vec<u8>,
    durable: Vec<u8>,
    /// Writes since the last sync.
    dirty: Vec<(u64, Vec<u8>)>,
}

/// From the `at`-th operation that changes the disk on, `count` of them fail with `kind`.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub at: u64,
    pub count: u64,
    pub kind: io::ErrorKind,
    /// One more operation that fails; 0 for none.
    pub also: u64,
}

#[derive(Debug)]
struct Handle {
    disk: FaultyDisk,
    inode: Inode,
}

#[derive(Debug)]
struct Lock(FaultyDisk);

impl Drop for Lock {
    fn drop(&mut self) {
        let mut inner = self.0.inner();
        inner.sharers = inner.sharers.saturating_sub(1);
        if inner.sharers == 0 {
            inner.locked = None;
        }
    }
}

impl FaultyDisk {
    /// A disk that stores little of the space that journals preallocate: for many small histories.
    pub fn thrifty() -> Self {
        let disk = Self::default();
        disk.inner().thrifty = true;
        disk
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a file durably.
    pub fn plant(&self, path: &str, bytes: &[u8]) {
        let mut inner = self.inner();
        inner.next += 1;
        let inode = inner.next;
        inner.files.insert(
            inode,
            Content {
                length: bytes.len() as u64,
                durable_length: bytes.len() as u64,
                visible: bytes.to_vec(),
                durable: bytes.to_vec(),
                dirty: Vec::new(),
            },
        );
        inner.names.insert(path.into(), inode);
        inner.durable_names.insert(path.into(), inode);
    }

    pub fn contents(&self, path: &str) -> Vec<u8> {
        self.read(Path::new(path)).unwrap()
    }

    pub fn fail(&self, plan: Option<Plan>) {
        let mut inner = self.inner();
        inner.operations = 0;
        inner.plan = plan;
    }

    /// Lets files grow by `bytes` in all, or without a limit.
    pub fn leave(&self, bytes: Option<u64>) {
        let mut inner = self.inner();
        inner.capacity = bytes.map(|bytes| inner.used() + bytes);
    }

    /// Mounts the file system read-only, or writable again.
    pub fn remount(&self, read_only: bool) {
        self.inner().read_only = read_only;
    }

    pub fn operations(&self) -> u64 {
        self.inner().operations
    }

    /// The disk after a power cut; `luck` decides which unsynced data survived.
    pub fn power_cut(&self, luck: &mut dyn FnMut(usize) -> usize) -> Self {
        let inner = self.inner();
        let names = if inner.names == inner.durable_names || luck(2) == 0 {
            &inner.durable_names
        } else {
            &inner.names
        };
        let mut files = BTreeMap::new();
        for inode in names.values() {
            let mut content = inner.files[inode].durable.clone();
            for (offset, bytes) in &inner.files[inode].dirty {
                let kept = luck(bytes.len() + 1);
                let from = if luck(4) == 0 { luck(kept + 1) } else { 0 };
                put(&mut content, *offset + from as u64, &bytes[from..kept]);
            }
            let length = inner.files[inode].durable_length.max(content.len() as u64);
            files.insert(
                *inode,
                Content {
                    length,
                    durable_length: length,
                    visible: content.clone(),
                    durable: content,
                    dirty: Vec::new(),
                },
            );
        }
        let after = Inner {
            files,
            names: names.clone(),
            durable_names: names.clone(),
            next: inner.next,
            thrifty: inner.thrifty,
            capacity: inner.capacity,
            ..Inner::default()
        };
        Self(Arc::new(Mutex::new(after)))
    }

    /// The same files after the process was killed: the page cache still exists.
    pub fn process_killed(&self) -> Self {
        let inner = self.inner();
        let after = Inner {
            files: inner.files.clone(),
            names: inner.names.clone(),
            durable_names: inner.durable_names.clone(),
            next: inner.next,
            note: inner.note.clone(),
            thrifty: inner.thrifty,
            capacity: inner.capacity,
            ..Inner::default()
        };
        Self(Arc::new(Mutex::new(after)))
    }
}

fn put(content: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let offset = offset as usize;
    if bytes.is_empty() {
        return;
    }
    if content.len() < offset + bytes.len() {
        let mut longer = vec![0; offset + bytes.len()];
        longer[..content.len()].copy_from_slice(content);
        *content = longer;
    }
    content[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// The offset at which the zeros at the end of `bytes` start. They are compared in blocks, because there may be many.
pub fn without_zeros(bytes: &[u8]) -> usize {
    const BLOCK: usize = 4096;
    let blocks = bytes.rchunks_exact(BLOCK);
    let zeros = blocks.take_while(|block| **block == [0; BLOCK]).count() * BLOCK;
    let rest = &bytes[..bytes.len() - zeros];
    rest.iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1)
}

impl Inner {
    fn step(&mut self) -> io::Result<()> {
        self.operations += 1;
        if self.read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        match self.plan {
            Some(plan)
                if self.operations == plan.also
                    || (self.operations >= plan.at && self.operations - plan.at < plan.count) =>
            {
                Err(plan.kind.into())
            }
            _ => Ok(()),
        }
    }

    /// The space of all files, in whole blocks.
    fn used(&self) -> u64 {
        let inodes: BTreeSet<Inode> = self.names.values().copied().collect();
        let lengths = inodes.iter().map(|inode| self.files[inode].length);
        lengths
            .map(|length| length.next_multiple_of(BLOCK_BYTES))
            .sum()
    }

    /// Allocates the space of a file up to `length`; returns the length that it has then.
    fn grow(&mut self, inode: Inode, length: u64) -> (u64, io::Result<()>) {
        let used = self.used();
        let capacity = self.capacity;
        let Some(file) = self.files.get_mut(&inode) else {
            return (0, Ok(()));
        };
        let before = file.length;
        let more =
            length.max(before).next_multiple_of(BLOCK_BYTES) - before.next_multiple_of(BLOCK_BYTES);
        if more > 0 && capacity.is_some_and(|capacity| used + more > capacity) {
            return (before, Err(io::ErrorKind::StorageFull.into()));
        }
        file.length = length.max(before);
        (file.length, Ok(()))
    }

    fn inode(&self, path: &Path) -> io::Result<Inode> {
        self.names
            .get(path)
            .copied()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for FaultyDisk {
    fn create_dir(&self, _: &Path) -> io::Result<bool> {
        Ok(false)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let names = self
            .inner()
            .names
            .keys()
            .filter(|path| path.parent() == Some(dir))
            .cloned()
            .collect::<Vec<_>>();
        Ok(names
            .iter()
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect())
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let inner = self.inner();
        Ok(inner.files[&inner.inode(path)?].visible.clone())
    }

    fn read_start(&self, path: &Path, length: usize) -> io::Result<Vec<u8>> {
        let mut start = self.read(path)?;
        start.truncate(length);
        Ok(start)
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        let inner = self.inner();
        Ok(inner.files[&inner.inode(path)?].length)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut inner = self.inner();
        inner.step()?;
        inner.next += 1;
        let inode = inner.next;
        inner.files.insert(inode, Content::default());
        inner.names.insert(path.to_owned(), inode);
        Ok(Box::new(Handle {
            disk: self.clone(),
            inode,
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        inner.step()?;
        let inode = inner.inode(from)?;
        inner.names.remove(from);
        inner.names.insert(to.to_owned(), inode);
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        inner.step()?;
        let inode = inner.inode(from)?;
        inner.names.insert(to.to_owned(), inode);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        inner.step()?;
        inner.inode(path)?;
        inner.names.remove(path);
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        inner.step()?;
        inner.durable_names = inner.names.clone();
        Ok(())
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let inner = self.inner();
        let inode = inner.inode(path)?;
        if inner.read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        Ok(Box::new(Handle {
            disk: self.clone(),
            inode,
        }))
    }

    fn lock(&self, _: &Path, shared: bool) -> io::Result<Box<dyn Debug + Send + Sync>> {
        let mut inner = self.inner();
        if inner
            .locked
            .is_some_and(|by_sharers| !(by_sharers && shared))
        {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        inner.locked = Some(shared);
        inner.sharers += 1;
        Ok(Box::new(Lock(self.clone())))
    }

    fn queue_lock(&self, _: &Path) -> io::Result<Box<dyn QueueLock>> {
        let mut inner = self.inner();
        inner.queue_locks += 1;
        Ok(Box::new(FaultyQueueLock {
            disk: self.clone(),
            number: inner.queue_locks,
        }))
    }
}

#[derive(Debug)]
struct FaultyQueueLock {
    disk: FaultyDisk,
    number: u64,
}

impl QueueLock for FaultyQueueLock {
    fn try_acquire(&self) -> io::Result<bool> {
        let mut inner = self.disk.inner();
        if *inner.queued.get_or_insert(self.number) != self.number || inner.holder.is_some() {
            return Ok(false);
        }
        (inner.queued, inner.holder) = (None, Some(self.number));
        Ok(true)
    }

    fn release(&self) {
        let mut inner = self.disk.inner();
        inner.queued = inner.queued.filter(|number| *number != self.number);
        inner.holder = inner.holder.filter(|number| *number != self.number);
    }

    fn is_contended(&self) -> bool {
        self.disk
            .inner()
            .queued
            .is_some_and(|number| number != self.number)
    }

    fn read_note(&self) -> io::Result<Vec<u8>> {
        Ok(self.disk.inner().note.clone())
    }

    fn write_note(&self, note: &[u8]) -> io::Result<()> {
        let mut inner = self.disk.inner();
        inner.step()?;
        inner.note = note.to_vec();
        Ok(())
    }
}

impl Drop for FaultyQueueLock {
    fn drop(&mut self) {
        self.release();
    }
}

impl DiskFile for Handle {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut inner = self.disk.inner();
        let failed = inner.step();
        // A failing write leaves half of it behind.
        let bytes = if failed.is_err() {
            &bytes[..bytes.len() / 2]
        } else {
            bytes
        };
        let (length, grown) = inner.grow(self.inode, offset + bytes.len() as u64);
        let fits = length.saturating_sub(offset).min(bytes.len() as u64);
        let (bytes, failed) = (&bytes[..fits as usize], failed.and(grown));
        let bytes = if inner.thrifty {
            &bytes[..bytes.len().min(without_zeros(bytes) + KEPT_ZEROS)]
        } else {
            bytes
        };
        if let Some(file) = inner.files.get_mut(&self.inode) {
            put(&mut file.visible, offset, bytes);
            file.dirty.push((offset, bytes.to_vec()));
        }
        failed
    }

    fn allocate(&mut self, length: u64) -> io::Result<()> {
        let mut inner = self.disk.inner();
        inner.step()?;
        inner.grow(self.inode, length).1
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut inner = self.disk.inner();
        let failed = inner.step();
        if let Some(file) = inner.files.get_mut(&self.inode) {
            let dirty = std::mem::take(&mut file.dirty);
            if failed.is_ok() {
                file.durable_length = file.length;
                dirty
                    .iter()
                    .for_each(|(offset, bytes)| put(&mut file.durable, *offset, bytes));
            }
        }
        failed
    }
}
