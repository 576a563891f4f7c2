"""A sample of the fault campaign, and a test that the campaign can fail: the whole campaign is `make faults`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

import preloaded
from faults.campaign import BY_NAME, Campaign
from faults.disk import Fault, build
from faults.node import BrokenPromiseError, Node

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="the interposer is compiled by the system's C compiler"),
]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    folder = tmp_path_factory.mktemp("faults")
    library = build(folder)
    # Agents are forks of a preloaded process of this module, which has loaded the interposer.
    preloaded.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        campaign = Campaign(folder, library, is_preloaded=True)
        campaign.rehearse()
        yield campaign
        campaign.close()
        preloaded.close()


@pytest.mark.parametrize(
    ("call", "path", "fault"),
    [
        ("fdatasync", "/ledger/", "SIGKILL"),
        ("rename", "/cdi/", "SIGKILL"),
        ("unlink", "/cdi/", "SIGKILL"),
        ("pwrite", "/objects.db", "torn"),
        ("pwrite", "/ledger/journal", "torn"),
        ("rename", "/cdi/", "ENOSPC"),
        ("fdatasync", "/ledger/", "EIO"),
        ("pwrite", "/objects.db", "EROFS-sticky"),
        ("pwrite", "/ledger/journal", "ENOSPC-sticky"),
    ],
)
def test_a_failing_call_breaks_no_guarantee(campaign: Campaign, call: str, path: str, fault: str) -> None:
    points = [n for n, line in enumerate(campaign.calls) if line.startswith(f"{call} ") and path in line]
    assert points, f"a case makes no {call} below {path}"
    point = points[len(points) // 2]
    try:
        hit = campaign.run(point, BY_NAME[fault])
    except BrokenPromiseError as broken:
        pytest.fail(f"--point {point} --fault {fault}: {broken}\n{campaign.log()}")
    assert hit, "the fault did not happen"


def test_the_campaign_detects_a_lost_claim(campaign: Campaign) -> None:
    def lose_the_state(node: Node) -> None:
        shutil.rmtree(node.state / "ledger")
        for path in node.state.glob("objects.db*"):
            path.unlink()

    with pytest.raises(BrokenPromiseError, match="claim .* was accepted and is gone"):
        campaign.run(10_000, Fault("none", 0), before_check=lose_the_state)
