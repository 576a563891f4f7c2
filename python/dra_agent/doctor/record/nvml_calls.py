"""Records NVML: the calls that the agent makes to describe the host, and the calls of the survey."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import msgspec

from dra_agent.deadline import Deadline
from dra_agent.diagnostic import UnreadDiagnostic
from dra_agent.doctor.record.identity import Replacements
from dra_agent.doctor.record.nvml_survey import survey
from dra_agent.errors import AgentError
from dra_agent.host import Host
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.nvidia.nvml_client import acquire
from dra_agent.inventory.settings import InventorySettings, PartitionRule
from dra_agent.nvml import call_log
from dra_agent.nvml.call_log import RecordedCall
from dra_agent.nvml.client import worker_program
from dra_agent.nvml.values import Codec, targets
from dra_agent.recording import NVML, Omission
from dra_agent.topology import Topology, scan

DRIVER = "nvidia"
TIMEOUT_S = 300.0
_LOG = "calls"
"""The file that the worker process writes, in the folder of the recording until it is complete."""
_RAW = re.compile(r"uuid|guid|serial", re.IGNORECASE)
"""Fields of structures that identify hardware, as bytes and not as text: nvmlGpuFabricInfo's clusterUuid."""


class NvmlRecorder:
    """See dra_agent.doctor.record.vendor.LibraryRecorder."""

    name = "NVML"
    timeout_s = TIMEOUT_S
    file = NVML

    def __init__(self) -> None:
        self._calls: list[call_log.RecordedCall] = []

    def record(self, host: Host, settings: InventorySettings, folder: Path, deadline: Deadline) -> list[Omission]:
        """Make the calls, if the agent would use NVML on this host."""
        topology = scan(host)
        if not any(function.driver == DRIVER for function in topology.devices):
            return []
        return record_calls(host, topology, settings, folder / _LOG, deadline)

    def load(self, folder: Path) -> list[Omission]:
        """Take the calls that the worker process wrote."""
        log = folder / _LOG
        try:
            raw = log.read_bytes()
        except FileNotFoundError:
            return []
        # A worker that was killed may have left half a line.
        log.unlink()
        try:
            self._calls = call_log.parse(raw[: raw.rfind(b"\n") + 1])
        except call_log.CallLogError as error:
            return [Omission("NVML", f"call {error.line}: {error}")]
        return []

    def learn(self, replacements: Replacements) -> None:
        """Take texts that identify GPUs."""
        for call in self._calls:
            if call.name == "nvmlDeviceGetSerial" and isinstance(call.value, str):
                replacements.learn(call.value)

    def replace_identity(self, replacements: Replacements) -> None:
        """Replace UUIDs and serial numbers."""
        if self._calls:
            import pynvml

            self._calls = without_identity(self._calls, pynvml, replacements)

    def content(self) -> bytes:
        """Return the calls as `nvml.call_log` encodes them."""
        return call_log.encode(self._calls) if self._calls else b""


def record_calls(
    host: Host, topology: Topology, settings: InventorySettings, log: Path, deadline: Deadline
) -> list[Omission]:
    """Make the calls, which the worker process writes to `log`; return the parts that could not be read."""
    omitted: list[Omission] = []
    gpus = [function.pci_address for function in topology.devices if function.driver == DRIVER]
    partitions = msgspec.structs.replace(settings, partition=(PartitionRule(when="true", mode="mig"),), share=())
    with worker_program("dra_agent.nvml.recording_worker", str(log.absolute())):
        nvml = acquire(host.nvml, settings.nvml_timeout)
        try:
            # Another user of the library in this process would have its calls recorded, or keep ours from it.
            nvml.stop()
            for one in (settings, partitions):
                omitted += _collect(host, topology, one)
            nvml.start()
            for response in survey(nvml, gpus, deadline):
                if response.code is None:
                    omitted.append(Omission(f"NVML {response.gpu} {response.call}".replace("  ", " "), response.error))
        except AgentError as error:
            omitted.append(Omission("NVML", error.message))
        finally:
            nvml.stop()
            nvml.close()
    return omitted


def _collect(host: Host, topology: Topology, settings: InventorySettings) -> list[Omission]:
    collector = Collector(host, settings)
    try:
        inventory = collector.collect(topology)
        collector.faults()
    finally:
        collector.close()
    unread = [problem for problem in inventory.problems if isinstance(problem, UnreadDiagnostic)]
    return [Omission(problem.where, problem.message) for problem in unread]


def without_identity(calls: list[RecordedCall], module: Any, replacements: Replacements) -> list[RecordedCall]:
    """Replace UUIDs and serial numbers in arguments and results, also inside of structures."""
    codec = Codec(module)

    def replaced(value: Any) -> Any:
        match value:
            case str():
                return replacements.text(value)
            case list():
                return [replaced(item) for item in value]
            case {"b": str(text)}:
                return {"b": replacements.data(bytes.fromhex(text)).hex()}
            case {"d": [str(name), str(text)]}:
                return {"d": [name, _structure(codec, {"d": [name, text]}, text, replacements)]}
            case {"p": _}:
                return value
            case dict():
                return {key: replaced(inner) for key, inner in value.items()}
        return value

    changed = []
    for call in calls:
        filled = [(place, _structure(codec, call.args[place], text, replacements)) for place, text in call.filled]
        changed.append(
            msgspec.structs.replace(
                call,
                args=replaced(call.args),
                value=replaced(call.value),
                refused=call.refused and (call.refused[0], replacements.text(call.refused[1])),
                filled=filled,
            )
        )
    return changed


def _structure(codec: Codec, encoded: Any, content: str, replacements: Replacements) -> str:
    """Replace in the bytes of a structure, whose type is that of an encoded value."""
    raw = bytearray(replacements.data(bytes.fromhex(content)))
    for start, size in _identity_spans(type(targets(codec.decode(encoded)))):
        raw[start : start + size] = replacements.raw(bytes(raw[start : start + size]))
    return bytes(raw).hex()


def _identity_spans(kind: Any) -> list[tuple[int, int]]:
    """Return offsets and sizes of the fields that identify hardware with bytes."""
    if issubclass(kind, ctypes.Array):
        size = ctypes.sizeof(kind._type_)
        inside = _identity_spans(kind._type_)
        return [(index * size + start, length) for index in range(kind._length_) for start, length in inside]
    if not issubclass(kind, ctypes.Structure):
        return []
    spans = []
    for name, inner, *_ in getattr(kind, "_fields_", ()):
        field = getattr(kind, name)
        if _RAW.search(name) and _is_bytes(inner):
            spans.append((field.offset, field.size))
        else:
            spans += [(field.offset + start, size) for start, size in _identity_spans(inner)]
    return spans


def _is_bytes(kind: Any) -> bool:
    return issubclass(kind, ctypes.Array) and kind._type_ in (ctypes.c_ubyte, ctypes.c_uint8)
