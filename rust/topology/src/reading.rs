//! Reading one function's files: what cannot be read is reported once and then taken as unknown.

use rustix::io::Errno;

use crate::error::{Problem, describe};
use crate::files::{Buffer, Dir};

/// The attributes of one function; what cannot be read is reported once and then taken as unknown.
#[derive(Debug)]
pub(crate) struct Attributes<'a> {
    parent: &'a Dir,
    name: &'a str,
    /// The name and a slash, then whatever was read last.
    path: Vec<u8>,
    buffer: &'a mut Buffer,
    problems: &'a mut Vec<Problem>,
}

impl<'a> Attributes<'a> {
    /// Of the function called `name` in the folder `parent`.
    pub(crate) fn new(
        parent: &'a Dir,
        name: &'a str,
        buffer: &'a mut Buffer,
        problems: &'a mut Vec<Problem>,
    ) -> Self {
        let mut path = Vec::with_capacity(64);
        path.extend_from_slice(name.as_bytes());
        path.push(b'/');
        Self {
            parent,
            name,
            path,
            buffer,
            problems,
        }
    }

    fn locate(&mut self, file: &str) {
        self.path.truncate(self.name.len() + 1);
        self.path.extend_from_slice(file.as_bytes());
    }

    /// The content of a file, without the line end.
    pub(crate) fn read(&mut self, file: &str) -> Result<&[u8], Errno> {
        self.locate(file);
        self.parent.read(&self.path, self.buffer)
    }

    pub(crate) fn problem(&self, file: &str, what: impl Into<String>) -> Problem {
        Problem::new(format!("{}/{file}", self.name), what)
    }

    pub(crate) fn report(&mut self, file: &str, what: impl Into<String>) {
        self.problems.push(self.problem(file, what));
    }

    /// An attribute that may be missing; EINVAL is the kernel's answer for "not on this device".
    pub(crate) fn value<T>(&mut self, file: &str, parse: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
        let what = match self.read(file) {
            Ok(text) => match parse(text) {
                Some(value) => return Some(value),
                None => unexpected(text),
            },
            Err(Errno::NOENT | Errno::INVAL) => return None,
            Err(errno) => describe(errno),
        };
        self.report(file, what);
        None
    }

    /// A link that may be missing, by the last component of its target.
    pub(crate) fn linked<T>(
        &mut self,
        link: &str,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Option<T> {
        self.locate(link);
        let what = match self.parent.link_name(&self.path, self.buffer) {
            Ok(target) => match parse(target) {
                Some(value) => return Some(value),
                None => unexpected(target),
            },
            // Recorded trees hold an empty file where the target was not recorded.
            Err(Errno::NOENT | Errno::INVAL) => return None,
            Err(errno) => describe(errno),
        };
        self.report(link, what);
        None
    }

    /// The names in a folder that may be missing.
    pub(crate) fn names(&mut self, folder: &str, prefix: &[u8]) -> Vec<String> {
        self.locate(folder);
        match self
            .parent
            .names(&self.path, |name| name.starts_with(prefix))
        {
            Ok(names) => names,
            Err(errno) => {
                self.report(folder, describe(errno));
                Vec::new()
            }
        }
    }
}

/// What a file holds, short enough for a message.
pub(crate) fn unexpected(text: &[u8]) -> String {
    const SHOWN: usize = 40;
    let shown: String = String::from_utf8_lossy(text).chars().take(SHOWN).collect();
    let more = if text.len() > SHOWN { "..." } else { "" };
    format!("unexpected content {shown:?}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stay_short_and_printable() {
        assert_eq!(
            unexpected(b"\xff\x00!"),
            "unexpected content \"\u{fffd}\\0!\""
        );
        assert!(unexpected(&[b'x'; 4000]).len() < 80);
    }
}
