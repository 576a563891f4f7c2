//! NVLinks, NVLink fabrics and peer-to-peer access.

use std::ffi::{c_int, c_uint};

use crate::abi::{
    Code, FabricClique, FabricInfo, FabricInfoV2, FabricInfoV3, FabricInfoV4, MAX_CLIQUES, PciInfo,
    version, write_value,
};
use crate::call::{device, values};
use crate::handles::{self, Handle};
use crate::identity::pci_info;
use crate::state::{FabricCondition, Gpu, NvLink, State};

const HOPPER: u32 = 9;
/// NVML_NVLINK_DEVICE_TYPE_SWITCH.
const SWITCH: u32 = 2;
const NOT_IN_A_FABRIC: u32 = 0;
const COMPLETED: u32 = 3;

/// The used values of nvmlGpuP2PCapsIndex_t and nvmlGpuP2PStatus_t.
mod p2p {
    pub(super) const NVLINK: u32 = 2;
    pub(super) const CAPABILITIES: u32 = 5;
    pub(super) const OK: u32 = 0;
    pub(super) const NOT_SUPPORTED: u32 = 5;
}

values! {
    nvmlDeviceGetGpuFabricInfo: FabricInfo = |state, gpu| Ok(fabric(state, gpu)?.0);
    // Hosts with a driver before 615 get a library without this function.
    nvmlDeviceGetGpuFabricInfo_v4: FabricInfoV4 = |state, gpu| {
        let (info, health) = fabric(state, gpu)?;
        let (cliques, clique_count) = cliques(&info, gpu);
        Ok(FabricInfoV4 {
            cluster_uuid: info.cluster_uuid,
            status: info.status,
            cliques,
            clique_count,
            state: u8::try_from(info.state).map_err(|_| Code::UNKNOWN)?,
            health_mask: health.health_mask,
            health_summary: health.health_summary,
        })
    };
}

/// # Safety
/// As NVML's reference requires for `info`. Its version is set and determines the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuFabricInfoV(handle: Handle, info: *mut u32) -> c_int {
    /// The first driver with version 3 (change log of NVML, "Changes between v575 and v580").
    const VERSION_3_SINCE: u32 = 580;
    device("nvmlDeviceGetGpuFabricInfoV", handle, |state, gpu| {
        // SAFETY: null, or a structure with its version as first field.
        let requested = unsafe { info.as_ref() }
            .copied()
            .ok_or(Code::INVALID_ARGUMENT)?;
        let (result, health) = fabric(state, gpu)?;
        let newer = state
            .driver
            .as_ref()
            .is_some_and(|driver| driver.branch() >= VERSION_3_SINCE);
        if requested == version::<FabricInfoV2>(2) {
            // SAFETY: the version identifies the structure.
            unsafe {
                write_value(
                    info.cast(),
                    FabricInfoV2 {
                        version: requested,
                        info: result,
                        health_mask: health.health_mask,
                    },
                )
            }
        } else if newer && requested == version::<FabricInfoV3>(3) {
            let full = FabricInfoV3 {
                version: requested,
                info: result,
                health_mask: health.health_mask,
                health_summary: health.health_summary,
            };
            // SAFETY: the version identifies the structure.
            unsafe { write_value(info.cast(), full) }
        } else {
            Err(Code::ARGUMENT_VERSION_MISMATCH)
        }
    })
}

/// # Safety
/// As NVML's reference requires for `active`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkState(
    handle: Handle,
    link: c_uint,
    active: *mut c_uint,
) -> c_int {
    device("nvmlDeviceGetNvLinkState", handle, |state, gpu| {
        let link = slot(state, gpu, link)?;
        // SAFETY: the caller provides one enum.
        unsafe { write_value(active, u32::from(link.is_some())) }
    })
}

/// # Safety
/// As NVML's reference requires for `pci`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    handle: Handle,
    link: c_uint,
    pci: *mut PciInfo,
) -> c_int {
    device(
        "nvmlDeviceGetNvLinkRemotePciInfo_v2",
        handle,
        |state, gpu| {
            let link = slot(state, gpu, link)?.ok_or(Code::NOT_SUPPORTED)?;
            // A switch in another chassis has no address on this host.
            if link.remote.address.is_empty() {
                return Err(Code::NOT_SUPPORTED);
            }
            // SAFETY: the caller provides one structure.
            unsafe { write_value(pci, pci_info(&link.remote)?) }
        },
    )
}

/// # Safety
/// As NVML's reference requires for `kind`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(
    handle: Handle,
    link: c_uint,
    kind: *mut c_uint,
) -> c_int {
    device(
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        handle,
        |state, gpu| {
            let link = slot(state, gpu, link)?.ok_or(Code::NOT_SUPPORTED)?;
            // SAFETY: the caller provides one enum.
            unsafe { write_value(kind, link.kind) }
        },
    )
}

