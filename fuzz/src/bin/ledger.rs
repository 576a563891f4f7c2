#![no_main]

use dra_fuzz::ledger::{TARGET, damage_at};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

/// Of so many mutations one changes the history too; the others change the damage only.
const HISTORY_EVERY: u32 = 8;

fuzz_target!(|data: &[u8]| TARGET.check_in_time(data));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let kept = match damage_at(&data[..size]) {
        Some(at) if !seed.is_multiple_of(HISTORY_EVERY) && at < max_size => at,
        _ => 0,
    };
    kept + fuzzer_mutate(&mut data[kept..], size - kept, max_size - kept)
});
