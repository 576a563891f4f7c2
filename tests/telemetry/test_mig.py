"""MIG devices: the memory of each is its own, and nothing else is known of it."""

from __future__ import annotations

from pathlib import Path

import dra_simulate
from dra_agent.inventory.nvidia.nvml_client import acquire
from dra_simulate import inject
from inventory.pair import ADDRESS, PAIR, handle, make
from telemetry.rig import Rig, claim, held

ONE_G = 19
USED_BYTES = 3 << 30


def test_a_mig_device_has_its_own_memory_only(tmp_path: Path) -> None:
    host = dra_simulate.build_machine(PAIR, tmp_path / "host")
    library = acquire(host.nvml, 20.0)
    try:
        library.start()
        library.call("nvmlDeviceSetMigMode", handle(library), 1, about=ADDRESS)
        first = make(library, ONE_G, 0, 1)
        make(library, ONE_G, 1, 1)
        inject.load(tmp_path / "host", ADDRESS, PAIR, utilization=(90, 90), energy_millijoules=10_000)
        inject.start_process(tmp_path / "host", ADDRESS, 4711, USED_BYTES, PAIR, gpu_instance=first, compute_instance=0)
        state = tmp_path / "state"
        state.mkdir()
        rig = Rig(host, state)
        try:
            parts = [device.name for device in rig.inventory.devices if device.pci_address == ADDRESS]
            assert len(parts) == 2
            rig.entries = [claim(f"claim-{number}", held(part)) for number, part in enumerate(parts)]
            rig.sample()
            assert [rig.of_claim("memory_used_bytes", f"claim-{n}", parts[n]) for n in (0, 1)] == [USED_BYTES, 0]
            of_claims = {name for name in rig.series() if name.startswith("dra_agent_claim_")}
            assert {name.partition("{")[0] for name in of_claims} == {
                "dra_agent_claim_memory_used_bytes",
                "dra_agent_claim_memory_limit_bytes",
            }
            assert rig.sampler.snapshot().failures == ()
        finally:
            rig.close()
    finally:
        library.close()
