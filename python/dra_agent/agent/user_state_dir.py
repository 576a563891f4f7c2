"""The state directory of an agent without root, and the conditions under which its user's commands use it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from dra_agent.presence import exists, may_exist

_SOCKET, _LEDGER = "agent.sock", "ledger"


def user_state_dir(variables: Mapping[str, str], host_dir: Path, *, is_simulated: bool) -> Path | None:
    """Return the state directory of this user; None: the host's, `host_dir`.

    A simulated agent always uses it. Commands use it if an agent of the user runs, or if `host_dir` has no agent and
    no claims: the user's agent may be starting.
    """
    if os.geteuid() == 0:
        return None
    base = variables.get("XDG_STATE_HOME") or (f"{variables['HOME']}/.local/state" if variables.get("HOME") else "")
    if not base:
        return None
    user_dir = Path(base) / "dra-agent"
    is_hosts = may_exist(host_dir / _SOCKET) or may_exist(host_dir / _LEDGER)
    return user_dir if is_simulated or exists(user_dir / _SOCKET) or not is_hosts else None
