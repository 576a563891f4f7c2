#![no_main]

use dra_fuzz_drivers::mutate_json;
use libfuzzer_sys::{fuzz_mutator, fuzz_target};

fuzz_target!(|data: &[u8]| dra_fuzz::device::TARGET.check_in_time(data));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate_json(data, size, max_size, seed)
});
