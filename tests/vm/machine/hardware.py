"""The hardware of the guest: two sockets, each a NUMA node, a PCIe switch on node 1, an IOMMU, NICs, a GPU, a drive."""

from __future__ import annotations

NODES = 2
SWITCH_NODE = 1
"""The NUMA node of the root port above the switch; QEMU gives the others none."""
MEMORY_MIB = 1024

PARAVIRTUAL_NIC = "nic0"
"""The only NIC that is not below the switch."""
SWITCH_NIC = "nic1"
GPU = "gpu0"
DRIVE = "drive0"
VIRTUAL_FUNCTIONS = 4
"""How many the drive has; none of them at the start."""
FREE_PORT = "port3"
"""A port of the switch for devices that a test plugs in."""

MACHINE = ["-M", "q35,kernel-irqchip=split", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", f"{MEMORY_MIB}M"]
SOCKETS = ["-smp", f"{NODES},sockets={NODES}"]
for node in range(NODES):
    SOCKETS += ["-object", f"memory-backend-ram,id=memory{node},size={MEMORY_MIB // NODES}M"]
    SOCKETS += ["-numa", f"node,nodeid={node},cpus={node},memdev=memory{node}"]

DEVICES = f"""\
intel-iommu,intremap=on
pxb-pcie,id=root1,bus_nr=64,numa_node={SWITCH_NODE},bus=pcie.0
pcie-root-port,id=rootport1,bus=root1,chassis=1,slot=1
x3130-upstream,id=switch,bus=rootport1
xio3130-downstream,id=port1,bus=switch,chassis=2,slot=1
xio3130-downstream,id=port2,bus=switch,chassis=2,slot=2
xio3130-downstream,id={FREE_PORT},bus=switch,chassis=2,slot=3
e1000e,id={SWITCH_NIC},bus=port1
virtio-gpu-pci,id={GPU},bus=port2
pcie-root-port,id=rootport2,bus=pcie.0,chassis=3,slot=3
nvme-subsys,id=subsystem
nvme,id={DRIVE},bus=rootport2,subsys=subsystem,serial=1,sriov_max_vfs={VIRTUAL_FUNCTIONS},sriov_vq_flexible=8,\
sriov_vi_flexible=4,max_ioqpairs=18,msix_qsize=18
pcie-root-port,id=rootport3,bus=pcie.0,chassis=4,slot=4
virtio-net-pci,id={PARAVIRTUAL_NIC},bus=rootport3
virtio-rng-pci,bus=pcie.0
virtio-serial-pci,bus=pcie.0
""".splitlines()

KERNEL_COMMAND_LINE = (
    "console=ttyS0 quiet panic=1 intel_iommu=on iommu=pt random.trust_cpu=on mitigations=off nowatchdog"
    # A guest that gets little CPU time would otherwise find its timers broken, and its time wrong.
    " no_timer_check tsc=unstable clocksource=hpet rcupdate.rcu_cpu_stall_suppress=1"
)


def arguments() -> list[str]:
    """Return the arguments of QEMU for this hardware."""
    return MACHINE + SOCKETS + [word for device in DEVICES for word in ("-device", device)]
