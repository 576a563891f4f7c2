#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dra_fuzz::ledger::TARGET.check_in_time(data));
