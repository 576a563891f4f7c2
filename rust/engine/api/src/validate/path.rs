//! The path of the field under validation, and the report of errors.

use std::fmt;

use super::Expression;
use crate::codec::FieldError;

#[derive(Debug, Clone, Copy)]
enum Segment<'a> {
    Root,
    Member(&'a str),
    Index(usize),
    Key(&'a str),
}

/// A field of the object, linked to its parent. Formatted only for an error.
#[derive(Debug, Clone, Copy)]
pub(super) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    segment: Segment<'a>,
}

impl<'a> Path<'a> {
    pub(super) fn root() -> Self {
        Self {
            parent: None,
            segment: Segment::Root,
        }
    }

    pub(super) fn member(&'a self, name: &'a str) -> Self {
        Self {
            parent: Some(self),
            segment: Segment::Member(name),
        }
    }

    pub(super) fn index(&'a self, index: usize) -> Self {
        Self {
            parent: Some(self),
            segment: Segment::Index(index),
        }
    }

    pub(super) fn key(&'a self, key: &'a str) -> Self {
        Self {
            parent: Some(self),
            segment: Segment::Key(key),
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.segment {
            Segment::Root => Ok(()),
            Segment::Member(name) => {
                let first = self
                    .parent
                    .is_none_or(|parent| matches!(parent.segment, Segment::Root));
                write!(f, "{}{name}", if first { "" } else { "." })
            }
            Segment::Index(index) => write!(f, "[{index}]"),
            Segment::Key(key) => write!(f, "[{key}]"),
        }
    }
}

/// The errors and CEL expressions found so far.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) errors: Vec<FieldError>,
    pub(super) expressions: Vec<Expression>,
}

impl Report {
    pub(super) fn fail(&mut self, path: &Path<'_>, message: impl Into<String>) {
        self.errors.push(FieldError::new(path.to_string(), message));
    }

    pub(super) fn expression(&mut self, path: &Path<'_>, text: &str) {
        self.expressions.push(Expression {
            field: path.to_string(),
            text: text.to_owned(),
        });
    }

    /// Reports a list that exceeds `limit`. Returns false if so; the caller then skips the entries.
    pub(super) fn at_most(&mut self, limit: usize, count: usize, path: &Path<'_>) -> bool {
        if count > limit {
            self.fail(path, format!("has {count} entries, the limit is {limit}"));
        }
        count <= limit
    }

    /// Reports every entry with the key of an earlier entry.
    pub(super) fn unique<'k>(&mut self, keys: impl Iterator<Item = &'k str>, path: &Path<'_>) {
        let mut seen = std::collections::HashSet::new();
        for (index, key) in keys.enumerate() {
            if !seen.insert(key) {
                self.fail(&path.index(index), format!("{key:?} is there twice"));
            }
        }
    }
}
