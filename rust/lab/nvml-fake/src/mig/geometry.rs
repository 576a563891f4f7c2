//! Placements, numbers and names of instances.

use crate::mig::instances::{GpuInstance, PartitionLayout};
use crate::state::{Gpu, MigProfile};

/// Compute instance profiles: NVML's constant, which is also the id, and the number of slices.
pub(crate) const COMPUTE_PROFILES: [(u32, u32); 5] = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 7)];

/// The number of the GPU instance at a placement.
///
/// It names a node of the tree of halves, as NVIDIA's open kernel modules number them (kmigmgrSwizzIdToSpan): 0 is the
/// whole GPU, 1 and 2 are its halves, 3 to 6 its quarters, 7 to 14 its eighths. Which physical half a placement means
/// differs from GPU to GPU: in DCGM#138, placement 0:2 is number 3 of one GPU and 5 of the next.
pub(crate) fn gpu_instance_id(gpu: &Gpu, seed: u64, start: u32, size: u32) -> u32 {
    let slices = gpu
        .mig
        .iter()
        .flat_map(|profile| &profile.placements)
        .map(|(start, size)| start + size)
        .max()
        .unwrap_or(1)
        .next_power_of_two();
    let order = hash(&gpu.uuid, seed) as u32 & (slices - 1) & !(size - 1);
    slices / size - 1 + (start ^ order) / size
}

/// The order in which numbers are given to compute instances: ascending from a start that depends on the seed.
pub(crate) fn compute_instance_ids(gpu: &Gpu, seed: u64, count: u32) -> impl Iterator<Item = u32> {
    let first = if seed == 0 {
        0
    } else {
        hash(&gpu.uuid, !seed) as u32 % count
    };
    (0..count).map(move |number| (first + number) % count)
}

/// Whether the memory slices are free.
pub(crate) fn is_free(layout: &PartitionLayout, start: u32, size: u32) -> bool {
    layout
        .gpu_instances
        .iter()
        .all(|other| start + size <= other.start || other.start + other.size <= start)
}

/// The number of further instances of a profile that fit.
pub(crate) fn remaining(gpu: &Gpu, layout: &PartitionLayout, profile: &MigProfile) -> u32 {
    let existing = layout
        .gpu_instances
        .iter()
        .filter(|instance| instance.profile == profile.id)
        .count() as u32;
    // All placements of a profile have one size and do not overlap.
    let places = profile
        .placements
        .iter()
        .filter(|&&(start, size)| is_free(layout, start, size))
        .count() as u32;
    places
        .min(profile.max_instances.saturating_sub(existing))
        .min(engines_left(gpu, layout, profile))
}

/// The number of instances of a profile for which media engines are left. nvml.h: an instance of an ALL_ME profile
/// "prevents allocation of all but _NO_ME profiles".
fn engines_left(gpu: &Gpu, layout: &PartitionLayout, profile: &MigProfile) -> u32 {
    let engines: [fn(&MigProfile) -> u32; 4] = [
        |profile| profile.decoders,
        |profile| profile.encoders,
        |profile| profile.jpeg,
        |profile| profile.ofa,
    ];
    let existing = || {
        layout
            .gpu_instances
            .iter()
            .filter_map(|instance| gpu.mig.iter().find(|other| other.id == instance.profile))
    };
    engines
        .into_iter()
        .filter(|count| count(profile) > 0)
        .map(|count| {
            let all = gpu.mig.iter().map(count).max().unwrap_or(0);
            let used: u32 = existing().map(count).sum();
            all.saturating_sub(used) / count(profile)
        })
        .min()
        .unwrap_or(u32::MAX)
}

/// The slices of a compute instance profile in a GPU instance.
pub(crate) fn compute_slices(gpu_instance: &MigProfile, profile: u32) -> Option<u32> {
    let (_, slices) = COMPUTE_PROFILES
        .into_iter()
        .find(|(id, _)| *id == profile)?;
    // There is no profile with three of four slices.
    let offered = slices <= gpu_instance.slices && (slices, gpu_instance.slices) != (3, 4);
    offered.then_some(slices)
}

/// Multiprocessors of a compute instance with that many slices.
pub(crate) fn multiprocessors(gpu: &Gpu, gpu_instance: &MigProfile, slices: u32) -> u32 {
    if slices == gpu_instance.slices {
        return gpu_instance.multiprocessors;
    }
    let one = gpu
        .mig
        .iter()
        .find(|profile| profile.profile == 0)
        .map_or(0, |profile| profile.multiprocessors);
    one * slices
}

/// The possible start slices of a compute instance with that many slices.
pub(crate) fn compute_starts(gpu_instance: &MigProfile, slices: u32) -> impl Iterator<Item = u32> {
    0..=gpu_instance.slices - slices
}

/// Whether the compute slices of a GPU instance are free.
pub(crate) fn is_compute_free(instance: &GpuInstance, start: u32, size: u32) -> bool {
    instance
        .compute_instances
        .iter()
        .all(|other| start + size <= other.start || other.start + other.size <= start)
}

/// "MIG 3g.40gb", and "MIG 1c.3g.40gb" for a compute instance that does not fill its GPU instance.
pub(crate) fn compute_name(gpu_instance: &MigProfile, slices: u32) -> String {
    if slices == gpu_instance.slices {
        return gpu_instance.name.clone();
    }
    let profile = gpu_instance.name.trim_start_matches("MIG ");
    format!("MIG {slices}c.{profile}")
}

/// A UUID that is unique for each created instance: version 5, as in the driver.
pub(crate) fn uuid(gpu: &str, instance: u32, compute: u32, created: u64) -> String {
    let text = format!("{gpu}/{instance}/{compute}/{created}");
    let (high, low) = (hash(&text, 0x6D69_6700), hash(&text, 0x7575_6964));
    format!(
        "MIG-{:08x}-{:04x}-5{:03x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xFFFF,
        high & 0xFFF,
        0x8000 | low >> 48 & 0x3FFF,
        low & 0xFFFF_FFFF_FFFF
    )
}

/// FNV-1a, and the finalizer of SplitMix64.
fn hash(text: &str, seed: u64) -> u64 {
    let mixed = text
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325 ^ seed, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        });
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}
