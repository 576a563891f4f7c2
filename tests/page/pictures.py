"""Draws the pictures of docs/how-to/operate/page.md: `make docs-pictures`, with chromium-headless-shell installed.

They show what `dra-agent ui` serves for an agent on a simulated DGX H100 with claims, played load and a notice.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from eventually import DEADLINE_S, eventually
from page.chromium import CHROMIUM, Chromium

IMAGES = Path(__file__).parents[2] / "docs/images"
WINDOW, PHONE = (1180, 900), (390, 844)
PROFILE = "dgx-h100"
CLASS = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec:
  selectors:
  - cel: {expression: 'device.attributes["dra-agent.internal"].type == "gpu"'}
"""
CLAIM = """\
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: %s, namespace: %s}
spec:
  devices:
    requests:
    - name: gpu
      exactly: {deviceClassName: gpu, count: %d}
"""
CLAIMS = (("pretraining", "research", 3), ("chat", "serving", 2), ("notebook", "research", 1))
LOADS = {
    0: (97, 61, 71_000, 688),
    1: (96, 60, 70_800, 681),
    2: (98, 62, 71_100, 692),
    3: (41, 18, 52_000, 301),
    4: (37, 15, 52_000, 288),
}
"""By number of the GPU: utilization of GPU and memory in percent, memory in MiB, power in watts."""
_HEADER = "seconds,gpu_percent,memory_percent,memory_mib,power_watts"


def main() -> int:
    """Write the pictures."""
    if CHROMIUM is None:
        print("no Chromium is installed (package chromium-headless-shell)", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="dra-agent-pictures-") as name, ExitStack() as stack:
        place = Path(name)
        (place / "agent.toml").write_text("[telemetry]\ninterval = 1\n")
        (place / "claims.yaml").write_text(CLASS + "".join(CLAIM % claim for claim in CLAIMS))
        stack.enter_context(
            running(
                place, "agent", "info ready", "run", "--standalone", "--config", "agent.toml", "--simulate", PROFILE
            )
        )
        run(place, "claim", "apply", "-f", "claims.yaml")
        root = next((place / "state").rglob("nvml.json")).parents[1]
        for number, values in LOADS.items():
            schedule = place / f"{number}.csv"
            schedule.write_text(f"{_HEADER}\n0,{','.join(map(str, values))}\n")
            run(place, "simulate", "load", str(root), str(number), str(schedule))
        url = stack.enter_context(running(place, "ui", r"http://\S+/\n", "ui", "--port", "0"))
        browser = stack.enter_context(Chromium(place / "profile"))
        width, height = WINDOW
        page = browser.open(url, width=width, height=height)
        page.eventually("document.body.textContent.includes('97 %')")
        draw(page.picture(whole=False), "page-light.png")
        page.close()
        for name, dark in (("page-phone-light.png", False), ("page-phone-dark.png", True)):
            page = browser.open(url, width=PHONE[0], height=PHONE[1], dark=dark)
            page.eventually("document.body.textContent.includes('97 %')")
            draw(page.picture(whole=False), name)
            page.close()
        run(place, "reclaim", "start", "--in", "110", "--why", "spot capacity is needed", "--yes")
        page = browser.open(url, width=width, height=height, dark=True)
        page.eventually("document.querySelector('[data-seconds]') !== null")
        draw(page.picture(whole=False), "page-dark.png")
        page.close()
    return 0


def draw(picture: bytes, name: str) -> None:
    (IMAGES / name).write_bytes(picture)
    print(f"{IMAGES / name}: {len(picture) >> 10} KiB")


def environment(place: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DRA_AGENT_", "KUBE"))}
    names = {"STATE_DIR": str(place / "state"), "CDI_DIR": str(place / "cdi"), "NODE_NAME": "node-1"}
    return {**inherited, "HOME": str(place), **{f"DRA_AGENT_{name}": value for name, value in names.items()}}


def run(place: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "dra_agent", *arguments]
    subprocess.run(command, cwd=place, env=environment(place), check=True, stdout=subprocess.DEVNULL)


@contextmanager
def running(place: Path, name: str, pattern: str, *arguments: str) -> Iterator[str]:
    """Run a command until the end; yield what its output has of the pattern."""
    log = place / f"{name}.log"
    with log.open("w") as file:
        command = [sys.executable, "-m", "dra_agent", *arguments]
        process = subprocess.Popen(command, cwd=place, env=environment(place), stdout=file, stderr=file)
    try:
        found = eventually(lambda: re.search(pattern, log.read_text()), log.read_text)
        assert found is not None
        yield found[0].strip()
    finally:
        process.kill()
        process.wait(DEADLINE_S)


if __name__ == "__main__":
    sys.exit(main())
