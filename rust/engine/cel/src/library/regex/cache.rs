//! An LRU cache of compiled patterns, shared by all evaluations and limited in bytes.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use super::{Pattern, compile};
use crate::budget::Budget;
use crate::fault::Fault;

/// The size limit of the cache in bytes. It also limits each pattern, and the constant patterns of one expression together.
pub(crate) const PATTERN_LIMIT_BYTES: usize = 8 << 20;

static CACHE: LazyLock<Mutex<PatternCache>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct PatternCache {
    patterns: HashMap<Box<str>, Entry>,
    bytes: usize,
    /// A counter of lookups, the clock of the LRU order.
    now: u64,
}

struct Entry {
    pattern: Arc<Pattern>,
    bytes: usize,
    used: u64,
}

/// The compiled pattern. A pattern that is not cached is compiled, charged, and added to the cache.
pub(crate) fn find_or_compile(text: &str, budget: &mut Budget) -> Result<Arc<Pattern>, Fault> {
    if let Some(known) = find(text) {
        return Ok(known);
    }
    let pattern = Arc::new(compile(text)?);
    budget.charge(pattern.bytes())?;
    insert(text, &pattern);
    Ok(pattern)
}

/// The pattern, if it is cached.
pub(crate) fn find(text: &str) -> Option<Arc<Pattern>> {
    lock().find(text)
}

/// Adds a pattern to the cache.
pub(crate) fn insert(text: &str, pattern: &Arc<Pattern>) {
    lock().insert(text, pattern);
}

fn lock() -> MutexGuard<'static, PatternCache> {
    CACHE.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl PatternCache ===

impl PatternCache {
    fn find(&mut self, text: &str) -> Option<Arc<Pattern>> {
        self.now += 1;
        let entry = self.patterns.get_mut(text)?;
        entry.used = self.now;
        Some(Arc::clone(&entry.pattern))
    }

    fn insert(&mut self, text: &str, pattern: &Arc<Pattern>) {
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
    fn the_cache_stays_within_the_limit_and_evicts_the_oldest() {
        let mut cache = PatternCache::default();
        for number in 0..2_000 {
            let text = format!("^gpu-{number}-[a-z]+$");
            let pattern = Arc::new(compile(&text).expect("a pattern"));
            cache.insert(&text, &pattern);
            assert!(cache.bytes <= PATTERN_LIMIT_BYTES);
        }
        let sum: usize = cache.patterns.values().map(|entry| entry.bytes).sum();
        assert_eq!(sum, cache.bytes);
        assert!(cache.find("^gpu-1999-[a-z]+$").is_some());
        assert!(cache.find("^gpu-0-[a-z]+$").is_none());
    }
}
