#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dra_fuzz::oci_state::TARGET.check_in_time(data));
