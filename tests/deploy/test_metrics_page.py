"""The page about metrics has each metric that is exported, and no other one; promtool has nothing to correct."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from deploy.every_metric import documented_labels, documented_types, exported_types, exposition

OF_THE_LIBRARY = re.compile(r"process_|python_")
"""Metrics of prometheus_client, which the page names in one row."""


def test_every_metric_has_a_row_with_its_type() -> None:
    exported = {name: kind for name, kind in exported_types().items() if not OF_THE_LIBRARY.match(name)}
    documented = documented_types()
    assert exported.keys() - documented.keys() == set(), "without a row"
    assert documented.keys() - exported.keys() == set(), "of no metric"
    assert exported == documented


def test_every_label_is_in_the_row_of_its_metric() -> None:
    documented = documented_labels()
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(dra_agent_\w+)\{(.*)\} ", exposition(), re.MULTILINE):
        name = re.sub(r"_(bucket|count|sum)$", "", name)
        found.setdefault(name, set()).update(set(re.findall(r'(\w+)="', labels)) - {"le"})
    missing = {name: labels - documented[name] for name, labels in found.items() if name in documented}
    assert {name: labels for name, labels in missing.items() if labels} == {}
    assert len(missing) > 20


def test_promtool_has_nothing_to_correct() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; Debian has it in the package prometheus")
    command = [promtool, "check", "metrics"]
    done = subprocess.run(command, input=exposition(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_metric_has_a_series_here() -> None:
    """Without one, promtool and the test of labels see only a name."""
    text = exposition()
    assert [name for name in exported_types() if not re.search(rf"^{name}(_bucket)?[{{ ]", text, re.MULTILINE)] == []
