//! Reading sysfs by directory descriptor: one open, one read, one close per attribute.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, RawDir, openat, readlinkat_raw};
use rustix::io::{Errno, read};
use rustix::path::Arg;

/// A sysfs attribute is at most a page (kernel Documentation/filesystems/sysfs.rst).
const PAGE: usize = 4096;

/// A directory that names are looked up in; it is opened without the right to list it.
#[derive(Debug)]
pub(crate) struct Dir(OwnedFd);

/// What every read of a scan goes to, so that none allocates.
#[derive(Debug)]
pub(crate) struct Buffer(Box<[u8; PAGE]>);

impl Default for Buffer {
    fn default() -> Self {
        Self(Box::new([0; PAGE]))
    }
}

const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Non-blocking, so that a pipe left in a damaged tree cannot hang the scan.
const FILE: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

impl Dir {
    pub(crate) fn open(path: impl Arg) -> Result<Self, Errno> {
        openat(CWD, path, PLACE, Mode::empty()).map(Self)
    }

    pub(crate) fn enter(&self, name: &[u8]) -> Result<Self, Errno> {
        openat(&self.0, name, PLACE, Mode::empty()).map(Self)
    }

    /// The content of a file, without the line end.
    pub(crate) fn read<'b>(&self, name: &[u8], buffer: &'b mut Buffer) -> Result<&'b [u8], Errno> {
        let file = openat(&self.0, name, FILE, Mode::empty())?;
        let length = read(&file, &mut buffer.0[..])?;
        if length == PAGE {
            return Err(Errno::FBIG);
        }
        Ok(buffer.0[..length].trim_ascii_end())
    }

    /// The target of a symbolic link, as it is written.
    pub(crate) fn link<'b>(&self, name: &[u8], buffer: &'b mut Buffer) -> Result<&'b [u8], Errno> {
        let length = readlinkat_raw(&self.0, name, &mut buffer.0[..])?;
        Ok(&buffer.0[..length])
    }

    /// The last component of a link's target: how sysfs names drivers, groups and functions.
    pub(crate) fn link_name<'b>(
        &self,
        name: &[u8],
        buffer: &'b mut Buffer,
    ) -> Result<&'b [u8], Errno> {
        let target = self.link(name, buffer)?;
        Ok(target.rsplit(|&byte| byte == b'/').next().unwrap_or(target))
    }

    /// Gives every name in a folder to `visit`, in the kernel's order.
    pub(crate) fn list(&self, folder: &[u8], mut visit: impl FnMut(&[u8])) -> Result<(), Errno> {
        let fd = openat(
            &self.0,
            folder,
            FILE.union(OFlags::DIRECTORY),
            Mode::empty(),
        )?;
        let mut space = [MaybeUninit::uninit(); 8 * PAGE];
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

    /// The names in a folder that `wanted` accepts, sorted; none where there is no such folder.
    pub(crate) fn names(
        &self,
        folder: &[u8],
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<String>, Errno> {
        let mut names = Vec::new();
        let listed = self.list(folder, |name| {
            if wanted(name) {
                names.push(String::from_utf8_lossy(name).into_owned());
            }
        });
        match listed {
            Ok(()) | Err(Errno::NOENT) => {
                names.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
                Ok(names)
            }
            Err(errno) => Err(errno),
        }
    }
}

/// The listing of PCI functions, and the folder that the last one was found in.
///
/// Reading below that folder spares the kernel the walk through a function's symlink for each of its files;
/// neighbours in address order mostly share it.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) dir: Dir,
    parent: Option<(Vec<u8>, Dir)>,
}

impl Listing {
    pub(crate) fn new(dir: Dir) -> Self {
        Self { dir, parent: None }
    }

    /// The folder that holds the target of a function's link.
    pub(crate) fn parent_of(&mut self, target: &[u8]) -> Result<&Dir, Errno> {
        let end = target.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        let path = &target[..end];
        let known = self.parent.take().filter(|(known, _)| known == path);
        let parent = match known {
            Some(parent) => parent,
            None => (path.to_vec(), self.dir.enter(path)?),
        };
        Ok(&self.parent.insert(parent).1)
    }
}