/// # Safety
/// As NVML's reference requires for `version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkVersion(
    handle: Handle,
    link: c_uint,
    result: *mut c_uint,
) -> c_int {
    device("nvmlDeviceGetNvLinkVersion", handle, |state, gpu| {
        slot(state, gpu, link)?;
        // Volta 2, Ampere 3, Hopper 4, Blackwell 5.
        let generation = match gpu.architecture {
            ..7 => 2,
            7 | 8 => 3,
            HOPPER => 4,
            _ => 5,
        };
        // SAFETY: the caller provides one unsigned int.
        unsafe { write_value(result, generation) }
    })
}

/// # Safety
/// As NVML's reference requires for `status`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetP2PStatus(
    one: Handle,
    other: Handle,
    index: c_uint,
    status: *mut c_uint,
) -> c_int {
    device("nvmlDeviceGetP2PStatus", one, |state, gpu| {
        let other = handles::target(other)?;
        let second = state
            .gpu(other.gpu())
            .filter(|gpu| gpu.present)
            .ok_or(Code::GPU_IS_LOST)?;
        if index >= p2p::CAPABILITIES {
            return Err(Code::INVALID_ARGUMENT);
        }
        let possible = index != p2p::NVLINK || are_linked(state, gpu, second);
        // SAFETY: the caller provides one enum.
        unsafe {
            write_value(
                status,
                if possible {
                    p2p::OK
                } else {
                    p2p::NOT_SUPPORTED
                },
            )
        }
    })
}

/// Whether two GPUs are linked directly, or both to switches: all switches of a host are connected with each other.
fn are_linked(state: &State, one: &Gpu, other: &Gpu) -> bool {
    let (links, back) = (active(state, one), active(state, other));
    let to_switch = |link: &&NvLink| link.kind == SWITCH;
    let is_direct = links
        .iter()
        .any(|link| link.remote.address == other.pci.address)
        && back
            .iter()
            .any(|link| link.remote.address == one.pci.address);
    is_direct || links.iter().any(to_switch) && back.iter().any(to_switch)
}

fn active<'gpu>(state: &State, gpu: &'gpu Gpu) -> Vec<&'gpu NvLink> {
    (0..gpu.nvlink_slots)
        .filter_map(|link| slot(state, gpu, link).ok().flatten())
        .collect()
}

/// The active link in a slot.
fn slot<'gpu>(state: &State, gpu: &'gpu Gpu, link: c_uint) -> Result<Option<&'gpu NvLink>, Code> {
    if gpu.nvlink_slots == 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    if link >= gpu.nvlink_slots {
        return Err(Code::INVALID_ARGUMENT);
    }
    let is_down = state.condition(gpu).nvlinks_down.contains(&link);
    Ok(gpu.nvlinks.get(link as usize).filter(|_| !is_down))
}

/// The cliques by type, and their number: unicast and multicast of pointers, from Blackwell on also of logical endpoints
/// (NVML API reference, nvmlDeviceGetGpuFabricInfo_v4). Only the id of the first one is documented; the others are a
/// clique each, as that of multicast spans fewer GPUs.
fn cliques(info: &FabricInfo, gpu: &Gpu) -> ([FabricClique; MAX_CLIQUES], u32) {
    let mut found = [FabricClique::default(); MAX_CLIQUES];
    let types: u8 = match (info.state, gpu.architecture) {
        (COMPLETED, ..=HOPPER) => 2,
        (COMPLETED, _) => 4,
        _ => 0,
    };
    for (kind, entry) in (0..types).zip(&mut found) {
        *entry = FabricClique {
            kind,
            id: info.clique_id.wrapping_add(u32::from(kind)),
        };
    }
    (found, u32::from(types))
}

/// The registration of a GPU, and its condition. A GPU without fabric has neither state nor health.
fn fabric(state: &State, gpu: &Gpu) -> Result<(FabricInfo, FabricCondition), Code> {
    const BANDWIDTH_FULL: u32 = 2;
    const HEALTHY: u8 = 1;
    if gpu.architecture < HOPPER {
        return Err(Code::NOT_SUPPORTED);
    }
    let Some((cluster, clique)) = &gpu.fabric else {
        let info = FabricInfo {
            cluster_uuid: [0; 16],
            status: 0,
            clique_id: 0,
            state: NOT_IN_A_FABRIC,
        };
        let nothing = FabricCondition {
            state: NOT_IN_A_FABRIC,
            status: 0,
            health_mask: 0,
            health_summary: 0,
        };
        return Ok((info, nothing));
    };
    let condition = state.condition(gpu).fabric.unwrap_or(FabricCondition {
        state: COMPLETED,
        status: 0,
        health_mask: BANDWIDTH_FULL,
        health_summary: HEALTHY,
    });
    let digits: String = cluster.chars().filter(|digit| *digit != '-').collect();
    let number = u128::from_str_radix(&digits, 16).map_err(|_| Code::UNKNOWN)?;
    // Cluster and clique are known once the registration is completed.
    let registered = condition.state == COMPLETED;
    let info = FabricInfo {
        cluster_uuid: if registered {
            number.to_be_bytes()
        } else {
            [0; 16]
        },
        status: condition.status,
        clique_id: if registered { *clique } else { 0 },
        state: condition.state,
    };
    Ok((info, condition))
}
