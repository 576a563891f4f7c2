//! Room for recursion: deeply nested expressions are handled on a thread with a large stack.

use std::thread;

/// Bytes; only what is used is taken from the system.
const LARGE: usize = 256 << 20;

/// Runs `work`, on a large stack if it may nest deeply. Without a thread to be had, on the stack that there is.
pub(crate) fn with_room<T: Send>(deep: bool, work: impl Fn() -> T + Sync) -> T {
    if !deep {
        return work();
    }
    thread::scope(|scope| {
        let spawned = thread::Builder::new()
            .stack_size(LARGE)
            .spawn_scoped(scope, &work);
        spawned
            .ok()
            .and_then(|thread| thread.join().ok())
            .unwrap_or_else(&work)
    })
}
