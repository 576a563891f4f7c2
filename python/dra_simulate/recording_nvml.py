"""Converts the recorded calls of NVML into the state of the simulated library, where the library models the values.

A call that failed on the host fails in the simulation with the same code. Values that were not recorded are neutral.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dra_agent.nvml.call_log import RecordedCall
from dra_agent.nvml.values import Codec
from dra_agent.recording import Entry
from dra_simulate.mig import ComputeInstance, GpuInstance, GpuPartitioning
from dra_simulate.nvml import (
    Access,
    Condition,
    Driver,
    FabricCondition,
    Fault,
    Gpu,
    Link,
    MigProfile,
    NvLink,
    NvmlState,
    Pci,
)

_PROFILES = range(18)
_PROFILE_INFO = "nvmlDeviceGetGpuInstanceProfileInfo"
_NOT_SUPPORTED = 3
_NO_PERMISSION = 4
_RECOVERY_ACTION = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION."""
_NEED_CONFIG = ("nvmlDeviceGetGpuInstancePossiblePlacements", "nvmlDeviceGetGpuInstances")
_NO_FABRIC = 0
"""NVML_GPU_FABRIC_STATE_NOT_SUPPORTED."""
_FABRIC_STRUCTURES = ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t")
_UNKNOWN_END = 0xFF
"""NVML_NVLINK_DEVICE_TYPE_UNKNOWN."""
_UNICAST_POINTER = 0
"""NVML_GPU_FABRIC_CLIQUE_TYPE_UNICAST_POINTER."""
_COMPUTE_PROFILES = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}
"""Compute instance profile by its number of slices (nvml.h: NVML_COMPUTE_INSTANCE_PROFILE_*)."""
_FAILING = (
    *(f"nvmlDeviceGet{name}" for name in ("Name", "MinorNumber", "Brand", "Architecture", "NumGpuCores")),
    *(f"nvmlDeviceGet{name}" for name in ("CudaComputeCapability", "PersistenceMode", "MigMode", "RemappedRows")),
    *(f"nvmlDeviceGet{name}" for name in ("MemoryInfo", "TotalEccErrors", "SupportedEventTypes", "ComputeMode")),
    *("nvmlDeviceGetUUID", "nvmlDeviceGetVirtualizationMode", "nvmlDeviceGetNumaNodeId", "nvmlDeviceGetFieldValues"),
    *("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo_v4"),
    *("nvmlDeviceRegisterEvents", "nvmlDeviceGetMaxMigDeviceCount"),
)
"""Functions whose recorded errors are repeated; pynvml calls them by the same name."""


class RecordedGpu:
    """The recorded calls about one handle."""

    def __init__(self, calls: Sequence[RecordedCall], codec: Codec, tokens: set[int]) -> None:
        self._codec = codec
        self._calls = {
            _key(call.name, call.args[1:]): call for call in calls if call.args and _token(call.args[0]) in tokens
        }

    def value(self, name: str, *arguments: Any) -> Any:
        """Return the result of a call with these arguments; None where it failed or was not made."""
        call = self._calls.get(_key(name, [self._codec.encode(argument) for argument in arguments]))
        return self._codec.decode(call.value) if call is not None and call.code == 0 else None

    def filled(self, name: str, number: int = 1, first: int | None = None, kind: str = "") -> Any:
        """Return the output argument of a call.

        `first` is the value of the first argument after the handle, `kind` the type of the output argument.
        """
        for call in self._calls.values():
            if call.name == name and call.code == 0 and (first is None or call.args[1] == first):
                for place, content in call.filled:
                    if place == number:
                        argument = call.args[number]
                        data = self._codec.decode(argument.get("r", argument))
                        if kind not in ("", type(data).__name__):
                            continue
                        self._codec.fill(data, content)
                        return data
        return None

    def code(self, name: str, *arguments: Any) -> int | None:
        """Return the code of a call with these arguments; None where it was not made."""
        call = self._calls.get(_key(name, [self._codec.encode(argument) for argument in arguments]))
        return None if call is None else call.code

    def failures(self) -> dict[str, int]:
        """Return the functions that always failed, with their codes."""
        codes: dict[str, set[int]] = {}
        for call in self._calls.values():
            if call.name in _FAILING and call.code not in (None, _NO_PERMISSION):
                codes.setdefault(call.name, set()).add(call.code or 0)
        return {name: found.pop() for name, found in codes.items() if 0 not in found and len(found) == 1}


