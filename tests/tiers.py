"""The two tiers of tests that need no cluster.

`make test` is for everyone who has built the project: it needs no other program, no network and a few minutes. A test
with one of the marks below is left to `make test-all`, which CI runs. Nothing is skipped in the first tier because of
what a machine has, so that a result means the same everywhere. At its end, it prints what it left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

NAME = "thorough"
TESTS = Path(__file__).parent
FILES, SINGLE = "files of tests that", "single tests that"

GO = pytest.mark.thorough("compare with Kubernetes' own Go code")
PROGRAMS = pytest.mark.thorough("need a program that the build does not need: a browser, promtool, helm, lspci, podman")
CASES = pytest.mark.thorough("run more cases of what a faster test checks")
PROCESSES = pytest.mark.thorough("start agents to check what a faster test checks without one")
PATIENCE = pytest.mark.thorough("wait for real time, or load the machine")
HOUSE = pytest.mark.thorough("check this repository, its pages and its packages, not the agent")

FIXTURES = {
    "evaluate_with_kubernetes": GO,
    "go_allocator": GO,
    "oracle": GO,
    "upstream": GO,
    "browser": PROGRAMS,
    "helm": PROGRAMS,
    "kubectl": PROGRAMS,
}
"""A test with one of these fixtures has its mark."""

PLACES: dict[str, pytest.MarkDecorator] = {
    **dict.fromkeys(
        (
            "agent/test_walks.py",
            "benchmarks",
            "examples/test_allocation.py",
            "deploy",
            "docs",
            "gpu",
            "measures",
            "meta",
            "mutants",
        ),
        HOUSE,
    ),
    **dict.fromkeys(
        (
            "cdi/test_runtime.py",
            "cli/test_completion.py",
            "cli/test_without_root.py",
            "device_setup/test_net_move.py",
            "doctor/test_endpoint.py",
            "fake_apiserver/test_credentials.py",
            "fake_apiserver/test_hostile_network.py",
            "fake_apiserver/test_proxy.py",
            "fake_apiserver/test_thread_reads.py",
            "page/test_browser.py",
            "reclaim/test_logind.py",
            "reclaim/test_shutdown.py",
            "simulate/test_gpu_command.py",
            "simulate/test_host_network.py",
            "telemetry/test_top_cluster.py",
        ),
        PROGRAMS,
    ),
    **dict.fromkeys(
        (
            "agent/test_amd_partitions.py",
            "simulate/test_mps.py",
            "device_setup/test_mps_hostile.py",
            "device_setup/test_mps_crashes.py",
            "device_setup/test_mps.py",
            "agent/test_commands_with_agent.py",
            "agent/test_conflict_filter.py",
            "agent/test_downgrade.py",
            "agent/test_driver_root.py",
            "agent/test_files_reference.py",
            "agent/test_gone_claims.py",
            "agent/test_host_ownership.py",
            "agent/test_interfaces.py",
            "agent/test_metrics_access.py",
            "agent/test_mig_killed.py",
            "agent/test_mps_supervisor.py",
            "agent/test_page.py",
            "agent/test_prepare_ahead.py",
            "agent/test_read_only_state.py",
            "agent/test_reload.py",
            "agent/test_rolling_update.py",
            "agent/test_service.py",
            "agent/test_service_limits.py",
            "agent/test_unusable_claims.py",
            "agent/test_update_under_load.py",
            "agent/test_upgrade.py",
            "agent/test_upgrade_slices.py",
            "cli/test_kubectl_plugin.py",
        ),
        PROCESSES,
    ),
    **dict.fromkeys(
        (
            "api/test_load_objects.py",
            "prepare/life_cycle",
            "doctor/test_record_identity.py",
            "cel/test_budget.py",
            "claimable/test_untidy_profiles.py",
            "explain/test_gang_search.py",
            "explain/test_wrong_types.py",
            "fake_apiserver/test_server.py",
            "faults/test_faults.py",
            "faults/test_server_faults.py",
            "fuzz",
            "inventory/test_amd_kfd_rebuild.py",
            "inventory/test_incremental.py",
            "inventory/test_instances_come_and_go.py",
            "inventory/test_mig_families.py",
            "inventory/test_recovery_action.py",
            "recordings/test_record_and_replay.py",
            "simulate/test_every_profile.py",
            "simulate/test_inventory_follows.py",
            "simulate/test_nvml_answers.py",
            "simulate/test_nvml_changes.py",
            "simulate/test_sharing_calls.py",
            "simulate/test_trees.py",
            "simulate/test_untidy.py",
            "slices/test_compare_with_cluster.py",
            "soak/test_soak.py",
            "standalone/test_many_claims.py",
            "telemetry/test_cardinality.py",
            "telemetry/test_created_partitions.py",
        ),
        CASES,
    ),
    **dict.fromkeys(
        (
            "cli/test_user_terminals.py",
            "faults/test_resource_faults.py",
            "publish/test_many_reflectors.py",
            "simulate/test_changes_while_an_agent_writes.py",
        ),
        PATIENCE,
    ),
}
"""Files and folders below tests/ whose tests all have the mark; a test alone has it as a decorator."""


class Tiers:
    """Counts what a run with `-m "not thorough"` leaves out, by reason; workers report to the main process."""

    def __init__(self, config: pytest.Config) -> None:
        self._is_first_tier = config.getoption("markexpr") == f"not {NAME}"
        self._places = {TESTS / place: mark for place, mark in PLACES.items()}
        self._left_out: Counter[str] = Counter()
        self._by_worker: list[Counter[str]] = []

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out places without importing them, which takes a quarter of the time of the collection."""
        if not self._is_first_tier or collection_path not in self._places:
            return None
        files = len(list(collection_path.rglob("test_*.py"))) if collection_path.is_dir() else 1
        self._left_out[f"{FILES} {self._places[collection_path].args[0]}"] += files
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        """Mark tests by their place and their fixtures, before `-m` selects by marks."""
        for item in items:
            marks = [self._places[path] for path in (item.path, *item.path.parents) if path in self._places]
            marks += [FIXTURES[name] for name in getattr(item, "fixturenames", ()) if name in FIXTURES]
            if marks:
                item.add_marker(marks[0])

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            mark = item.get_closest_marker(NAME)
            if mark is not None and self._is_first_tier:
                self._left_out[f"{SINGLE} {mark.args[0]}"] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[NAME] = dict(self._left_out)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        # Each worker collects, and leaves out, the same tests.
        self._by_worker.append(Counter(getattr(node, "workeroutput", {}).get(NAME, {})))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        left_out = max([self._left_out, *self._by_worker], key=Counter.total)
        if left_out:
            terminalreporter.write_line("left to `make test-all`:")
        for what, number in sorted(left_out.items(), key=lambda entry: (entry[0].split()[0], -entry[1])):
            terminalreporter.write_line(f"{number:6} {what}")
