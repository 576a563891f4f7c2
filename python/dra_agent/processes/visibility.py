"""Checks that the agent sees all processes of its host, for a search of /proc for users of a device.

In a pod without the host's process namespace /proc has the pod's processes only, and without the capabilities for it
(or with a hidden /proc) those of others cannot be read. Source: proc(5), pid_namespaces(7), ptrace(2).
"""

from __future__ import annotations

from dra_agent.host import Host

_FIRST = "pid:[4026531836]"
"""The initial PID namespace of a host (PROC_PID_INIT_INO, include/linux/proc_ns.h)."""


def permission_hint(drop_in: str = "devices.conf") -> str:
    """Return how the agent gets to see all processes; `drop_in` is the file of systemd/ for the feature."""
    return f"run the agent with `hostPID` and `privileged` in a pod, with systemd/{drop_in} as a service"


def hidden_processes_reason(host: Host) -> str:
    """Return why processes of the host may be hidden; "" if all are visible."""
    try:
        namespace = (host.proc / "self/ns/pid").readlink().as_posix()
    except FileNotFoundError:
        return ""  # a kernel with one namespace for all, or a simulated host
    except OSError as error:
        return f"its own process namespace cannot be read ({error.strerror})"
    if namespace != _FIRST:
        return "the agent is not in the host's process namespace"
    try:
        next((host.proc / "1/fd").iterdir(), None)
    except OSError as error:
        return f"the agent may not read processes of other users ({error.strerror})"
    return ""
