"""Runs vendors' tools for a recording: each with a deadline and a bound; never lspci where it would wake a device."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dra_agent.command import HostCommand
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.nvidia.describe import CONTROL, find_mps_control
from dra_agent.recording import Entry

MAX_OUTPUT_BYTES = 4 << 20
_TIMEOUT_S = 60.0
"""Without persistence mode nvidia-smi initializes every GPU, which takes seconds for each."""
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/rocm/bin"
_SUSPENDED = frozenset({"suspended", "suspending", "resuming"})


@dataclass(frozen=True, slots=True)
class Tool:
    """A command that only reads."""

    name: str
    arguments: tuple[str, ...]
    file: str
    """Name of its output in the recording."""


TOOLS = (
    Tool("nvidia-smi", ("-q", "-x"), "nvidia-smi.xml"),
    Tool("amd-smi", ("static", "--json"), "amd-smi.json"),
    Tool("rocm-smi", ("--showallinfo", "--json"), "rocm-smi.json"),
    Tool("xpu-smi", ("discovery", "-j"), "xpu-smi.json"),
    Tool("lspci", ("-nnvvv",), "lspci.txt"),
)


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """The output of a tool, or the reason for its absence."""

    tool: Tool
    text: str = ""
    reason: str = ""


def run_tools(host: Host, entries: Iterable[Entry], tools: Iterable[Tool] = TOOLS) -> Iterator[ToolOutput]:
    """Run the tools that are installed. `entries` is the recorded tree, which shows suspended functions."""
    asleep = suspended(entries)
    for tool in tools:
        path = find_tool(host, tool.name)
        if path is None:
            yield ToolOutput(tool, reason="not installed")
        elif tool.name == "lspci" and asleep:
            reason = f"not run: it reads the configuration space, which would wake {asleep[0]}"
            yield ToolOutput(tool, reason=reason)
        else:
            driver = host.driver_tool(tool.name) if tool.name == "nvidia-smi" else None
            yield _run(tool, path, driver.environment() if driver is not None else {})


def find_tool(host: Host, name: str) -> Path | None:
    """Find a tool of the host; a simulated host has its own nvidia-smi and nothing else."""
    if name == "nvidia-smi" and (host.driver_root is not None or host.dev != Path("/dev")):
        return host.driver_program(name)
    if host.dev != Path("/dev"):
        return None
    found = shutil.which(name) or shutil.which(name, path=_SYSTEM_PATH)
    return Path(found) if found else None


def installed(host: Host) -> tuple[str, ...]:
    """Return the names of the programs that the agent uses, and that the host has."""
    found = [name for name in ("nvidia-smi", "nvidia-ctk") if find_tool(host, name) is not None]
    return (*found, *((CONTROL,) if find_mps_control(host) is not None else ()))


def suspended(entries: Iterable[Entry]) -> list[str]:
    """Return the addresses of functions that are suspended; reading their configuration space resumes them."""
    status = "/power/runtime_status"
    return [
        entry.path.removesuffix(status).rpartition("/")[2]
        for entry in entries
        if entry.path.endswith(status) and (entry.text or "").strip() in _SUSPENDED
    ]


def _run(tool: Tool, path: Path, environment: Mapping[str, str]) -> ToolOutput:
    try:
        done = HostCommand(path, _TIMEOUT_S, environment={**environment, "LC_ALL": "C"}).run(tool.arguments)
    except RetryableError as error:
        return ToolOutput(tool, reason=error.message)
    if len(done.output) > MAX_OUTPUT_BYTES:
        return ToolOutput(tool, reason=f"wrote more than {MAX_OUTPUT_BYTES >> 20} MiB")
    if done.status != 0:
        return ToolOutput(tool, reason=f"exit code {done.status}: {done.last_line}")
    return ToolOutput(tool, text=done.output.decode(errors="replace"))
