"""The chart and the unit grant what MIG needs where it is configured, and nothing elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.rendering import ROOT, RefusedError, Render, container
from dra_agent.inventory.nvidia import mig_access
from dra_simulate.container import Container, Toolkit

RULE = '[[inventory.partition]]\nmode = "mig"\nwhen = "true"\n'
READ, PARTITION = {"mig": "read"}, {"mig": "partition", "config": RULE}
BOUNDED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def security(render: Render, values: dict[str, Any]) -> dict[str, Any]:
    found = container(render(values))["securityContext"]
    return {key: found[key] for key in ("privileged", "allowPrivilegeEscalation", "capabilities") if key in found}


def variables(render: Render, values: dict[str, Any]) -> dict[str, str]:
    entries = container(render(values))["env"]
    return {entry["name"]: entry["value"] for entry in entries if entry["name"].startswith("NVIDIA_MIG")}


def started(render: Render, values: dict[str, Any], toolkit: Toolkit) -> Container:
    """Return the agent's container, as NVIDIA's runtime starts it."""
    context, given = security(render, values), variables(render, values)
    return Container(
        toolkit,
        sys_admin="SYS_ADMIN" in context.get("capabilities", {}).get("add", []),
        privileged=context.get("privileged", False),
        mig_config=given.get("NVIDIA_MIG_CONFIG_DEVICES") == "all",
        mig_monitor=given.get("NVIDIA_MIG_MONITOR_DEVICES") == "all",
    )


def test_nothing_is_granted_without_mig(render: Render) -> None:
    amd = RULE.replace("mig", "amd")
    for values in ({}, {"runtimeClassName": "nvidia"}, {"config": amd}):
        assert security(render, values) == BOUNDED and variables(render, values) == {}


def test_reading_and_changing_mig_are_granted_by_their_values(render: Render) -> None:
    added = {**BOUNDED, "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}
    assert security(render, READ) == security(render, PARTITION) == added
    assert variables(render, READ) == {"NVIDIA_MIG_MONITOR_DEVICES": "all"}
    assert variables(render, PARTITION) == {"NVIDIA_MIG_MONITOR_DEVICES": "all", "NVIDIA_MIG_CONFIG_DEVICES": "all"}
    assert security(render, {**PARTITION, "privileged": True}) == {"privileged": True}


@pytest.mark.parametrize("toolkit", ["legacy", "cdi"])
def test_the_runtime_starts_the_container_with_all_options(render: Render, toolkit: Toolkit) -> None:
    for values in ({}, READ, PARTITION, {**PARTITION, "privileged": True}):
        access = started(render, values, toolkit).access()
        assert access is not None, "MIG variables without SYS_ADMIN: the runtime refuses the container"
        assert access.admin == access.monitor == bool(values)
        assert access.config == (values.get("mig") == "partition")


def test_a_rule_without_its_value_and_a_value_without_its_rule_are_refused(render: Render) -> None:
    for config in (RULE, "[inventory]\npartition = [{ when = 'true', mode = 'mig' }]"):
        for values in ({}, READ):
            with pytest.raises(RefusedError, match="mig: partition"):
                render({**values, "config": config})
        assert render({"config": config, "mig": "partition"})
        assert render({"config": config, "privileged": True}), "a privileged agent has more"
    for config in ("", '# [[inventory.partition]]\n# mode = "mig"\n'):
        with pytest.raises(RefusedError, match="mig: partition"):
            render({"mig": "partition", "config": config})
    with pytest.raises(RefusedError, match="mig"):
        render({"mig": "yes"})


def test_the_lines_in_the_hints_exist(render: Render) -> None:
    drop_in = (ROOT / "systemd/mig.conf").read_text()
    assert "CapabilityBoundingSet=CAP_SYS_ADMIN" in drop_in.splitlines()
    for hint, values in ((mig_access.READ_HINT, READ), (mig_access.CHANGE_HINT, PARTITION)):
        assert f"`mig: {values['mig']}`" in hint and "systemd/mig.conf" in hint
        assert "CapabilityBoundingSet=CAP_SYS_ADMIN" in hint
        assert render(values)


def test_the_drop_in_for_mig_grants_one_capability() -> None:
    lines = [line for line in Path(ROOT / "systemd/mig.conf").read_text().splitlines() if line and line[0] != "#"]
    assert lines == ["[Service]", "CapabilityBoundingSet=CAP_SYS_ADMIN"]
