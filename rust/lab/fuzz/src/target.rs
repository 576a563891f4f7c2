//! A fuzz target, and the limits of its inputs.

use std::time::Duration;

use peak_alloc::PeakAlloc;
use rustix::time::{ClockId, clock_gettime};

use crate::sample;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// A check of inputs.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    /// Panics if the input violates a property.
    pub check: fn(&[u8]),
    /// Limit for the additional heap memory of one check, in bytes.
    pub heap_bytes: usize,
    /// Limit for the CPU time of one check in an optimized build.
    pub cpu: Duration,
}

impl Target {
    /// Checks the properties of one input, and the heap memory of the check.
    ///
    /// Only one thread may run checks, because heap memory is counted for the process.
    pub fn check(&self, data: &[u8]) {
        let before = HEAP.current_usage();
        HEAP.reset_peak_usage();
        (self.check)(data);
        let taken = HEAP.peak_usage().saturating_sub(before);
        assert!(
            taken <= self.heap_bytes,
            "target {}: the check takes {taken} bytes of heap, at most {} are allowed",
            self.name,
            self.heap_bytes
        );
    }

    /// Checks one input as `check` does, and the CPU time of the process. For drivers: from the first call on, expensive
    /// comparisons are made for a share of the inputs only.
    pub fn check_in_time(&self, data: &[u8]) {
        sample::enable();
        let before = cpu_time();
        self.check(data);
        let taken = cpu_time().saturating_sub(before);
        assert!(
            taken <= self.cpu,
            "target {}: the check takes {taken:?} of CPU time, at most {:?} are allowed",
            self.name,
            self.cpu
        );
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanoseconds)
}
