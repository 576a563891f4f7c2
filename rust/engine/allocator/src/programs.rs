//! Compiled expressions by their text, kept for later queries.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dra_cel::Program;

/// Limit for all kept expressions, in approximate bytes.
const MAX_KEPT_BYTES: usize = 64 << 20;
/// Approximate memory of a compiled expression for each byte of its text, without regular expressions.
const BYTES_PER_BYTE: usize = 64;

/// Ids are unique in the process, because slices keep results by id.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// An expression that was compiled, or the reason why it does not compile.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) id: u64,
    pub(crate) program: Result<Program, String>,
}

impl Compiled {
    fn new(expression: &str) -> Self {
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            program: Program::compile(expression).map_err(|error| error.to_string()),
        }
    }

    /// Memory of the compiled regular expressions, in bytes.
    pub(crate) fn pattern_bytes(&self) -> usize {
        self.program.as_ref().map_or(0, Program::pattern_bytes)
    }
}

/// Compiled expressions. Safe for threads; none waits for a compilation.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    kept: Mutex<Kept>,
    compilations: AtomicU64,
    evaluations: AtomicU64,
}

#[derive(Debug, Default)]
struct Kept {
    by_expression: HashMap<Arc<str>, Entry>,
    bytes: usize,
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    compiled: Arc<Compiled>,
    bytes: usize,
    last_use: u64,
}

impl Programs {
    /// The compiled expression. It is compiled if it is not kept.
    pub(crate) fn get(&self, expression: &str) -> Arc<Compiled> {
        if let Some(known) = self.kept().find(expression) {
            return known;
        }
        let compiled = Arc::new(Compiled::new(expression));
        self.compilations.fetch_add(1, Ordering::Relaxed);
        self.kept().add(expression, compiled)
    }

    pub(crate) fn count_evaluation(&self) {
        self.evaluations.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of compilations so far.
    pub(crate) fn compilations(&self) -> u64 {
        self.compilations.load(Ordering::Relaxed)
    }

    /// The number of evaluations on a device so far.
    pub(crate) fn evaluations(&self) -> u64 {
        self.evaluations.load(Ordering::Relaxed)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn find(&mut self, expression: &str) -> Option<Arc<Compiled>> {
        self.uses += 1;
        let entry = self.by_expression.get_mut(expression)?;
        entry.last_use = self.uses;
        Some(Arc::clone(&entry.compiled))
    }

    /// Adds an expression, unless another thread was faster, and drops the least recently used ones beyond the limit.
    fn add(&mut self, expression: &str, compiled: Arc<Compiled>) -> Arc<Compiled> {
        if let Some(known) = self.find(expression) {
            return known;
        }
        let bytes = BYTES_PER_BYTE * (expression.len() + 1) + compiled.pattern_bytes();
        self.bytes += bytes;
        let entry = Entry {
            compiled: Arc::clone(&compiled),
            bytes,
            last_use: self.uses,
        };
        self.by_expression.insert(expression.into(), entry);
        while self.bytes > MAX_KEPT_BYTES && self.by_expression.len() > 1 {
            self.drop_oldest();
        }
        compiled
    }

    fn drop_oldest(&mut self) {
        let oldest = self
            .by_expression
            .iter()
            .min_by_key(|(_, entry)| entry.last_use)
            .map(|(expression, _)| Arc::clone(expression));
        if let Some(entry) = oldest.and_then(|oldest| self.by_expression.remove(&oldest)) {
            self.bytes -= entry.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_compiled_once() {
        let programs = Programs::default();
        let first = programs.get("true");
        assert_eq!(programs.get("true").id, first.id);
        assert_ne!(programs.get("false").id, first.id);
        assert_eq!(programs.compilations(), 2);
        assert!(programs.get("not an expression").program.is_err());
    }

    #[test]
    fn the_least_recently_used_expression_is_dropped_beyond_the_limit() {
        let programs = Programs::default();
        let long = |number: usize| format!("{number} >= 0 && '{}' != ''", "x".repeat(10_000));
        let first = programs.get(&long(0)).id;
        let mut number = 1;
        while programs.kept().bytes + BYTES_PER_BYTE * 10_100 <= MAX_KEPT_BYTES {
            programs.get(&long(number));
            number += 1;
        }
        assert_eq!(programs.get(&long(0)).id, first);
        for more in 0..3 {
            programs.get(&long(number + more));
        }
        assert!(programs.kept().bytes <= MAX_KEPT_BYTES);
        assert_eq!(programs.get(&long(0)).id, first, "used last");
        let compilations = programs.compilations();
        programs.get(&long(1));
        assert_eq!(programs.compilations(), compilations + 1, "the oldest");
    }
}
