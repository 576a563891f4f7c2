//! Expensive comparisons that libFuzzer's drivers make for a share of the inputs only.

use std::sync::atomic::{AtomicBool, Ordering};

static SAMPLING: AtomicBool = AtomicBool::new(false);

/// From now on [`one_in`] selects a share of the inputs.
pub(crate) fn enable() {
    SAMPLING.store(true, Ordering::Relaxed);
}

/// Whether an input is in the share that its hash selects: always, unless a driver of libFuzzer runs. The same input is
/// always selected, so a failure is reproduced by its input.
pub(crate) fn one_in(share: u32, data: &[u8]) -> bool {
    !SAMPLING.load(Ordering::Relaxed) || crc32fast::hash(data).is_multiple_of(share)
}