def derive(calls: Sequence[RecordedCall], entries: Iterable[Entry]) -> tuple[NvmlState, dict[str, GpuPartitioning]]:
    """Return the state of the library, and the MIG instances of its GPUs."""
    import pynvml

    codec = Codec(pynvml)
    tree = {entry.path: entry for entry in entries}
    gpus: list[Gpu] = []
    faults: list[Fault] = []
    conditions: dict[str, Condition] = {}
    partitioning: dict[str, GpuPartitioning] = {}
    profiles_need_mig = False
    for address, tokens in _handles(calls, codec).items():
        recorded = RecordedGpu(calls, codec, tokens)
        gpu = _gpu(recorded, address, tree)
        gpus.append(gpu)
        profiles_need_mig |= _profiles_need_mig(recorded)
        conditions[gpu.uuid] = _condition(recorded)
        faults += [Fault(function=name, device=gpu.uuid, code=code) for name, code in recorded.failures().items()]
        mode = recorded.value("nvmlDeviceGetMigMode")
        if mode and any(mode):
            instances = _instances(calls, codec, recorded, gpu.mig, tokens)
            made = sum(len(instance.compute_instances) for instance in instances)
            partitioning[gpu.uuid] = GpuPartitioning(bool(mode[0]), bool(mode[1]), made, instances)
    state = NvmlState(
        1,
        _driver(calls, profiles_need_mig=profiles_need_mig),
        tuple(gpus),
        faults=tuple(faults),
        conditions=conditions,
        access=_access(calls),
    )
    return state, partitioning


def _access(calls: Sequence[RecordedCall]) -> Access:
    """Return the permissions of the process that recorded."""
    refused = {call.name for call in calls if call.code == _NO_PERMISSION}
    lists = any(name in _NEED_CONFIG for name in refused)
    return Access(admin=not lists, config=not lists, monitor="nvmlDeviceGetMemoryInfo" not in refused)


def _driver(calls: Sequence[RecordedCall], *, profiles_need_mig: bool) -> Driver | None:
    values = {call.name: call.value for call in calls if call.code == 0}
    version = values.get("nvmlSystemGetDriverVersion")
    if not isinstance(version, str):
        return None
    cuda = values.get("nvmlSystemGetCudaDriverVersion_v2")
    library = values.get("nvmlSystemGetNVMLVersion")
    return Driver(
        version,
        library if isinstance(library, str) else f"12.{version}",
        cuda if isinstance(cuda, int) else 0,
        profiles_need_mig=profiles_need_mig,
    )


def _handles(calls: Sequence[RecordedCall], codec: Codec) -> dict[str, set[int]]:
    """Return the tokens of each GPU's handles, by address as sysfs writes it."""
    found: dict[str, set[int]] = {}
    for call in calls:
        if call.name == "nvmlDeviceGetHandleByPciBusId" and call.code == 0 and call.args:
            bus_id = codec.decode(call.args[0])
            text = bus_id.decode(errors="replace") if isinstance(bus_id, bytes) else str(bus_id)
            domain, _, rest = text.partition(":")
            token = _token(call.value)
            if token is not None and domain and not set(domain) - set("0123456789abcdefABCDEF"):
                found.setdefault(f"{int(domain, 16):04x}:{rest.lower()}", set()).add(token)
    return found


