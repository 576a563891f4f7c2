#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dra_fuzz::pattern::TARGET.check_in_time(data));
