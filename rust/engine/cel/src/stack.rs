//! Stack space for recursion: a thread with a large stack processes deeply nested expressions.

use std::panic;
use std::thread;

/// Virtual memory; the kernel allocates only used pages.
const LARGE_STACK_BYTES: usize = 256 << 20;

/// Runs `work`, on a thread with a large stack if `deep`. Returns an error if the thread cannot be started, because the
/// caller's stack may be too small.
pub(crate) fn with_stack<T: Send>(
    deep: bool,
    work: impl FnOnce() -> T + Send,
) -> Result<T, String> {
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
                "the expression is deeply nested, and no thread can be started for it: {error}"
            )),
        }
    })
}
