"""The load that processes play on a shared NVIDIA GPU is that of the claims of their pods, and of no other claim.

The processes are those of real containers: simulated NVML has their PIDs, and the simulated /proc their start times as
the kernel counts them. Their cgroups have the names that a kubelet and containerd with systemd's driver choose for the
pods, because the kubelets of this cluster create none (cgroupsPerQOS).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from cluster.kube.agent import Agent
from cluster.kube.workload import WAIT, Namespace, request
from dra_agent.processes.stat import process_ids, read_stat
from dra_simulate import inject, nvml, processes

HARDWARE = {"node-a": "dgx-h100"}
TIME_SLICED, WITH_MPS = "0000:1b:00.0", "0000:43:00.0"
AGENT_CONFIG = f"""\
[inventory]
include = ['device.attributes["resource.kubernetes.io"].pciBusID in ["{TIME_SLICED}", "{WITH_MPS}"]']

[[inventory.share]]
when = 'device.attributes["resource.kubernetes.io"].pciBusID == "{TIME_SLICED}"'
enforcement = "none"

[[inventory.share]]
when = 'device.attributes["resource.kubernetes.io"].pciBusID == "{WITH_MPS}"'
enforcement = "mps"

[telemetry]
interval = 1
claim_labels = "on"
"""
WORKERS = f"sleep 3600 & {WAIT}"
"""The command of a pod whose first process has two others."""
HOST = "host"
"""The owner of a process that is in no container."""
HOST_CGROUP = "system.slice/display-manager.service"
GIB = 1 << 30
MEMORY_BYTES = {"train": (3 * GIB, 1 * GIB), "serve": (8 * GIB, 2 * GIB), HOST: (0,)}
IDLE_WATTS, BUSY_WATTS = 70.0, 450.0
NOT_SUPPORTED = 3
OF_A_SHARE = {"gpu_utilization_ratio", "memory_utilization_ratio", "memory_used_bytes"}
"""All that can be known of a claim that shares a GPU."""

Agents = dict[str, Agent]
Percents = tuple[int, int]
"""Of the GPU and of its memory."""
Step = Mapping[str, Sequence[Percents]]
"""What the processes of each owner play."""
Values = tuple[float, float] | None
"""Utilization of the GPU and of its memory of a claim; None: not known."""
STEPS: tuple[Step, ...] = (
    {"train": ((20, 5), (15, 4)), "serve": ((60, 12), (0, 0))},
    {"train": ((0, 0), (0, 0)), "serve": ((57, 30), (40, 10))},
    {"train": ((45, 3), (5, 1)), "serve": ((0, 0), (0, 0)), HOST: ((30, 20),)},
    {"train": ((33, 33), (0, 0)), "serve": ((33, 33), (1, 1)), HOST: ((33, 33),)},
    {"train": ((0, 0), (0, 0)), "serve": ((0, 0), (0, 0))},
)


def total(load: Sequence[Percents]) -> tuple[float, float]:
    return round(sum(gpu for gpu, _ in load) / 100, 4), round(sum(memory for _, memory in load) / 100, 4)


class SharedGpu:
    """One GPU, two pods that share it, and their processes in simulated NVML."""

    def __init__(self, agent: Agent, namespace: Namespace, address: str) -> None:
        self.agent = agent
        self.namespace = namespace
        self.address = address
        self.device = f"gpu-{address.replace(':', '-').replace('.', '-')}"
        self.pids: dict[str, list[int]] = {HOST: [os.getpid()]}
        self.uuid = inject.load(agent.host, address)
        self.show(HOST, HOST_CGROUP)
        for name in ("train", "serve"):
            selector = f'device.attributes["resource.kubernetes.io"].pciBusID == "{address}"'
            capacity = {"requests": {"memory": "20Gi"}}
            namespace.claim(name, request("gpu", "nvidia-share", selector, capacity=capacity))
            namespace.pod(name, claim=name, command=WORKERS)
            # kube-scheduler 1.37 may count a share twice while its allocation is being written.
            namespace.running(name)
            (result,) = namespace.results(name)
            assert result["device"] == self.device
            self.add_pod(name)
            for pid in self.pids[name]:
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                assert f"DRA_AGENT_REQUEST_GPU={self.device}".encode() in environment

    def add_pod(self, name: str) -> None:
        """Find the processes of a pod's container, and list them in the simulated /proc."""
        pod = self.namespace.get_pod(name)
        container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        rows = [line.split() for line in self.agent.node.ctr("tasks", "ls").splitlines()]
        first = next(int(row[1]) for row in rows if row[0] == container)
        workers: list[int] = []

        def started() -> bool:
            workers[:] = [pid for pid in process_ids() if (stat := read_stat(pid)) and stat.parent == first]
            return len(workers) == 2

        self.namespace.api.wait(started, f"the processes of {name} run")
        self.pids[name] = sorted(workers)
        uid = pod["metadata"]["uid"].replace("-", "_")
        slices = f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid}.slice"
        self.show(name, f"{slices}/cri-containerd-{container}.scope")

    def show(self, owner: str, cgroup: str, *, name: str | None = None) -> None:
        """List the processes of an owner in the simulated /proc, with the start time that the kernel has.

        `name`: None for that of the process.
        """
        for pid in self.pids[owner]:
            processes.run(self.agent.host, pid, cgroup, name=name or "")
            for file in ("stat", "comm") if name is None else ("stat",):
                path = self.agent.host / "proc" / str(pid) / file
                path.unlink()
                path.symlink_to(f"/proc/{pid}/{file}")

    def play(
        self, step: Step, *, device: Percents | None = None, sampled_at: Mapping[str, float] | None = None
    ) -> None:
        """Let processes and the GPU play a step; those of other owners end.

        `device`: of the GPU in percent; None: what the processes play together. `sampled_at`: when the driver took the
        samples of an owner's processes, since the epoch; others at each call.
        """
        loads = [one for load in step.values() for one in load]
        both = device or (sum(gpu for gpu, _ in loads), sum(memory for _, memory in loads))
        watts = BUSY_WATTS if both[0] else IDLE_WATTS
        inject.play(self.agent.host, self.address, (nvml.LoadStep(0, both, 0, round(watts * 1000)),))
        at = {owner: round(at_s * 1e6) for owner, at_s in (sampled_at or {}).items()}
        played = tuple(
            nvml.Process(self.uuid, pid, memory, utilization=load, sampled_at_us=at.get(owner))
            for owner, loads in step.items()
            for pid, memory, load in zip(self.pids[owner], MEMORY_BYTES[owner], loads, strict=True)
        )
        # At once: no call of the driver has a part of a step.
        with nvml.locked(self.agent.host / "lib"):
            state = nvml.read(self.agent.host / "lib")
            nvml.write(self.agent.host / "lib", msgspec.structs.replace(state, processes=played))


