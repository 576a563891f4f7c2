//! Patterns that stay compiled from one evaluation to the next: those used last, up to a number of bytes.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use super::{Pattern, compile};
use crate::budget::Budget;
use crate::fault::Fault;

/// Bytes of all patterns that are kept; one that takes more is refused, and so are the constant ones of an expression together.
pub(crate) const PATTERN_LIMIT_BYTES: usize = 8 << 20;

static KEPT: LazyLock<Mutex<Kept>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Kept {
    patterns: HashMap<Box<str>, Entry>,
    bytes: usize,
    /// Counts uses.
    now: u64,
}

struct Entry {
    pattern: Arc<Pattern>,
    bytes: usize,
    used: u64,
}

/// The compiled pattern. One that is not known is compiled, charged, and kept.
pub(crate) fn find_or_compile(text: &str, budget: &mut Budget) -> Result<Arc<Pattern>, Fault> {
    if let Some(known) = find(text) {
        return Ok(known);
    }
    let pattern = Arc::new(compile(text)?);
    budget.take(pattern.bytes())?;
    keep(text, &pattern);
    Ok(pattern)
}

/// A pattern that is compiled already.
pub(crate) fn find(text: &str) -> Option<Arc<Pattern>> {
    lock().find(text)
}

/// Keeps a pattern for later evaluations.
pub(crate) fn keep(text: &str, pattern: &Arc<Pattern>) {
    lock().keep(text, pattern);
}

fn lock() -> MutexGuard<'static, Kept> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Kept ===

impl Kept {
    fn find(&mut self, text: &str) -> Option<Arc<Pattern>> {
        self.now += 1;
        let entry = self.patterns.get_mut(text)?;
        entry.used = self.now;
        Some(Arc::clone(&entry.pattern))
    }

    fn keep(&mut self, text: &str, pattern: &Arc<Pattern>) {
        let bytes = pattern.bytes() + text.len();
        if bytes > PATTERN_LIMIT_BYTES || self.patterns.contains_key(text) {
            return;
        }
        while self.bytes + bytes > PATTERN_LIMIT_BYTES {
            let oldest = self.patterns.iter().min_by_key(|(_, entry)| entry.used);
            let Some(oldest) = oldest.map(|(text, _)| text.clone()) else {
                break;
            };
            if let Some(entry) = self.patterns.remove(&oldest) {
                self.bytes -= entry.bytes;
            }
        }
        self.bytes += bytes;
        self.now += 1;
        let entry = Entry {
            pattern: Arc::clone(pattern),
            bytes,
            used: self.now,
        };
        self.patterns.insert(Box::from(text), entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_stays_within_the_limit_and_the_oldest_goes_first() {
        let mut kept = Kept::default();
        for number in 0..2_000 {
            let text = format!("^gpu-{number}-[a-z]+$");
            let pattern = Arc::new(compile(&text).expect("a pattern"));
            kept.keep(&text, &pattern);
            assert!(kept.bytes <= PATTERN_LIMIT_BYTES);
        }
        let sum: usize = kept.patterns.values().map(|entry| entry.bytes).sum();
        assert_eq!(sum, kept.bytes);
        assert!(kept.find("^gpu-1999-[a-z]+$").is_some());
        assert!(kept.find("^gpu-0-[a-z]+$").is_none());
    }
}
