"""Runs vendors' tools for a recording: each with a deadline and a bound; never lspci where it would wake a device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dra_agent.command import HostCommand
from dra_agent.doctor.record.vendor import Tool, vendor_recordings
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.path_search import find_program
from dra_agent.recording import Entry

MAX_OUTPUT_BYTES = 4 << 20
_TIMEOUT_S = 60.0
"""Without persistence mode nvidia-smi initializes every GPU, which takes seconds for each."""
_ROCM = ("/opt/rocm/bin",)
_SUSPENDED = frozenset({"suspended", "suspending", "resuming"})


LSPCI = Tool("lspci", ("-nnvvv",), "lspci.txt")


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """The output of a tool, or the reason for its absence."""

    tool: Tool
    text: str = ""
    reason: str = ""


def run_tools(host: Host, entries: Iterable[Entry]) -> Iterator[ToolOutput]:
    """Run the tools that are installed. `entries` is the recorded tree, which shows suspended functions."""
    asleep = suspended(entries)
    for tool in (*(tool for vendor in vendor_recordings() for tool in vendor.tools), LSPCI):
        path = find_tool(host, tool.name)
        if path is None:
            yield ToolOutput(tool, reason="not installed")
        elif tool is LSPCI and asleep:
            reason = f"not run: it reads the configuration space, which would wake {asleep[0]}"
            yield ToolOutput(tool, reason=reason)
        else:
            driver = host.driver_tool(tool.name) if _is_of_driver(tool.name) else None
            yield _run(tool, path, driver.environment() if driver is not None else {})


def find_tool(host: Host, name: str) -> Path | None:
    """Find a tool of the host; a simulated host has tools of drivers and nothing else."""
    if _is_of_driver(name) and (host.driver_root is not None or host.dev != Path("/dev")):
        return host.driver_program(name)
    if host.dev != Path("/dev"):
        return None
    return find_program(name, system=True, also=_ROCM)


def installed(host: Host) -> tuple[str, ...]:
    """Return the names of the programs that the agent uses, and that the host has."""
    return tuple(name for vendor in vendor_recordings() for name in vendor.programs(host))


def _is_of_driver(name: str) -> bool:
    return any(name in vendor.driver_tools for vendor in vendor_recordings())


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