def _gpu(recorded: RecordedGpu, address: str, tree: dict[str, Entry]) -> Gpu:
    place = _place(address, tree)
    own = f"sys/devices/{'/'.join(place)}" if place else f"sys/bus/pci/devices/{address}"
    memory = recorded.value("nvmlDeviceGetMemoryInfo")
    detailed = recorded.value("nvmlDeviceGetMemoryInfo", 0x2000028)
    ecc = recorded.value("nvmlDeviceGetEccMode")
    links = tuple(_nvlink(int(kind), str(bus_id)) for kind, bus_id in recorded.value("read_nvlinks") or ())
    return Gpu(
        uuid=recorded.value("nvmlDeviceGetUUID") or f"GPU-00000000-0000-4000-8000-{address.encode().hex()[-12:]}",
        pci=_pci(address, own, tree),
        minor=recorded.value("nvmlDeviceGetMinorNumber") or 0,
        name=_text(recorded.value("nvmlDeviceGetName")),
        brand=recorded.value("nvmlDeviceGetBrand") or 0,
        architecture=recorded.value("nvmlDeviceGetArchitecture") or 0,
        compute_capability=tuple(recorded.value("nvmlDeviceGetCudaComputeCapability") or (0, 0)),
        serial="0",
        vbios="",
        part_number="",
        memory_bytes=memory.total if memory is not None else 0,
        reserved_bytes=detailed.reserved if detailed is not None else 0,
        bar1_bytes=0,
        multiprocessors=0,
        cores=recorded.value("nvmlDeviceGetNumGpuCores") or 0,
        copy_engines=0,
        decoders=0,
        encoders=0,
        power_limit_watts=0,
        ecc=bool(ecc[0]) if ecc else recorded.value("nvmlDeviceGetTotalEccErrors", 1, 0) is not None,
        link=Link(
            recorded.value("nvmlDeviceGetCurrPcieLinkGeneration") or 0,
            recorded.value("nvmlDeviceGetCurrPcieLinkWidth") or 0,
            recorded.value("nvmlDeviceGetMaxPcieLinkGeneration") or 0,
            recorded.value("nvmlDeviceGetMaxPcieLinkWidth") or 0,
        ),
        numa_node=_number(tree, f"{own}/numa_node", -1),
        cpus=(),
        path=_below_root(place),
        nvlinks=links,
        nvlink_slots=len(links),
        fabric=_fabric(_fabric_info(recorded)),
        virtualization=recorded.value("nvmlDeviceGetVirtualizationMode") or 0,
        mig=tuple(profile for number in _PROFILES if (profile := _profile(recorded, number)) is not None),
    )


def _nvlink(kind: int, bus_id: str) -> NvLink:
    """Return an active link; an end without an address is that of a switch elsewhere."""
    domain, _, rest = bus_id.partition(":")
    try:
        address = f"{int(domain, 16):04x}:{rest.lower()}"
    except ValueError:
        address = ""
    return NvLink(Pci(address, 0, 0), kind if kind >= 0 else _UNKNOWN_END)


def _profiles_need_mig(recorded: RecordedGpu) -> bool:
    """Return True if the driver has profiles but refuses the newer query of them, as nvml.h states for MIG mode off."""
    codes = {(recorded.code(_PROFILE_INFO, number, 1), recorded.code(_PROFILE_INFO, number, 2)) for number in _PROFILES}
    return (0, _NOT_SUPPORTED) in codes


def _profile(recorded: RecordedGpu, number: int) -> MigProfile | None:
    info = recorded.value(_PROFILE_INFO, number) or recorded.value(_PROFILE_INFO, number, 2)
    info = info or recorded.value(_PROFILE_INFO, number, 1)
    if info is None:
        return None
    places = recorded.filled("nvmlDeviceGetGpuInstancePossiblePlacements", 2, info.id)
    count = recorded.filled("nvmlDeviceGetGpuInstancePossiblePlacements", 3, info.id)
    return MigProfile(
        profile=number,
        id=info.id,
        name=_text(getattr(info, "name", f"{info.sliceCount}g")),
        slices=info.sliceCount,
        max_instances=info.instanceCount,
        memory_mib=info.memorySizeMB,
        multiprocessors=info.multiprocessorCount,
        copy_engines=info.copyEngineCount,
        decoders=info.decoderCount,
        encoders=info.encoderCount,
        jpeg=info.jpegCount,
        ofa=info.ofaCount,
        placements=tuple((place.start, place.size) for place in places[: count.value]) if places and count else (),
    )