class Observer:
    """Reads /metrics, and remembers every value that a claim had."""

    def __init__(self, gpu: SharedGpu) -> None:
        self.gpu = gpu
        self.seen: dict[str, set[Values]] = {"train": set(), "serve": set()}
        self.names: set[str] = set()
        """Of all series of these claims."""
        self.failing = 0.0
        """Devices of which the processes report what cannot be true."""
        self._metrics: dict[str, float] = {}

    def read(self) -> dict[str, Values]:
        """Return the values of both claims in one response."""
        self._metrics = self.gpu.agent.metrics()
        self.failing = self._metrics.get('dra_agent_telemetry_failing_devices{source="processes"}', 0.0)
        of_claims = [name for name in self._metrics if name.startswith("dra_agent_claim_") and self._labels in name]
        self.names |= {name.partition("{")[0].removeprefix("dra_agent_claim_") for name in of_claims}
        found = {name: self._values(name) for name in self.seen}
        for name, values in found.items():
            self.seen[name].add(values)
        return found

    def memory(self, name: str) -> float | None:
        """Return the memory of a claim in the response that was read last."""
        return self._claim("memory_used_bytes", name)

    def device(self, name: str) -> float | None:
        """Return a value of the GPU in the response that was read last."""
        series = f'dra_agent_device_{name}{{device="{self.gpu.device}"'
        return next((value for one, value in self._metrics.items() if one.startswith(series)), None)

    def wait(self, what: str, **expected: Values) -> None:
        """Wait until both claims have these values in one response."""
        self.gpu.namespace.api.wait(lambda: self.read() == expected, f"{what}: {expected}, not {self.seen}")

    @property
    def _labels(self) -> str:
        return f'namespace="{self.gpu.namespace.name}"'

    def _claim(self, value: str, name: str) -> float | None:
        labels = f'{{claim="{name}",device="{self.gpu.device}",{self._labels}}}'
        return self._metrics.get(f"dra_agent_claim_{value}{labels}")

    def _values(self, name: str) -> Values:
        gpu, memory = (self._claim(f"{of}_utilization_ratio", name) for of in ("gpu", "memory"))
        assert (gpu is None) == (memory is None)
        return None if gpu is None or memory is None else (round(gpu, 4), round(memory, 4))


@pytest.fixture
def gpu(agents: Agents, namespace: Namespace) -> SharedGpu:
    return SharedGpu(agents["node-a"], namespace, TIME_SLICED)


def test_claims_have_what_their_processes_play(gpu: SharedGpu) -> None:
    observed = Observer(gpu)
    for step in STEPS:
        gpu.play(step)
        loads = {owner: total(load) for owner, load in step.items()}
        of_device = total([one for load in step.values() for one in load])

        def played(loads: Mapping[str, Values] = loads, of_device: tuple[float, float] = of_device) -> bool:
            found = observed.read()
            # NVML reports whole percents: there is no other error while a load is constant.
            is_played = all(found[name] == loads[name] for name in found)
            return is_played and observed.device("gpu_utilization_ratio") == pytest.approx(of_device[0])

        gpu.namespace.api.wait(played, f"the claims have what is played: {loads}, not {observed.seen}")
        assert sum(loads[name][0] for name in observed.seen) <= of_device[0] + 1e-9
        for name in observed.seen:
            assert observed.memory(name) == sum(MEMORY_BYTES[name])
    for name, seen in observed.seen.items():
        # While the driver has the GPU's value of one step, and those of processes of the next, it may be unknown.
        assert seen <= {None, *(total(step[name]) for step in STEPS)}, f"{name} had a value that was never played"
    assert observed.names <= OF_A_SHARE
    assert not observed.failing


