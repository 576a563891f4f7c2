//! The locality of a GPU: CPUs, NUMA node, and distance to other GPUs.

use std::ffi::{c_int, c_uint, c_ulong};

use crate::abi::{AddressingMode, Code, version, write_value};
use crate::call::{device, values};
use crate::handles::{self, Handle};
use crate::state::Gpu;

const SCOPES: c_uint = 2;
const WORD_BITS: usize = 64;

/// nvmlGpuTopologyLevel_t.
mod level {
    pub(super) const INTERNAL: u32 = 0;
    pub(super) const SINGLE: u32 = 10;
    pub(super) const MULTIPLE: u32 = 20;
    pub(super) const HOST_BRIDGE: u32 = 30;
    pub(super) const NODE: u32 = 40;
    pub(super) const SYSTEM: u32 = 50;
}

values! {
    // Only if GPU memory is a NUMA node of the host, as on Grace Hopper.
    nvmlDeviceGetNumaNodeId: c_int = |_, _| Err(Code::NOT_SUPPORTED);
}

/// # Safety
/// As NVML's reference requires for `set`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCpuAffinity(
    handle: Handle,
    words: c_uint,
    set: *mut c_ulong,
) -> c_int {
    device("nvmlDeviceGetCpuAffinity", handle, |_, gpu| {
        // SAFETY: the caller provides that many words.
        unsafe { write_words(set, words, &gpu.cpus) }
    })
}

/// # Safety
/// As NVML's reference requires for `set`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCpuAffinityWithinScope(
    handle: Handle,
    words: c_uint,
    set: *mut c_ulong,
    scope: c_uint,
) -> c_int {
    device("nvmlDeviceGetCpuAffinityWithinScope", handle, |_, gpu| {
        if scope >= SCOPES {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: the caller provides that many words.
        unsafe { write_words(set, words, &gpu.cpus) }
    })
}

/// # Safety
/// As NVML's reference requires for `set`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryAffinity(
    handle: Handle,
    words: c_uint,
    set: *mut c_ulong,
    scope: c_uint,
) -> c_int {
    device("nvmlDeviceGetMemoryAffinity", handle, |_, gpu| {
        if scope >= SCOPES {
            return Err(Code::INVALID_ARGUMENT);
        }
        let node = usize::try_from(gpu.numa_node).map_err(|_| Code::NOT_SUPPORTED)?;
        let mut nodes = vec![0; node / WORD_BITS + 1];
        nodes[node / WORD_BITS] = 1 << (node % WORD_BITS);
        // SAFETY: the caller provides that many words.
        unsafe { write_words(set, words, &nodes) }
    })
}

/// # Safety
/// As NVML's reference requires for `result`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTopologyCommonAncestor(
    one: Handle,
    other: Handle,
    result: *mut c_uint,
) -> c_int {
    device("nvmlDeviceGetTopologyCommonAncestor", one, |state, gpu| {
        let other = handles::target(other)?;
        let second = state
            .gpu(other.gpu())
            .filter(|gpu| gpu.present)
            .ok_or(Code::GPU_IS_LOST)?;
        // SAFETY: the caller provides one enum.
        unsafe { write_value(result, distance(gpu, second)) }
    })
}

/// # Safety
/// As NVML's reference requires for `mode`. Its version is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetAddressingMode(
    handle: Handle,
    mode: *mut AddressingMode,
) -> c_int {
    const HETEROGENEOUS: u32 = 1;
    const NONE: u32 = 0;
    const TURING: u32 = 6;
    device("nvmlDeviceGetAddressingMode", handle, |_, gpu| {
        // SAFETY: null or one structure.
        let given = unsafe { mode.as_mut() }.ok_or(Code::INVALID_ARGUMENT)?;
        if given.version != version::<AddressingMode>(1) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        given.value = if gpu.architecture >= TURING {
            HETEROGENEOUS
        } else {
            NONE
        };
        Ok(())
    })
}

fn distance(one: &Gpu, other: &Gpu) -> u32 {
    if one.uuid == other.uuid {
        return level::INTERNAL;
    }
    let shared = one
        .path
        .iter()
        .zip(&other.path)
        .take_while(|(here, there)| here == there)
        .count();
    if shared == 0 {
        return if one.numa_node >= 0 && one.numa_node == other.numa_node {
            level::NODE
        } else {
            level::SYSTEM
        };
    }
    if shared == 1 {
        return level::HOST_BRIDGE;
    }
    // Below a shared upstream port, the path of each GPU has its own downstream port and the GPU.
    let own = one.path.len().max(other.path.len()) - shared;
    if own <= 2 {
        level::SINGLE
    } else {
        level::MULTIPLE
    }
}

