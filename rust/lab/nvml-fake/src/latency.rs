//! The time that calls take: a driver initializes a GPU when it is looked up first, which takes seconds.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread::sleep;
use std::time::Duration;

use crate::files::lock;
use crate::state::{Gpu, State};

/// The GPUs that this process has initialized. A driver initializes one GPU after the other.
static INITIALIZED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Waits for nvmlInit.
pub(crate) fn init(state: &State) {
    let gpus = state.present().len() as u64;
    sleep(Duration::from_millis(state.latency.init_ms_per_gpu * gpus));
}

/// Waits for the initialization of a GPU.
pub(crate) fn look_up(state: &State, gpu: &Gpu) {
    if state.latency.gpu_start_ms == 0 || state.condition(gpu).persistence_mode {
        return;
    }
    let mut initialized = lock(&INITIALIZED);
    if !initialized.contains(&gpu.uuid) {
        sleep(Duration::from_millis(state.latency.gpu_start_ms));
        initialized.insert(gpu.uuid.clone());
    }
}

/// Waits for a call; `function` is its name without version.
pub(crate) fn call(state: &State, function: &str) {
    if let Some(time) = state.latency.calls_ms.get(function) {
        sleep(Duration::from_millis(*time));
    }
}

/// The last user has shut the library down: without persistence mode the driver closes the GPUs.
pub(crate) fn shut_down() {
    lock(&INITIALIZED).clear();
}
