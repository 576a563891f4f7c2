"""Tests wait with tests/eventually.py only, whose deadline suits slow machines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
EXCEPTIONS = {
    "agent/test_update_under_load.py": "prepares claims repeatedly while an instance ends",
    "cel/test_budget.py": "counts loop iterations during an evaluation",
    "cluster": "scenarios of a real cluster have their own helpers and deadlines",
    "eventually.py": "the helper",
    "faults": "standalone programs that report broken guarantees",
    "mutants/plugin.py": "a standalone program that ends slow test runs",
    "prepare/test_sharing.py": "keeps two agents busy",
    "publish/test_publisher.py": "changes devices continuously",
    "reclaim/fake_logind.py": "a server",
    "soak/soak.py": "a standalone program that measures an agent over hours",
    "device_setup/mps_control.py": "a fake MPS control program that hangs",
}

FIXED_SLEEPS: dict[str, tuple[int, str]] = {
    "agent/test_interfaces.py": (1, "delays a call of the library"),
    "agent/test_update_under_load.py": (1, "the pace of claims"),
    "cel/test_budget.py": (1, "counts loop iterations during an evaluation"),
    "device_setup/hung.py": (1, "a simulated kernel that hangs"),
    "device_setup/mps_control.py": (2, "a fake MPS control program that hangs"),
    "kubelet_plugin/conftest.py": (1, "a claim that does not arrive"),
    "mutants/plugin.py": (1, "a standalone program that ends slow test runs"),
    "prepare/test_real_ledger.py": (1, "a random moment of SIGKILL"),
    "prepare/test_sharing.py": (3, "keeps two agents busy, and kills one at a random moment"),
    "publish/test_any_sequence.py": (2, "the time between two random events"),
    "publish/test_many_reflectors.py": (6, "virtual time"),
    "publish/test_publisher.py": (2, "blocks the event loop until a retry is due"),
    "reclaim/fake_logind.py": (1, "a server"),
    "reclaim/test_release_hook.py": (1, "the random moment of a cancellation"),
}
"""Files with `sleep` for a fixed time, how often, and for what: a pace, a random moment, or a server or program that is
slow on purpose. A test that something does not happen waits for a later event.
"""


SHORT_LIMITS: dict[str, tuple[int, str]] = {
    "agent/test_closing.py": (1, "the thread never ends"),
    "agent/test_http_hostile.py": (1, "the pace of a slow client"),
    "agent/test_reload.py": (1, "a setting that no call uses"),
    "agent/test_shared_ledger.py": (1, "the lease is held"),
    "allocator/test_allocate.py": (2, "the search never ends"),
    "allocator/test_capacity.py": (1, "the search of one node never ends; the others need milliseconds"),
    "allocator/test_cluster.py": (1, "the search of one node never ends; the others need milliseconds"),
    "api/test_quantities.py": (1, "CPU time"),
    "binding/test_attempt.py": (1, "the call never ends"),
    "binding/test_service.py": (1, "the set-up never succeeds"),
    "cdi/test_nvidia.py": (1, "the program never ends"),
    "conflicts/test_detector.py": (1, "the server does not respond"),
    "control_socket/test_sockets.py": (1, "the server does not respond"),
    "deploy/every_metric.py": (1, "a value of a metric"),
    "device_setup/amd/test_amd.py": (1, "the driver does not return"),
    "device_setup/test_mig.py": (1, "a fake clock"),
    "device_setup/test_net.py": (1, "the interface does not return"),
    "device_setup/test_net_move.py": (1, "the interface has returned before, or does not return"),
    "device_setup/test_notice.py": (1, "gives a race the time to happen"),
    "device_setup/test_sysfs_writer.py": (2, "the kernel does not return"),
    "device_setup/test_timeslice.py": (1, "the program never ends"),
    "device_setup/vfio/test_vfio.py": (1, "the lock is held"),
    "examples/test_notice_recipes.py": (2, "a process that must not end"),
    "explain/test_claim_deadline.py": (2, "a fake clock"),
    "explain/test_explain.py": (1, "CPU time"),
    "explain/test_gang_nodes.py": (3, "a fake clock"),
    "fake_apiserver/test_request_rate.py": (1, "the request waits for minutes"),
    "fake_apiserver/test_server.py": (2, "the server does not respond"),
    "fake_apiserver/test_thread_reads.py": (2, "the server or the lookup does not respond"),
    "inventory/test_amd_mode_transition.py": (1, "gives a race the time to happen"),
    "inventory/test_library_fails.py": (2, "the call never ends"),
    "inventory/test_moved_nic.py": (1, "the interface does not return"),
    "inventory/test_uplink.py": (2, "no process starts in a millisecond"),
    "kubelet_plugin/test_garbage.py": (1, "the peer does not read; both results pass"),
    "meta/test_daemon_threads.py": (1, "an event that does not occur"),
    "otlp/collector.py": (1, "the pace of a slow server"),
    "prepare/life_cycle/agent_process.py": (1, "the interval of a loop"),
    "prepare/test_file_lock.py": (1, "the lock is held"),
    "prepare/test_hangs.py": (6, "the locks are held, and the call never ends"),
    "prepare/test_ledger_lease.py": (3, "the lease is held; the other limit is only read"),
    "prepare/test_locks.py": (2, "the locks are held"),
    "prepare/test_ownership.py": (1, "the lock is held"),
    "prepare/test_repair.py": (1, "gives a race the time to happen"),
    "prepare/test_setup.py": (1, "a fake clock"),
    "prepare/test_sharing.py": (1, "the lease is held"),
    "reclaim/fake_logind.py": (1, "the interval of a loop"),
    "reclaim/metadata/server.py": (1, "the pace of a slow server"),
    "reclaim/test_agent.py": (1, "the limit includes the time that passed"),
    "reclaim/test_evict.py": (3, "a clock that stands still"),
    "recordings/test_record_and_replay.py": (1, "the call never ends"),
    "simulate/test_mps.py": (1, "the daemon does not respond"),
    "simulate/test_nvidia_smi.py": (1, "the program never ends"),
    "standalone/test_many_claims.py": (2, "a fake clock"),
    "standalone/test_service.py": (2, "the device does not respond"),
    "standalone/test_unreadable_store.py": (1, "no claim is in progress"),
    "standalone/test_validation.py": (1, "the service does not respond"),
    "telemetry/test_process_reader.py": (1, "the read never ends"),
    "telemetry/test_sampler.py": (2, "the read never ends; other reads need microseconds"),
}
"""Files with limits in real time below 30 s, how many, and why no slow machine changes the result of the test."""


def _parsed(path: Path, name: str) -> ast.Module:
    """Parse a module that has this name; an empty one if it does not, in a fraction of the time."""
    text = path.read_text()
    return ast.parse(text if name in text else "")


def _name(function: ast.expr) -> str:
    """Return the last name of a function that is called; "" for one without a name, such as a result of a call."""
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def loops_that_sleep(path: Path) -> Iterator[int]:
    """Yield the lines of `while` loops that call a `sleep`."""
    for loop in ast.walk(_parsed(path, "sleep")):
        if isinstance(loop, ast.While) and any(
            isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "sleep"
            for call in ast.walk(loop)
        ):
            yield loop.lineno


def fixed_sleeps(path: Path) -> Iterator[int]:
    """Yield the lines of calls of `time.sleep` and `asyncio.sleep` for more than 0 seconds."""
    for call in ast.walk(_parsed(path, "sleep")):
        match call:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="time" | "asyncio"), attr="sleep"), args=[duration]
            ) if not (isinstance(duration, ast.Constant) and duration.value == 0):
                yield call.lineno


SHORT_S = 30.0
_LIMIT_NAME = re.compile(r"(?:.*_)?(?:timeout|deadline|within|patience)(?:_s)?|(?:limit|least|budget)_s")
_WAITS = frozenset({"wait", "join", "result", "settimeout"})
_POSSIBLE_LIMIT = re.compile(
    r"(?:timeout|deadline|within|patience|_s)\s*=[\s(]*[\d.T]|\b(?:wait|join|result|settimeout|of|timeout)\([\s(]*[\d.T]"
    r"|\bwait_for\(|<=?[\s(]*[\d.]"
)
"""In the text of each module with a short limit, and of some others: to parse all modules takes many times longer."""
_CLOCKS = re.compile(r"\b(?:monotonic|perf_counter|time)\(\)|\b(?:began|started?|start_time|elapsed|duration|took)\b")


def short_limits(path: Path) -> Iterator[int]:
    """Yield the lines of limits in real time, of more than 0 and less than 30 seconds: of a wait or of a call.

    Also of comparisons that require that less than a fixed time has passed.
    """
    text = path.read_text()
    for node in ast.walk(ast.parse(text if _POSSIBLE_LIMIT.search(text) else "")):
        match node:
            case ast.Call(func=function, args=arguments, keywords=keywords):
                name = _name(function)
                if any(
                    keyword.arg and _LIMIT_NAME.fullmatch(keyword.arg) and is_short(keyword.value)
                    for keyword in keywords
                ):
                    yield node.lineno
                elif (name in _WAITS and len(arguments) == 1) or (
                    name in ("of", "timeout") and ast.unparse(function) in ("Deadline.of", "asyncio.timeout")
                ):
                    if any(map(is_short, arguments[:1])):
                        yield node.lineno
                elif name == "wait_for" and any(map(is_short, arguments[1:2])):
                    yield node.lineno
            case ast.Compare(left=left, ops=[*_, ast.Lt() | ast.LtE()], comparators=[*_, ast.Constant(value=limit)]):
                if isinstance(limit, int | float) and limit < 600 and _CLOCKS.search(ast.unparse(left)):
                    yield node.lineno


def is_short(value: ast.expr) -> bool:
    match value:
        case ast.Constant(value=int() | float() as seconds):
            return 0 < seconds < SHORT_S
    return False


def is_excepted(name: str) -> bool:
    return any(name == exception or name.startswith(f"{exception}/") for exception in EXCEPTIONS)


def test_no_test_has_its_own_wait_loop() -> None:
    found = [
        f"tests/{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if not is_excepted(str(path.relative_to(TESTS)))
        for line in loops_that_sleep(path)
    ]
    assert not found, f"wait with eventually or eventually_async of tests/eventually.py: {found}"


def test_no_test_waits_for_a_fixed_time() -> None:
    """Such a test passes although the event would happen later, and takes that time on every machine."""
    names = {str(path.relative_to(TESTS)): path for path in sorted(TESTS.rglob("*.py"))}
    excluded = ("cluster/", "eventually.py", "faults/", "soak/")
    found = {
        name: lines
        for name, path in names.items()
        if not name.startswith(excluded)
        if len(lines := sorted(fixed_sleeps(path))) != FIXED_SLEEPS.get(name, (0, ""))[0]
    }
    assert not found, f"wait for a later event, or adapt the count in FIXED_SLEEPS: {found}"
    assert all(name in names and reason for name, (_, reason) in FIXED_SLEEPS.items())


def test_fixed_sleeps_are_found(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text("time.sleep(1)\nasyncio.sleep(0)\nawait asyncio.sleep(delay)\nevent.wait(1)\n")
    assert sorted(fixed_sleeps(path)) == [1, 3]


def test_every_exception_has_a_reason_and_is_needed() -> None:
    for name, reason in EXCEPTIONS.items():
        path = TESTS / name
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        assert reason and any(any(loops_that_sleep(file)) for file in files), name


def test_no_python_test_has_a_tight_timeout() -> None:
    """A timeout of a test detects hangs; below ten minutes it fails on slow machines."""
    marked = [
        str(path.relative_to(TESTS))
        for path in sorted(TESTS.rglob("test_*.py"))
        if path.parts[len(TESTS.parts)] != "cluster" and "mark." + "timeout(" in path.read_text()
    ]
    assert not marked, f"the timeout of pyproject.toml is for every test: {marked}"


def test_no_limit_in_real_time_is_short() -> None:
    """A slow machine exceeds it: such a limit belongs to something that never ends, and is listed."""
    excluded = ("cluster/", "eventually.py", "faults/", "meta/test_waiting.py", "soak/")
    names = {str(path.relative_to(TESTS)): path for path in sorted(TESTS.rglob("*.py"))}
    found = {
        name: lines
        for name, path in names.items()
        if not name.startswith(excluded)
        if len(lines := sorted(short_limits(path))) != SHORT_LIMITS.get(name, (0, ""))[0]
    }
    assert not found, f"use DEADLINE_S of tests/eventually.py, or adapt the count in SHORT_LIMITS: {found}"
    assert all(name in names and reason for name, (_, reason) in SHORT_LIMITS.items())


def test_short_limits_are_found(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(
        "call(timeout=5)\ncall(timeout=DEADLINE_S)\nDeadline.of(0)\nDeadline.of(0.2)\nthread.join(1)\n"
        "asyncio.wait_for(it, 2)\nassert time.monotonic() - start < 50\nassert time.monotonic() - start < DEADLINE_S\n"
        "assert time.monotonic() - start > 1\ncall(interval_s=0.1)\ncall(nvml_timeout=0.3)\nevent.wait(60)\n"
    )
    assert sorted(short_limits(path)) == [1, 4, 5, 6, 7, 11]