def _fabric_info(recorded: RecordedGpu) -> Any:
    """Return the newest structure that the driver filled; None if it filled none."""
    info = recorded.filled("nvmlDeviceGetGpuFabricInfo_v4")
    for kind in _FABRIC_STRUCTURES:
        info = info or recorded.filled("nvmlDeviceGetGpuFabricInfoV", kind=kind)
    return info


def _fabric(info: Any) -> tuple[str, int] | None:
    if info is None or info.state == _NO_FABRIC:
        return None
    text = bytes(info.clusterUuid).hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}", _clique(info)


def _clique(info: Any) -> int:
    if not hasattr(info, "cliques"):
        return int(info.cliqueId)
    entries = info.cliques[: info.numCliques]
    return next((int(entry.id) for entry in entries if entry.type == _UNICAST_POINTER), 0)


def _fabric_condition(info: Any) -> FabricCondition | None:
    if info is None or info.state == _NO_FABRIC:
        return None
    return FabricCondition(info.state, info.status, info.healthMask, getattr(info, "healthSummary", 0))


def _condition(recorded: RecordedGpu) -> Condition:
    rows = recorded.value("nvmlDeviceGetRemappedRows")
    fields = recorded.value("nvmlDeviceGetFieldValues", [_RECOVERY_ACTION])
    return Condition(
        persistence_mode=bool(recorded.value("nvmlDeviceGetPersistenceMode")),
        compute_mode=recorded.value("nvmlDeviceGetComputeMode") or 0,
        recovery_action=fields[0].value.uiVal if fields and fields[0].nvmlReturn == 0 else 0,
        ecc_corrected=recorded.value("nvmlDeviceGetTotalEccErrors", 0, 0) or 0,
        ecc_uncorrected=recorded.value("nvmlDeviceGetTotalEccErrors", 1, 0) or 0,
        remapped_rows=(rows[0], rows[1], rows[2], rows[3]) if rows and len(rows) == 4 else (0, 0, 0, 0),
        fabric=_fabric_condition(_fabric_info(recorded)),
    )


@dataclass(frozen=True, slots=True)
class _MigDevice:
    """A MIG device: a compute instance, and the name of the profile of its GPU instance."""

    gpu_instance: int
    profile: str
    compute: ComputeInstance


def _instances(
    calls: Sequence[RecordedCall],
    codec: Codec,
    recorded: RecordedGpu,
    profiles: Sequence[MigProfile],
    tokens: set[int],
) -> tuple[GpuInstance, ...]:
    """Collect the instances of a GPU.

    A process without permission could list MIG devices only, without the place of their GPU instances. Those get any
    place, which the simulated library does not report either.
    """
    devices = _mig_devices(calls, codec, tokens)
    ids = {profile.name.rpartition(" ")[2]: profile.id for profile in profiles}
    found = {}
    for place, device in enumerate(devices):
        if device.gpu_instance not in found and device.profile in ids:
            found[device.gpu_instance] = GpuInstance(device.gpu_instance, ids[device.profile], place, 1)
    found |= _placed_instances(calls, codec, recorded, tokens)
    return tuple(
        msgspec.structs.replace(
            instance,
            compute_instances=tuple(device.compute for device in devices if device.gpu_instance == instance.id),
        )
        for instance in found.values()
    )