/// Fills the caller's words, and the rest with zeros. As in NVML, excess words are omitted.
///
/// # Safety
/// `set` is null or valid for `count` words.
unsafe fn write_words(set: *mut c_ulong, count: c_uint, words: &[u64]) -> Result<(), Code> {
    if set.is_null() || count == 0 {
        return Err(Code::INVALID_ARGUMENT);
    }
    for index in 0..count as usize {
        // SAFETY: the index is below the count.
        unsafe { set.add(index).write(words.get(index).copied().unwrap_or(0)) };
    }
    Ok(())
}

/// # Safety
/// As NVML's reference requires for both pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTopologyNearestGpus(
    handle: Handle,
    level: c_uint,
    count: *mut c_uint,
    list: *mut Handle,
) -> c_int {
    device("nvmlDeviceGetTopologyNearestGpus", handle, |state, gpu| {
        let near: Vec<_> = state
            .present()
            .into_iter()
            .filter(|other| other.uuid != gpu.uuid && distance(gpu, other) == level)
            .map(|other| handles::of(&other.uuid))
            .collect();
        if count.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // Unlike other lists, the query of the length succeeds.
        // SAFETY: not null; the list is null or has that capacity.
        unsafe {
            let capacity = count.replace(near.len() as c_uint) as usize;
            if !list.is_null() {
                list.copy_from_nonoverlapping(near.as_ptr(), near.len().min(capacity));
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{self, State};

    fn gpu(uuid: &str, path: &[&str], numa_node: i32) -> Gpu {
        let text = include_str!("../tests/gpu.json");
        let mut gpu: Gpu = serde_json::from_str(text).expect("the example GPU");
        gpu.uuid = uuid.to_owned();
        gpu.path = path.iter().map(|part| (*part).to_owned()).collect();
        gpu.numa_node = numa_node;
        gpu
    }

    #[test]
    fn distances_follow_the_paths() {
        let port = "0000:15:01.0";
        let here = gpu(
            "a",
            &[
                "pci0000:15",
                port,
                "0000:16:00.0",
                "0000:17:00.0",
                "0000:18:00.0",
            ],
            0,
        );
        let adjacent = gpu(
            "b",
            &[
                "pci0000:15",
                port,
                "0000:16:00.0",
                "0000:17:01.0",
                "0000:19:00.0",
            ],
            0,
        );
        let deeper = [
            "pci0000:15",
            port,
            "0000:16:00.0",
            "0000:17:02.0",
            "0000:1a:00.0",
            "0000:1b:00.0",
            "0000:1c:00.0",
        ];
        let root = gpu("d", &["pci0000:15", "0000:15:02.0", "0000:20:00.0"], 0);
        let node = gpu("e", &["pci0000:30", "0000:30:01.0", "0000:31:00.0"], 0);
        let far = gpu("f", &["pci0000:80", "0000:80:01.0", "0000:81:00.0"], 1);
        assert_eq!(distance(&here, &here), level::INTERNAL);
        assert_eq!(distance(&here, &adjacent), level::SINGLE);
        assert_eq!(distance(&here, &gpu("c", &deeper, 0)), level::MULTIPLE);
        assert_eq!(distance(&here, &root), level::HOST_BRIDGE);
        assert_eq!(distance(&here, &node), level::NODE);
        assert_eq!(distance(&here, &far), level::SYSTEM);
        assert_eq!(
            distance(&gpu("g", &["x"], -1), &gpu("h", &["y"], -1)),
            level::SYSTEM
        );
    }

    #[test]
    fn devices_are_numbered_by_address() {
        let mut late = gpu("late", &[], 0);
        late.pci.address = "0001:01:00.0".to_owned();
        let mut early = gpu("early", &[], 0);
        early.pci.address = "0000:FF:00.0".to_owned();
        let state = State {
            driver: None,
            devices: vec![late, early],
            faults: vec![],
            events: vec![],
            conditions: Default::default(),
            memory_limits: Default::default(),
            latency: crate::state::Latency::default(),
            processes: vec![],
            access: Default::default(),
            loads: vec![],
        };
        let order: Vec<_> = state
            .present()
            .iter()
            .map(|gpu| gpu.uuid.as_str())
            .collect();
        assert_eq!(order, ["early", "late"]);
        assert_eq!(
            state::address_parts("10000:e1:00.0"),
            Some((0x10000, 0xE1, 0, 0))
        );
        assert_eq!(state::address_parts("3B:00.0"), Some((0, 0x3B, 0, 0)));
        assert_eq!(state::address_parts("nonsense"), None);
    }
}