def test_what_is_not_known_of_processes_is_absent(gpu: SharedGpu, namespace: Namespace) -> None:
    step = STEPS[0]
    train, serve = total(step["train"]), total(step["serve"])
    gpu.play(step)
    Observer(gpu).wait("all is known", train=train, serve=serve)
    observed = Observer(gpu)

    def both() -> None:
        gpu.play(step)
        observed.wait("all is known again", train=train, serve=serve)

    inject.fail(gpu.agent.host, "nvmlDeviceGetProcessUtilization", NOT_SUPPORTED)
    observed.wait("the driver does not count by process", train=None, serve=None)
    assert observed.device("gpu_utilization_ratio") == pytest.approx(0.95)
    assert observed.memory("train") == sum(MEMORY_BYTES["train"]), "memory is counted by another call"
    inject.clear(gpu.agent.host)
    both()
    gpu.play(STEPS[-1], device=(90, 40))
    observed.wait("the GPU computes, and the driver has no samples", train=None, serve=None)
    both()
    gpu.play(step, sampled_at={"train": time.time()})
    observed.wait("the driver repeats the samples of one claim", train=None, serve=serve)
    assert observed.failing == 1
    both()
    assert not observed.failing
    namespace.pod("stranger", command=WORKERS, node=gpu.agent.node.name)
    namespace.running("stranger")
    gpu.add_pod("stranger")
    cgroup = f"machine.slice/libpod-{'1' * 64}.scope"
    for whose in ("a pod of no known claim", "a container of no pod"):
        for pid, played in zip(gpu.pids["stranger"], ((5, 5), (0, 0)), strict=True):
            inject.start_process(gpu.agent.host, gpu.address, pid, 0, utilization=played)
        observed.wait(f"{whose} computes", train=None, serve=None)
        both()
        gpu.show("stranger", cgroup)
    ended = gpu.pids["serve"][0]
    os.kill(ended, signal.SIGKILL)
    namespace.api.wait(lambda: read_stat(ended) is None, "the process has exited")
    observed.wait("a process that has exited computed", train=None, serve=None)
    inject.end_process(gpu.agent.host, ended)
    observed.wait("the driver has no samples of it", train=train, serve=(0.0, 0.0))
    assert {name: seen - {None} for name, seen in observed.seen.items()} == {"train": {train}, "serve": {serve, (0, 0)}}
    assert observed.names <= OF_A_SHARE


def test_only_the_gpu_counts_energy_also_after_a_restart(gpu: SharedGpu) -> None:
    observed, step = Observer(gpu), STEPS[0]
    gpu.play(step)
    played = {name: total(step[name]) for name in observed.seen}
    observed.wait("all is known", **played)
    load = next(one for one in nvml.read(gpu.agent.host / "lib").loads if one.device == gpu.uuid)
    condition = nvml.read(gpu.agent.host / "lib").conditions[gpu.uuid]

    def used() -> float:
        """Return the energy of the GPU until now, in joules, as it is played."""
        return condition.energy_millijoules / 1000 + BUSY_WATTS * (time.time() - load.started_at_ms / 1000)

    def energy() -> float:
        observed.read()
        return observed.device("energy_joules_total") or 0.0

    before = energy()
    assert 0 < before <= used()
    gpu.agent.kill()
    at_restart = used()
    gpu.agent.start().ready()
    gpu.namespace.api.wait(energy, "the energy of the GPU is read again")
    assert at_restart <= (after := energy()) <= used(), f"from {before} J"
    observed.wait("all is known again", **played)
    gpu.play(STEPS[-1])
    observed.wait("the claims are idle", train=(0.0, 0.0), serve=(0.0, 0.0))
    assert after <= energy() <= used()
    assert observed.names <= OF_A_SHARE, "neither energy nor idle time of a share is known"


def test_clients_of_mps_have_values_and_its_server_is_of_no_claim(agents: Agents, namespace: Namespace) -> None:
    gpu = SharedGpu(agents["node-a"], namespace, WITH_MPS)
    observed = Observer(gpu)
    gpu.play(STEPS[1])
    clients = {name: total(STEPS[1][name]) for name in observed.seen}
    observed.wait("the driver names the clients", **clients)
    gpu.show(HOST, HOST_CGROUP, name="nvidia-cuda-mps-server")
    gpu.play({"train": ((0, 0), (0, 0)), "serve": ((0, 0), (0, 0)), HOST: ((97, 40),)})
    observed.wait("the driver names the server", train=None, serve=None)
    assert observed.memory("serve") == sum(MEMORY_BYTES["serve"])
    gpu.play(STEPS[0])
    observed.wait("the driver names the clients again", **{name: total(STEPS[0][name]) for name in observed.seen})
    assert observed.names <= OF_A_SHARE
