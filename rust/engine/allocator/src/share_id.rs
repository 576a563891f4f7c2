//! Share IDs: version 4 UUIDs from a seeded generator, so that a result can be reproduced.

/// A generator of UUIDs. Different seeds give different UUIDs.
#[derive(Debug, Clone)]
pub(crate) struct ShareIds {
    state: u64,
}

impl ShareIds {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Generates a lower-case UUID (RFC 9562, version 4).
    pub(crate) fn generate(&mut self) -> String {
        const VERSION: u64 = 0x4000;
        const VARIANT: u64 = 0x8000_0000_0000_0000;
        let high = (self.next() & !0xf000) | VERSION;
        let low = (self.next() >> 2) | VARIANT;
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        )
    }

    /// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_id_is_a_version_4_uuid_and_repeats_with_its_seed() {
        let mut ids = ShareIds::new(7);
        let id = ids.generate();
        assert_eq!(id.len(), 36);
        assert_eq!(&id[14..15], "4");
        assert!("89ab".contains(&id[19..20]));
        assert!(id.chars().all(|letter| letter == '-'
            || letter.is_ascii_digit()
            || ('a'..='f').contains(&letter)));
        assert_ne!(ids.generate(), id);
        assert_eq!(ShareIds::new(7).generate(), id);
    }

    /// The first two numbers that the published algorithm gives for seed 0 are e220a8397b1dcdaf and 6e789e6aa1b965f4.
    #[test]
    fn an_id_is_made_of_the_numbers_of_splitmix64() {
        let id = ShareIds::new(0).generate();
        assert_eq!(id, "e220a839-7b1d-4daf-9b9e-279aa86e597d");
    }
}
