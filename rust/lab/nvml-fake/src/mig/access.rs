//! Permissions of the calling process: its capabilities and the MIG capability files that it can open.
//!
//! nvml.h marks calls with "Requires privileged user" (go-nvml, gen/nvml/nvml.h). The kernel module decides as follows
//! (open-gpu-kernel-modules 595.45.04, kernel_mig_manager.c and kern_mem_sys_ctrl.c): CAP_SYS_ADMIN or an open
//! `mig/config` to list, create and destroy instances; CAP_SYS_ADMIN to set the mode; an open `mig/monitor`, and not
//! CAP_SYS_ADMIN, for the memory of the whole GPU while it has instances. Not verified: whether NVML itself checks more.

use crate::abi::Code;
use crate::state::State;

/// Required to list, create and destroy instances, and to query placements and capacity.
pub(crate) fn require_config(state: &State) -> Result<(), Code> {
    require(state.access.admin || state.access.config)
}

/// Required to change the MIG mode.
pub(crate) fn require_admin(state: &State) -> Result<(), Code> {
    require(state.access.admin)
}

/// Required for the memory of a GPU that has instances.
pub(crate) fn require_monitor(state: &State) -> Result<(), Code> {
    require(state.access.monitor)
}

fn require(permitted: bool) -> Result<(), Code> {
    if permitted {
        Ok(())
    } else {
        Err(Code::NO_PERMISSION)
    }
}
