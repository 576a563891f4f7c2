"""Any order of claims, repeats, releases, damage and crashes: what was promised holds, and nothing is held twice."""

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
from prepare.simulated_world import DRIVER, Crash, World, claim, partition, result

GPUS = 4
UIDS = st.sampled_from(["a", "b", "c", "d", "e"])
POINTS = st.none() | st.integers(0, 9)


class Agent(RuleBasedStateMachine):
    """The model: which claims were answered as prepared and not answered as released since."""

    @initialize(keep_unsynced=st.booleans())
    def begin(self, keep_unsynced: bool) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="dra-agent-"))
        self.world = World(self.root, gpus=GPUS)
        self.world.memory.keep_unsynced = keep_unsynced
        self.promised: dict[str, dict[str, object]] = {}
        self.unsure: set[str] = set()

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
        results = [result(f"gpu-{n}", **({"shareID": share} if share else {})) for n in sorted(gpus)]
        wanted = claim(uid, *results, config=[partition(2)] if set_up else [])
        self.world.points.arm(crash_at)
        try:
            self.world.preparer.prepare(wanted)
        except DeviceHeldError:
            assert self._others(uid, wanted), "refused although nobody has the devices"
        except PermanentError:
            assert uid in self.promised | dict.fromkeys(self.unsure) and self.promised.get(uid) != wanted
        except RetryableError:
            assert self._missing(wanted)
            self._asked_anew(uid, wanted)
        except Crash:
            self._restart()
            self._asked_anew(uid, wanted)
            if uid not in self.promised:
                entry = self.world.ledger.get(uid)
                self.unsure.discard(uid)
                if entry is not None:
                    self.unsure.add(uid)
        else:
            assert not self._others(uid, wanted), "answered although somebody else has a device"
            assert self.world.usable(uid)
            self.promised[uid] = wanted
            self.unsure.discard(uid)
        self.world.points.arm(None)

    @rule(uid=UIDS, crash_at=POINTS)
    def unprepare(self, uid: str, crash_at: int | None) -> None:
        self.world.points.arm(crash_at)
        try:
            self.world.preparer.unprepare(uid)
        except Crash:
            self._restart()
            held = self.world.ledger.get(uid) is not None
            if not held:
                self.promised.pop(uid, None)
                self.unsure.discard(uid)
        else:
            self.promised.pop(uid, None)
            self.unsure.discard(uid)
            assert self.world.ledger.get(uid) is None and not self.world.specs.file(uid).exists()
        self.world.points.arm(None)

    @rule(uid=UIDS, text=st.sampled_from([None, "", "{}", '{"cdiVersion": "1.0.0"}']))
    def damage_spec(self, uid: str, text: str | None) -> None:
        file = self.world.specs.file(uid)
        if file.exists():
            file.unlink() if text is None else file.write_text(text)

    @rule(n=st.integers(0, GPUS - 1))
    def lose_or_regain_a_node(self, n: int) -> None:
        node = self.world.host.dev_path(f"/dev/dri/card{n}")
        node.unlink() if node.exists() else node.touch()

    @rule()
    def crash(self) -> None:
        self._restart()

    def _restart(self) -> None:
        self.world.crash_and_restart()
        report = self.world.preparer.recover()
        for problem in report.problems:
            assert "device node" in problem, problem
        assert not any(entry.state == "started" for entry in self.world.ledger.entries())
        assert self.world.specs.claims().keys() <= {entry.uid for entry in self.world.ledger.entries()}

    def _asked_anew(self, uid: str, wanted: dict[str, object]) -> None:
        """What was promised for an earlier allocation ends where the claim is prepared for another one."""
        if self.promised.get(uid, wanted) == wanted:
            return
        entry = self.world.ledger.get(uid)
        if entry is None:
            del self.promised[uid]
        elif entry.payload["config"] == records.digest(allocations.read(wanted, DRIVER)):
            self.promised[uid] = wanted

    def _missing(self, wanted: dict[str, object]) -> bool:
        return any(not self.world.host.dev_path(f"/dev/dri/card{n}").exists() for n in _numbers(wanted))

    def _others(self, uid: str, wanted: dict[str, object]) -> bool:
        mine = _keys(wanted)
        theirs = [
            (device.device, device.share_id)
            for entry in self.world.ledger.entries()
            if entry.uid != uid
            for device in entry.devices
        ]
        return any(
            name == other and (share is None or other_share is None or share == other_share)
            for name, share in mine
            for other, other_share in theirs
        )

    @invariant()
    def promises_are_kept(self) -> None:
        if not hasattr(self, "world"):
            return
        for uid, wanted in self.promised.items():
            entry = self.world.ledger.get(uid)
            assert entry is not None and entry.state == "completed", f"{uid} was lost"
            assert {(d.device, d.share_id) for d in entry.devices} == set(_keys(wanted))
            try:
                self.world.preparer.prepare(wanted)
            except AgentError as error:
                assert self._missing(wanted), error
            else:
                assert self.world.usable(uid)

    @invariant()
    def nobody_shares_what_is_not_shared(self) -> None:
        if not hasattr(self, "world"):
            return
        seen: dict[str, list[str | None]] = {}
        for entry in self.world.ledger.entries():
            for device in entry.devices:
                seen.setdefault(device.device, []).append(device.share_id)
        for name, shares in seen.items():
            assert len(shares) == 1 or (None not in shares and len(set(shares)) == len(shares)), (name, shares)

    @invariant()
    def no_partition_without_its_claim(self) -> None:
        if not hasattr(self, "world"):
            return
        held = {entry.uid for entry in self.world.ledger.entries()}
        assert set(self.world.hardware.values()) <= held


def _keys(wanted: dict[str, Any]) -> list[tuple[str, str | None]]:
    results = wanted["status"]["allocation"]["devices"]["results"]
    return [(item["device"], item.get("shareID")) for item in results]


def _numbers(wanted: dict[str, object]) -> list[int]:
    return [int(name.removeprefix("gpu-")) for name, _ in _keys(wanted)]


TestAgent = Agent.TestCase
TestAgent.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
