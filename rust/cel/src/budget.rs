//! What one evaluation may take of memory and time.
//!
//! Kubernetes counts some operations as cheap whatever they make. What they make is charged here before it is made, so that
//! an expression is refused where the scheduler would run out of memory. Charges add up over the whole evaluation: memory
//! that is free again counts too, because making it took time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fault::Fault;
use crate::value::Value;

/// Bytes of strings, lists and maps that one evaluation may make.
pub const MEMORY_LIMIT_BYTES: usize = 64 << 20;
/// The time of an evaluation whose caller sets no deadline.
pub const EVALUATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Lists and maps within each other: more than any expression nests, and little enough for any stack.
const MAX_NESTING: u32 = 500;
/// Steps of well below a microsecond each.
const STEPS_PER_CLOCK_READ: usize = 4_096;
/// Bytes that are compared, copied or counted in the time of a step.
const BYTES_PER_STEP: usize = 64;

/// Of a text that grows.
const LEAST_ROOM_BYTES: usize = 16;

pub(crate) const VALUE_BYTES: usize = size_of::<Value>();
/// The header of what is shared, with the allocator's own.
const SHARED_BYTES: usize = 32;

/// What is left of memory and time.
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

    /// For what is computed when an expression is compiled.
    pub(crate) fn of_constants() -> Self {
        Self::new(Instant::now() + EVALUATION_TIMEOUT)
    }

    /// Charges memory that is about to be taken.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), Fault> {
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
    pub(crate) fn take_values(&mut self, count: usize) -> Result<(), Fault> {
        self.take(
            count
                .saturating_mul(VALUE_BYTES)
                .saturating_add(SHARED_BYTES),
        )
    }

    /// Charges one more element of a list that grows: a vector has room for up to twice its elements.
    pub(crate) fn take_element(&mut self) -> Result<(), Fault> {
        self.take(2 * VALUE_BYTES)
    }

    /// Charges one more entry of a map, with its place in the index.
    pub(crate) fn take_entry(&mut self) -> Result<(), Fault> {
        self.take(8 * VALUE_BYTES)
    }

    /// Charges something small that is shared.
    pub(crate) fn take_shared(&mut self) -> Result<(), Fault> {
        self.take(SHARED_BYTES + 2 * VALUE_BYTES)
    }

    /// A string of its own.
    pub(crate) fn string(&mut self, text: &str) -> Result<Value, Fault> {
        self.take(text.len().saturating_add(SHARED_BYTES))?;
        Ok(Value::string(text))
    }

    /// A list; its elements are charged already.
    pub(crate) fn list(&mut self, items: Vec<Value>) -> Result<Value, Fault> {
        self.take(SHARED_BYTES)?;
        Ok(Value::list(items))
    }

    pub(crate) fn some(&mut self, value: Value) -> Result<Value, Fault> {
        self.take_shared()?;
        Ok(Value::Optional(Some(Arc::new(value))))
    }

    /// Appends to a text. What it has room for is charged; while it moves to where there is more, both are there.
    pub(crate) fn push(&mut self, text: &mut String, more: &str) -> Result<(), Fault> {
        let wanted = text.len() + more.len();
        if wanted > text.capacity() {
            let room = wanted.max(2 * text.capacity()).max(LEAST_ROOM_BYTES);
            self.take(room)?;
            text.reserve_exact(room - text.len());
        }
        text.push_str(more);
        Ok(())
    }

    /// A text with room for so many bytes.
    pub(crate) fn text(&mut self, bytes: usize) -> Result<String, Fault> {
        self.take(bytes)?;
        Ok(String::with_capacity(bytes))
    }

    /// Counts work that takes no memory; an error once the deadline has passed.
    pub(crate) fn work(&mut self, steps: usize) -> Result<(), Fault> {
        match self.steps.checked_sub(steps) {
            Some(left) => {
                self.steps = left;
                Ok(())
            }
            None => self.check_clock(),
        }
    }

    /// Counts going through so many bytes.
    pub(crate) fn scan(&mut self, bytes: usize) -> Result<(), Fault> {
        self.work(bytes / BYTES_PER_STEP)
    }

    #[cold]
    fn check_clock(&mut self) -> Result<(), Fault> {
        self.steps = STEPS_PER_CLOCK_READ;
        if Instant::now() >= self.deadline {
            return Err(Fault::Deadline);
        }
        Ok(())
    }

    /// Does something with the elements of a list or map. A list that a macro accumulates can contain itself.
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
