"""Makes the recorded calls of NVML again, on a simulated library, and names each call with another response."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import pynvml

from dra_agent.host import Host
from dra_agent.nvml import call_log
from dra_agent.nvml.call_log import RecordedCall
from dra_agent.nvml.client import NvmlCallError, NvmlWorker
from dra_agent.nvml.values import Codec, targets
from eventually import DEADLINE_S

NOT_MODELED = frozenset(
    {
        # Numbers of CPUs and links, and times: not in a recording, or different at each call.
        "nvmlDeviceGetFieldValues",
        "nvmlEventSetCreate",
        "nvmlEventSetWait_v2",
        "nvmlInitWithFlags",
    }
)


def differences(recording: Path, host: Host) -> list[str]:
    """Return a line for each call for which the library of `host` does not respond as recorded."""
    log = recording / "nvml.jsonl"
    if not log.exists():
        return []
    process = NvmlWorker(pynvml, host.nvml_library, 1)
    try:
        process.call("all", DEADLINE_S, "nvmlInitWithFlags", pynvml.NVML_INIT_FLAG_NO_GPUS)
        return _Comparison(process).run(call_log.parse(log.read_bytes()))
    finally:
        process.close()


class _Comparison:
    def __init__(self, process: NvmlWorker) -> None:
        self._process = process
        self._codec = Codec(pynvml)
        self._handles: dict[int, int] = {}
        """Of the simulated library, by the recorded one."""
        self._names: dict[int, str] = {}
        """Of the devices, by the recorded handle."""

    def run(self, calls: list[RecordedCall]) -> list[str]:
        found: dict[str, None] = {}
        for call in calls:
            if call.code is None or call.name in NOT_MODELED or not self._knows(call.args):
                continue
            line = self._compare(call)
            if line:
                found[line] = None
        return list(found)

    def _knows(self, value: Any) -> bool:
        match value:
            case {"p": [_, int(token)]}:
                return token in self._handles
            case list():
                return all(self._knows(item) for item in value)
        return True

    def _compare(self, call: RecordedCall) -> str:
        arguments = [self._codec.decode(self._translated(argument)) for argument in call.args]
        code, value = 0, None
        try:
            value = self._process.call("all", DEADLINE_S, call.name, *arguments)
        except NvmlCallError as error:
            code = error.code
        if code != call.code:
            return f"{self._call(call)}: recorded code {call.code}, the fake has {code}"
        if code != 0:
            return ""
        theirs = self._codec.encode(value)
        if (pair := _pointers(call.value, theirs)) is not None:
            self._handles[pair[0]] = pair[1]
            self._names[pair[0]] = self._device(call)
            return ""
        recorded, fake = [self._plain(call.value)], [self._plain(theirs)]
        for place, content in call.filled:
            target = targets(arguments[place])
            before = self._codec.decode(call.args[place])
            original = targets(before)
            self._codec.fill(original, content)
            recorded.append(self._fields(original, learn=target))
            fake.append(self._fields(target))
        if recorded != fake:
            return f"{self._call(call)}: recorded {_one(recorded)!r}, the fake has {_one(fake)!r}"
        return ""

    def _device(self, call: RecordedCall) -> str:
        """Name a handle: by its address, or by the call that returned it."""
        if call.name == "nvmlDeviceGetHandleByPciBusId":
            text = str(self._codec.decode(call.args[0]), "ascii")
            domain, _, rest = text.partition(":")
            return f"{int(domain, 16):04x}:{rest.lower()}"
        return self._call(call)

    def _call(self, call: RecordedCall) -> str:
        return f"{call.name}({', '.join(self._shown(argument) for argument in call.args)})"

    def _translated(self, value: Any) -> Any:
        match value:
            case {"p": [name, int(token)]}:
                return {"p": [name, self._handles[token]]}
        return value

    def _shown(self, value: Any) -> str:
        match value:
            case {"p": [_, int(token)]}:
                return self._names.get(token, "?")
            case {"r": {"d": [name, _]}} | {"d": [name, _]}:
                return str(name)
        return json.dumps(value)

    def _plain(self, value: Any) -> Any:
        decoded = self._codec.decode(value)
        return self._fields(decoded)

    def _fields(self, value: Any, learn: Any = None) -> Any:
        if isinstance(value, ctypes._Pointer):
            if learn is not None:
                ours, theirs = (ctypes.cast(one, ctypes.c_void_p).value or 0 for one in (value, learn))
                if ours:
                    self._handles[ours] = theirs
            return "handle" if value else None
        if isinstance(value, ctypes.Structure):
            names = [field[0] for field in getattr(value, "_fields_", ())]
            return {name: self._fields(getattr(value, name), getattr(learn, name, None)) for name in names}
        if isinstance(value, ctypes.Array):
            others = list(learn) if learn is not None else [None] * len(value)
            return [self._fields(item, other) for item, other in zip(value, others, strict=True)]
        if isinstance(value, ctypes._SimpleCData):
            return value.value
        return [self._fields(item) for item in value] if isinstance(value, list | tuple) else value


def _pointers(recorded: Any, fake: Any) -> tuple[int, int] | None:
    match recorded, fake:
        case {"p": [_, int(one)]}, {"p": [_, int(other)]}:
            return one, other
    return None


def _one(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values[1:]
