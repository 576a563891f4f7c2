#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dra_fuzz::uevent::TARGET.check_in_time(data));
