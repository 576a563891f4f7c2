//! Room for recursion: deeply nested expressions are handled on a thread with a large stack.

use std::panic;
use std::thread;

/// Only what is used is taken from the system.
const LARGE_STACK_BYTES: usize = 256 << 20;

/// Runs `work`, on a large stack if it may nest deeply. The error is that no such stack is to be had: the caller's may be
/// too small.
pub(crate) fn with_room<T: Send>(deep: bool, work: impl FnOnce() -> T + Send) -> Result<T, String> {
    if !deep {
        return Ok(work());
    }
    thread::scope(|scope| {
        let spawned = thread::Builder::new()
            .stack_size(LARGE_STACK_BYTES)
            .spawn_scoped(scope, work);
        match spawned.map(thread::ScopedJoinHandle::join) {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(panicked)) => panic::resume_unwind(panicked),
            Err(error) => Err(format!(
                "the expression is deeply nested, and there is no thread for it: {error}"
            )),
        }
    })
}
