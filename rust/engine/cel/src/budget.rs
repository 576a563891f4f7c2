//! The memory limit and the deadline of one evaluation.
//!
//! Kubernetes assigns a low cost to some operations regardless of the size of their result. The budget charges memory
//! before it is allocated, so that an expression fails where the scheduler would run out of memory. Charges accumulate
//! over the whole evaluation: freed memory counts too, because its allocation took time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fault::Fault;
use crate::value::Value;

/// Bytes of strings, lists and maps that one evaluation may allocate.
pub const MEMORY_LIMIT_BYTES: usize = 64 << 20;
/// The time limit of an evaluation if the caller sets no deadline.
pub const EVALUATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum depth of nested lists and maps: more than any practical expression has, and safe for any stack.
const MAX_NESTING: u32 = 500;
/// One step takes much less than a microsecond.
const STEPS_PER_CLOCK_READ: usize = 4_096;
/// Bytes that can be compared, copied or counted in the time of one step.
const BYTES_PER_STEP: usize = 64;

/// Minimum capacity of a string that grows.
const MIN_CAPACITY_BYTES: usize = 16;

pub(crate) const VALUE_BYTES: usize = size_of::<Value>();
/// The header of a reference-counted value, including the memory allocator's header.
const SHARED_BYTES: usize = 32;

/// The remaining memory and time.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: usize,
    deadline: Instant,
    steps: usize,
    nesting: u32,
}

impl Budget {
    pub(crate) fn new(deadline: Instant) -> Self {
        Self {
            bytes: MEMORY_LIMIT_BYTES,
            deadline,
            steps: STEPS_PER_CLOCK_READ,
            nesting: 0,
        }
    }

    /// The budget of constants, which are evaluated at compile time.
    pub(crate) fn for_constants() -> Self {
        Self::new(Instant::now() + EVALUATION_TIMEOUT)
    }

    /// Charges memory before it is allocated.
    pub(crate) fn charge(&mut self, bytes: usize) -> Result<(), Fault> {
        match self.bytes.checked_sub(bytes) {
            Some(left) => self.bytes = left,
            None => {
                self.bytes = 0;
                return Err(Fault::TooMuchMemory);
            }
        }
        self.scan(bytes)
    }

    /// Charges a list of a known length.
    pub(crate) fn charge_values(&mut self, count: usize) -> Result<(), Fault> {
        self.charge(
            count
                .saturating_mul(VALUE_BYTES)
                .saturating_add(SHARED_BYTES),
        )
    }

    /// Charges one more element of a growing list. The capacity of a vector is up to twice its length.
    pub(crate) fn charge_element(&mut self) -> Result<(), Fault> {
        self.charge(2 * VALUE_BYTES)
    }

    /// Charges one more entry of a map, including its index entry.
    pub(crate) fn charge_entry(&mut self) -> Result<(), Fault> {
        self.charge(8 * VALUE_BYTES)
    }

    /// Charges a small reference-counted value.
    pub(crate) fn charge_shared(&mut self) -> Result<(), Fault> {
        self.charge(SHARED_BYTES + 2 * VALUE_BYTES)
    }

    /// Charges and returns a new string.
    pub(crate) fn string(&mut self, text: &str) -> Result<Value, Fault> {
        self.charge(text.len().saturating_add(SHARED_BYTES))?;
        Ok(Value::string(text))
    }

    /// Charges and returns a list. Its elements must already be charged.
    pub(crate) fn list(&mut self, items: Vec<Value>) -> Result<Value, Fault> {
        self.charge(SHARED_BYTES)?;
        Ok(Value::list(items))
    }

    pub(crate) fn some(&mut self, value: Value) -> Result<Value, Fault> {
        self.charge_shared()?;
        Ok(Value::Optional(Some(Arc::new(value))))
    }

    /// Appends to a string and charges its new capacity. The old buffer stays charged, because both exist during the copy.
    pub(crate) fn push(&mut self, text: &mut String, more: &str) -> Result<(), Fault> {
        let length = text.len() + more.len();
        if length > text.capacity() {
            let capacity = length.max(2 * text.capacity()).max(MIN_CAPACITY_BYTES);
            self.charge(capacity)?;
            text.reserve_exact(capacity - text.len());
        }
        text.push_str(more);
        Ok(())
    }

    /// An empty string with a capacity of `bytes`.
    pub(crate) fn text(&mut self, bytes: usize) -> Result<String, Fault> {
        self.charge(bytes)?;
        Ok(String::with_capacity(bytes))
    }

    /// Counts steps without memory. Returns an error after the deadline.
    pub(crate) fn count_steps(&mut self, steps: usize) -> Result<(), Fault> {
        match self.steps.checked_sub(steps) {
            Some(left) => {
                self.steps = left;
                Ok(())
            }
            None => self.check_clock(),
        }
    }

    /// Counts the scan of `bytes` bytes.
    pub(crate) fn scan(&mut self, bytes: usize) -> Result<(), Fault> {
        self.count_steps(bytes / BYTES_PER_STEP)
    }

    #[cold]
    fn check_clock(&mut self) -> Result<(), Fault> {
        self.steps = STEPS_PER_CLOCK_READ;
        if Instant::now() >= self.deadline {
            return Err(Fault::Deadline);
        }
        Ok(())
    }

    /// Runs `work` on the elements of a list or map, one nesting level deeper. An accumulated list can contain itself.
    pub(crate) fn within<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if self.nesting >= MAX_NESTING {
            return Err(Fault::new(format!(
                "lists and maps are more than {MAX_NESTING} levels deep"
            ))
            .fatal());
        }
        self.nesting += 1;
        let outcome = work(self);
        self.nesting -= 1;
        outcome
    }
}
