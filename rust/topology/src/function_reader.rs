//! Reads the files of one PCI function.

use rustix::io::Errno;

use crate::error::{Problem, describe};
use crate::files::{Buffer, Dir};

/// Reads the attributes of one function. An attribute that cannot be read is reported as a [`Problem`] and is unknown.
#[derive(Debug)]
pub(crate) struct FunctionReader<'a> {
    parent: &'a Dir,
    name: &'a str,
    /// The function's name, a slash, and the file that was read last.
    path: Vec<u8>,
    buffer: &'a mut Buffer,
    problems: &'a mut Vec<Problem>,
    /// The directory and the escaped bytes of names that are not UTF-8.
    pub(crate) invalid_names: Vec<String>,
}

impl<'a> FunctionReader<'a> {
    /// Creates a reader of the function `name` in the directory `parent`.
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
            invalid_names: Vec::new(),
        }
    }

    fn locate(&mut self, file: &str) {
        self.path.truncate(self.name.len() + 1);
        self.path.extend_from_slice(file.as_bytes());
    }

    /// Returns the content of a file, without the trailing newline.
    pub(crate) fn read(&mut self, file: &str) -> Result<&[u8], Errno> {
        self.locate(file);
        self.parent.read(&self.path, self.buffer)
    }

    pub(crate) fn problem(&self, file: &str, message: impl Into<String>) -> Problem {
        Problem::new(format!("{}/{file}", self.name), message)
    }

    pub(crate) fn report(&mut self, file: &str, message: impl Into<String>) {
        self.problems.push(self.problem(file, message));
    }

    /// Reads an attribute that may be missing. The kernel returns EINVAL if the device does not support the attribute.
    pub(crate) fn optional<T>(
        &mut self,
        file: &str,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Option<T> {
        let message = match self.read(file) {
            Ok(text) => match parse(text) {
                Some(value) => return Some(value),
                None => unexpected_content(text),
            },
            Err(Errno::NOENT | Errno::INVAL) => return None,
            Err(errno) => describe(errno),
        };
        self.report(file, message);
        None
    }

    /// Reads a link that may be missing, and parses the last component of its target.
    pub(crate) fn link_target<T>(
        &mut self,
        link: &str,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Option<T> {
        self.locate(link);
        let message = match self.parent.link_name(&self.path, self.buffer) {
            Ok(target) => match parse(target) {
                Some(value) => return Some(value),
                None => unexpected_content(target),
            },
            // Recorded trees contain an empty file if the target was not recorded.
            Err(Errno::NOENT | Errno::INVAL) => return None,
            Err(errno) => describe(errno),
        };
        self.report(link, message);
        None
    }

    pub(crate) fn has_dir(&mut self, dir: &str) -> bool {
        self.locate(dir);
        self.parent.open_dir(&self.path).is_ok()
    }

    /// Returns the names in a directory that may be missing. A name that is not UTF-8 is reported and left out.
    pub(crate) fn names(&mut self, dir: &str, filter: impl Fn(&[u8]) -> bool) -> Vec<String> {
        self.locate(dir);
        match self.parent.names(&self.path, filter) {
            Ok(names) => {
                for name in names.invalid {
                    self.report(dir, format!("{name} is not UTF-8, so it is ignored"));
                    self.invalid_names.push(format!("{dir}/{name}"));
                }
                names.text
            }
            Err(errno) => {
                self.report(dir, describe(errno));
                Vec::new()
            }
        }
    }
}

/// Describes the content of a file in a message, shortened.
pub(crate) fn unexpected_content(text: &[u8]) -> String {
    const MAX_CHARS: usize = 40;
    let shown: String = String::from_utf8_lossy(text)
        .chars()
        .take(MAX_CHARS)
        .collect();
    let more = if text.len() > MAX_CHARS { "..." } else { "" };
    format!("unexpected content {shown:?}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stay_short_and_printable() {
        assert_eq!(
            unexpected_content(b"\xff\x00!"),
            "unexpected content \"\u{fffd}\\0!\""
        );
        assert!(unexpected_content(&[b'x'; 4000]).len() < 80);
    }
}