def _placed_instances(
    calls: Sequence[RecordedCall], codec: Codec, recorded: RecordedGpu, tokens: set[int]
) -> dict[int, GpuInstance]:
    """Return the GPU instances whose place was recorded: their handles belong to the GPU that listed them."""
    listed = {
        token
        for call in calls
        if call.name == "nvmlDeviceGetGpuInstanceById" and call.code == 0 and _token(call.args[0]) in tokens
        if (token := _token(call.value)) is not None
    }
    for call in calls:
        if call.name == "nvmlDeviceGetGpuInstances" and call.code == 0 and _token(call.args[0]) in tokens:
            handles, count = codec.decode(call.args[2]), codec.decode(call.args[3]["r"])
            for place, content in call.filled:
                codec.fill(handles if place == 2 else count, content)
            words = bytes(handles)
            listed |= {int.from_bytes(words[8 * index : 8 * index + 8], "little") for index in range(count.value)}
    found: dict[int, GpuInstance] = {}
    for call in calls:
        if call.name == "nvmlGpuInstanceGetInfo" and call.code == 0 and _token(call.args[0]) in listed:
            info = codec.decode(call.value)
            found[info.id] = GpuInstance(info.id, info.profileId, info.placement.start, info.placement.size)
    return found


def _mig_devices(calls: Sequence[RecordedCall], codec: Codec, tokens: set[int]) -> list[_MigDevice]:
    """Return the MIG devices of a GPU; the starts of compute instances follow from the order of ids."""
    handles = {
        token
        for call in calls
        if call.name == "nvmlDeviceGetMigDeviceHandleByIndex" and call.code == 0 and _token(call.args[0]) in tokens
        if (token := _token(call.value)) is not None
    }
    found: dict[tuple[int, int], _MigDevice] = {}
    for handle in sorted(handles):
        recorded = RecordedGpu(calls, codec, {handle})
        gpu_instance = recorded.value("nvmlDeviceGetGpuInstanceId")
        number = recorded.value("nvmlDeviceGetComputeInstanceId")
        attributes = recorded.value("nvmlDeviceGetAttributes_v2")
        uuid = recorded.value("nvmlDeviceGetUUID")
        if gpu_instance is None or number is None or attributes is None or uuid is None:
            continue
        size = attributes.computeInstanceSliceCount
        before = [other.compute.size for key, other in found.items() if key[0] == gpu_instance and key[1] != number]
        compute = ComputeInstance(number, _COMPUTE_PROFILES.get(size, 0), sum(before), size, uuid)
        # "NVIDIA H100 80GB HBM3 MIG 1c.2g.20gb": a part of the compute slices of a 2g.20gb.
        name = _text(recorded.value("nvmlDeviceGetName")).rpartition(" ")[2]
        profile = re.sub(r"^\d+c\.", "", name)
        found[gpu_instance, number] = _MigDevice(gpu_instance, profile, compute)
    return list(found.values())


def _below_root(place: tuple[str, ...]) -> tuple[str, ...]:
    """Remove the directories above the root bus, such as those of VMBUS, which has one for each GPU."""
    root = next((number for number, part in enumerate(place) if re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", part)), 0)
    return place[root:]


def _place(address: str, tree: dict[str, Entry]) -> tuple[str, ...]:
    entry = tree.get(f"sys/bus/pci/devices/{address}")
    parts = [part for part in (entry.link or "").split("/") if part != ".."] if entry is not None else []
    return tuple(parts[1:]) if parts[:1] == ["devices"] else ()


def _pci(address: str, own: str, tree: dict[str, Entry]) -> Pci:
    entry = tree.get(f"{own}/uevent")
    values = dict(line.partition("=")[::2] for line in ((entry.text or "") if entry else "").splitlines())
    return Pci(address, _packed(values.get("PCI_ID", "")), _packed(values.get("PCI_SUBSYS_ID", "")))


def _packed(ids: str) -> int:
    vendor, _, device = ids.partition(":")
    try:
        return (int(device, 16) & 0xFFFF) << 16 | int(vendor, 16) & 0xFFFF
    except ValueError:
        return 0


def _number(tree: dict[str, Entry], path: str, default: int) -> int:
    entry = tree.get(path)
    try:
        return int((entry.text or "").strip()) if entry is not None else default
    except ValueError:
        return default


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _token(value: Any) -> int | None:
    match value:
        case {"p": [str(), int(token)]}:
            return token
    return None


def _key(name: str, encoded: list[Any]) -> str:
    return f"{name}{json.dumps(encoded, sort_keys=True)}"
