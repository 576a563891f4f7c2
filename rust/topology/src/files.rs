//! Reads sysfs relative to directory descriptors: one open, one read and one close per attribute.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, RawDir, openat, readlinkat_raw};
use rustix::io::{Errno, read};
use rustix::path::Arg;

/// The maximum size of a sysfs attribute (kernel Documentation/filesystems/sysfs.rst).
const PAGE_BYTES: usize = 4096;

/// A directory for lookups, opened with O_PATH, which needs no read permission.
#[derive(Debug)]
pub(crate) struct Dir(OwnedFd);

/// The names in a directory, sorted. A name is bytes: the kernel accepts an interface whose name is not UTF-8.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub(crate) text: Vec<String>,
    /// Names that are not UTF-8, with these bytes escaped. A lossy name would be that of no interface.
    pub(crate) invalid: Vec<String>,
}

/// The buffer of all reads of a scan, so that a read does not allocate.
#[derive(Clone, Debug)]
pub(crate) struct Buffer(Box<[u8; PAGE_BYTES]>);

impl Default for Buffer {
    fn default() -> Self {
        Self(Box::new([0; PAGE_BYTES]))
    }
}

const DIR_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Non-blocking, so that a FIFO in a damaged tree cannot block the scan.
const FILE_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

impl Dir {
    pub(crate) fn open(path: impl Arg) -> Result<Self, Errno> {
        openat(CWD, path, DIR_FLAGS, Mode::empty()).map(Self)
    }

    pub(crate) fn open_dir(&self, name: &[u8]) -> Result<Self, Errno> {
        openat(&self.0, name, DIR_FLAGS, Mode::empty()).map(Self)
    }

    /// Returns the content of a file, without the trailing newline.
    pub(crate) fn read<'b>(&self, name: &[u8], buffer: &'b mut Buffer) -> Result<&'b [u8], Errno> {
        let file = openat(&self.0, name, FILE_FLAGS, Mode::empty())?;
        let length = read(&file, &mut buffer.0[..])?;
        if length == PAGE_BYTES {
            return Err(Errno::FBIG);
        }
        Ok(buffer.0[..length].trim_ascii_end())
    }

    /// Returns the target of a symbolic link.
    pub(crate) fn link<'b>(&self, name: &[u8], buffer: &'b mut Buffer) -> Result<&'b [u8], Errno> {
        let length = readlinkat_raw(&self.0, name, &mut buffer.0[..])?;
        Ok(&buffer.0[..length])
    }

    /// Returns the last component of a link's target, which is the name of a driver, group or function.
    pub(crate) fn link_name<'b>(
        &self,
        name: &[u8],
        buffer: &'b mut Buffer,
    ) -> Result<&'b [u8], Errno> {
        let target = self.link(name, buffer)?;
        Ok(target.rsplit(|&byte| byte == b'/').next().unwrap_or(target))
    }

    /// Calls `visit` with every name in a directory, in the kernel's order.
    pub(crate) fn list(&self, dir: &[u8], mut visit: impl FnMut(&[u8])) -> Result<(), Errno> {
        let fd = openat(
            &self.0,
            dir,
            FILE_FLAGS.union(OFlags::DIRECTORY),
            Mode::empty(),
        )?;
        let mut space = [MaybeUninit::uninit(); 8 * PAGE_BYTES];
        let mut entries = RawDir::new(fd, &mut space);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                visit(name);
            }
        }
        Ok(())
    }

    /// Returns the names in a directory that `filter` accepts; none if the directory does not exist.
    pub(crate) fn names(&self, dir: &[u8], filter: impl Fn(&[u8]) -> bool) -> Result<Names, Errno> {
        let mut names = Names::default();
        let listed = self.list(dir, |name| {
            if filter(name) {
                match std::str::from_utf8(name) {
                    Ok(text) => names.text.push(text.to_owned()),
                    Err(_) => names.invalid.push(name.escape_ascii().to_string()),
                }
            }
        });
        match listed {
            Ok(()) | Err(Errno::NOENT) => {
                names.text.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
                names.invalid.sort();
                Ok(names)
            }
            Err(errno) => Err(errno),
        }
    }
}

/// The listing of PCI functions, and the parent directory of the last one.
///
/// Reads relative to the parent directory avoid that the kernel resolves a function's symlink for each of its files.
/// Functions with adjacent addresses mostly have the same parent.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) dir: Dir,
    parent: Option<(Vec<u8>, Dir)>,
}

impl Listing {
    pub(crate) fn new(dir: Dir) -> Self {
        Self { dir, parent: None }
    }

    /// Returns the directory that contains the target of a function's link.
    pub(crate) fn parent_of(&mut self, target: &[u8]) -> Result<&Dir, Errno> {
        let end = target.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        let path = &target[..end];
        let known = self.parent.take().filter(|(known, _)| known == path);
        let parent = match known {
            Some(parent) => parent,
            None => (path.to_vec(), self.dir.open_dir(path)?),
        };
        Ok(&self.parent.insert(parent).1)
    }
}
