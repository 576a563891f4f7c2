"""Any sequence of prepares, repeats, releases, damage and crashes: prepared claims stay prepared, without conflicts."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.prepare import allocation as allocations
from dra_agent.prepare import record as records
from dra_agent.prepare.ledger import DeviceHeldError
from prepare.simulated_node import DRIVER, Crash, SimulatedNode, claim, partition, result

GPUS = 4
UIDS = st.sampled_from(["a", "b", "c", "d", "e"])
POINTS = st.none() | st.integers(0, 9)


class Agent(RuleBasedStateMachine):
    """The model: claims that were returned as prepared and not unprepared since."""

    @initialize(keep_unsynced=st.booleans())
    def begin(self, keep_unsynced: bool) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="dra-agent-"))
        self.node = SimulatedNode(self.root, gpus=GPUS)
        self.node.memory.keep_unsynced = keep_unsynced
        self.expected: dict[str, dict[str, object]] = {}
        self.unconfirmed: set[str] = set()

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root)

    @rule(
        uid=UIDS,
        gpus=st.sets(st.integers(0, GPUS - 1), min_size=1, max_size=2),
        share=st.none() | st.sampled_from(["s1", "s2"]),
        set_up=st.booleans(),
        crash_at=POINTS,
    )
    def prepare(self, uid: str, gpus: set[int], share: str | None, set_up: bool, crash_at: int | None) -> None:
        set_up = set_up and share is None
        results = [result(f"gpu-{number}", **({"shareID": share} if share else {})) for number in sorted(gpus)]
        claim_ = claim(uid, *results, config=[partition(2)] if set_up else [])
        self.node.points.arm(crash_at)
        try:
            self.node.preparer.prepare(claim_)
        except DeviceHeldError:
            assert self._is_held_by_others(uid, claim_), "refused although no claim holds the devices"
        except PermanentError:
            assert uid in self.expected | dict.fromkeys(self.unconfirmed) and self.expected.get(uid) != claim_
        except RetryableError:
            assert self._has_missing_node(claim_)
            self._update_expected(uid, claim_)
        except Crash:
            self._restart()
            self._update_expected(uid, claim_)
            if uid not in self.expected:
                entry = self.node.ledger.get(uid)
                self.unconfirmed.discard(uid)
                if entry is not None:
                    self.unconfirmed.add(uid)
        else:
            assert not self._is_held_by_others(uid, claim_), "prepared although another claim holds a device"
            assert self.node.usable(uid)
            self.expected[uid] = claim_
            self.unconfirmed.discard(uid)
        self.node.points.arm(None)

    @rule(uid=UIDS, crash_at=POINTS)
    def unprepare(self, uid: str, crash_at: int | None) -> None:
        self.node.points.arm(crash_at)
        try:
            self.node.preparer.unprepare(uid)
        except Crash:
            self._restart()
            held = self.node.ledger.get(uid) is not None
            if not held:
                self.expected.pop(uid, None)
                self.unconfirmed.discard(uid)
        else:
            self.expected.pop(uid, None)
            self.unconfirmed.discard(uid)
            assert self.node.ledger.get(uid) is None and not self.node.specs.file(uid).exists()
        self.node.points.arm(None)

    @rule(uid=UIDS, text=st.sampled_from([None, "", "{}", '{"cdiVersion": "1.0.0"}']))
    def damage_spec(self, uid: str, text: str | None) -> None:
        file = self.node.specs.file(uid)
        if file.exists():
            file.unlink() if text is None else file.write_text(text)

    @rule(number=st.integers(0, GPUS - 1))
    def lose_or_regain_a_node(self, number: int) -> None:
        node = self.node.host.dev_path(f"/dev/dri/card{number}")
        node.unlink() if node.exists() else node.touch()

    @rule()
    def crash(self) -> None:
        self._restart()

    def _restart(self) -> None:
        self.node.crash_and_restart()
        report = self.node.preparer.recovery.recover()
        for problem in report.problems:
            assert "device node" in problem, problem
        assert not any(entry.state == "started" for entry in self.node.ledger.entries())
        assert self.node.specs.claims().keys() <= {entry.uid for entry in self.node.ledger.entries()}

    def _update_expected(self, uid: str, claim_: dict[str, object]) -> None:
        """A prepare for another allocation replaces the expected one."""
        if self.expected.get(uid, claim_) == claim_:
            return
        entry = self.node.ledger.get(uid)
        if entry is None:
            del self.expected[uid]
        elif entry.payload["config"] == records.digest(allocations.read(claim_, DRIVER)):
            self.expected[uid] = claim_

    def _has_missing_node(self, claim_: dict[str, object]) -> bool:
        return any(not self.node.host.dev_path(f"/dev/dri/card{number}").exists() for number in _numbers(claim_))

    def _is_held_by_others(self, uid: str, claim_: dict[str, object]) -> bool:
        own = _keys(claim_)
        theirs = [
            (device.device, device.share_id)
            for entry in self.node.ledger.entries()
            if entry.uid != uid
            for device in entry.devices
        ]
        return any(
            name == other and (share is None or other_share is None or share == other_share)
            for name, share in own
            for other, other_share in theirs
        )

    @invariant()
    def prepared_claims_stay_prepared(self) -> None:
        if not hasattr(self, "world"):
            return
        for uid, claim_ in self.expected.items():
            entry = self.node.ledger.get(uid)
            assert entry is not None and entry.state == "completed", f"{uid} was lost"
            assert {(device.device, device.share_id) for device in entry.devices} == set(_keys(claim_))
            try:
                self.node.preparer.prepare(claim_)
            except AgentError as error:
                assert self._has_missing_node(claim_), error
            else:
                assert self.node.usable(uid)

    @invariant()
    def only_shares_are_shared(self) -> None:
        if not hasattr(self, "world"):
            return
        shares_by_device: dict[str, list[str | None]] = {}
        for entry in self.node.ledger.entries():
            for device in entry.devices:
                shares_by_device.setdefault(device.device, []).append(device.share_id)
        for name, shares in shares_by_device.items():
            assert len(shares) == 1 or (None not in shares and len(set(shares)) == len(shares)), (name, shares)

    @invariant()
    def every_partition_belongs_to_a_claim(self) -> None:
        if not hasattr(self, "world"):
            return
        held = {entry.uid for entry in self.node.ledger.entries()}
        assert set(self.node.hardware.values()) <= held


def _keys(claim_: dict[str, Any]) -> list[tuple[str, str | None]]:
    results = claim_["status"]["allocation"]["devices"]["results"]
    return [(item["device"], item.get("shareID")) for item in results]


def _numbers(claim_: dict[str, object]) -> list[int]:
    return [int(name.removeprefix("gpu-")) for name, _ in _keys(claim_)]


TestAgent = Agent.TestCase
TestAgent.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
