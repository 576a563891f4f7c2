//! The size of exhaustive tests: all cases, or one in `DRA_TEST_SAMPLE`, which `make test` and mutation runs set.

#![allow(dead_code, unreachable_pub)]

pub fn one_in() -> usize {
    let asked = std::env::var("DRA_TEST_SAMPLE").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(1).max(1)
}

pub fn cases(all: u32) -> u32 {
    let one_in = u32::try_from(one_in()).unwrap_or(u32::MAX);
    all.div_ceil(one_in)
}
