"""Random allocator queries from a seed: small pools in which every kind of error is frequent."""

from __future__ import annotations

import random
from typing import Any

from allocator.random_pools import GPU, NIC, NODES, make_slices

Json = dict[str, Any]

ATTRIBUTES = [
    f"{GPU}/model",
    f"{GPU}/numa",
    "resource.kubernetes.io/pcieRoot",
    f"{GPU}/firmware",
    f"{GPU}/healthy",
    f"{NIC}/model",
    f"{GPU}/links",
    "model",
]
SELECTORS = [
    f'device.driver == "{GPU}"',
    f'device.driver == "{NIC}"',
    f'device.attributes["{GPU}"].model == "A"',
    f'device.attributes["{GPU}"].?model.orValue("none") == "A"',
    f'"model" in device.attributes["{GPU}"] && device.attributes["{GPU}"].model != "B"',
    f'device.attributes["{GPU}"].?numa.orValue(-1) >= 0',
    f'device.capacity["{GPU}"].?memory.orValue(quantity("0")).compareTo(quantity("4Gi")) >= 0',
    f'has(device.attributes["{GPU}"].healthy) && device.attributes["{GPU}"].healthy',
    f'device.attributes["{GPU}"].?firmware.orValue(semver("0.0.1")).isGreaterThan(semver("1.0.0"))',
    'device.attributes["resource.kubernetes.io"].?pcieRoot.orValue("").startsWith("pci")',
    "device.allowMultipleAllocations",
    "true",
    "false",
]
GENEROUS = [
    "true",
    f'device.attributes["{GPU}"].?model.orValue("A") == "A"',
    f'device.attributes["{GPU}"].?numa.orValue(1) >= 0',
    'device.attributes["resource.kubernetes.io"].?pcieRoot.orValue("pci0") != "pci1"',
]
# Expressions that fail on some devices, on all, or do not compile.
BAD_SELECTORS = [
    f'device.attributes["{GPU}"].model == "A"',
    'device.attributes["other.example.com"].model == "A"',
    f'device.capacity["{GPU}"].memory.compareTo(quantity("1Gi")) > 0',
    f'device.attributes["{GPU}"].numa == "text"',
    "device.nonsense == 1",
    "not an expression",
    '"a text"',
    "",
]
AMOUNTS = ["1Gi", "2Gi", "3Gi", "4Gi", "1500M", "1", "0", "100m", "0.5Gi", "1e3", "1n", "1500m", "1", "2"]
BAD_AMOUNTS = ["9223372036854775807", "10Ei", "-1", "9.3E", "12Gi", "9223372036854775807m"]
KEYS = ["maintenance", "example.com/slow"]


class Generator:
    """Builds one query; each part is absent, common or broken at random."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.uids = 0
        # Most queries are valid: an error ends an allocation before anything else is compared.
        self.broken = self.rng.random() < 0.3

    def mistake(self, probability: float) -> bool:
        """Return a random decision for an error; always false in a valid query."""
        return self.broken and self.chance(probability)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def sample(self, values: list[Any], max_count: int) -> list[Any]:
        return self.rng.sample(values, self.rng.randint(0, min(max_count, len(values))))

    def query(self) -> Json:
        crowded = self.chance(0.04)
        slices = make_slices(self.rng, crowded=crowded, broken=self.broken)
        classes = self.classes()
        query: Json = {
            "node": self.node(),
            "classes": classes,
            "slices": slices,
            "claims": [self.claim(f"claim-{i}", crowded) for i in range(self.rng.choice([1, 1, 1, 2, 2, 3]))],
            "allocated": [],
        }
        devices = [
            (s["spec"]["driver"], s["spec"]["pool"]["name"], d) for s in slices for d in s["spec"].get("devices", [])
        ]
        if devices and self.chance(0.5):
            query["allocated"] = [self.allocated(f"held-{i}", devices) for i in range(self.rng.randint(1, 3))]
        if devices and self.chance(0.08):
            query["claims"].insert(self.rng.randint(0, 1), self.allocated("own", devices))
        if self.chance(0.03) and query["allocated"]:
            query["claims"].append(query["allocated"][0])
        return query

    def node(self) -> str | Json:
        if self.chance(0.4):
            return NODES[0]
        labels = {"zone": self.rng.choice(["a", "b"]), "tier": str(self.rng.randint(1, 3))}
        return {"metadata": {"name": NODES[0], "labels": labels}}

    def classes(self) -> list[Json]:
        classes: list[Json] = [{"metadata": {"name": "any"}, "spec": {}}]
        classes.append({"metadata": {"name": "gpu"}, "spec": {"selectors": [self.selector(0)]}})
        for name in ("narrow", "wide"):
            spec: Json = {"selectors": [self.selector(0.08) for _ in range(self.rng.randint(0, 2))]}
            if self.chance(0.5):
                spec["config"] = [self.opaque(name, i) for i in range(self.rng.randint(1, 2))]
            classes.append({"metadata": {"name": name}, "spec": spec})
        return classes

    def opaque(self, name: str, index: int) -> Json:
        return {"opaque": {"driver": GPU, "parameters": {"kind": name, "index": index}}}

    def selector(self, bad: float) -> Json:
        if self.mistake(0.01):
            return {}
        if self.mistake(bad):
            return {"cel": {"expression": self.rng.choice(BAD_SELECTORS)}}
        return {"cel": {"expression": self.rng.choice(SELECTORS if self.chance(0.5) else GENEROUS)}}

    def claim(self, name: str, crowded: bool) -> Json:
        self.uids += 1
        count = self.rng.choice([1, 1, 1, 2, 2, 3])
        names = [f"r{i}" for i in range(count)]
        requests = [self.request(name, crowded) for name in names]
        devices: Json = {"requests": requests}
        parts = names + [f"{r['name']}/{s['name']}" for r in requests for s in r.get("firstAvailable", [])]
        if self.chance(0.45) and not crowded:
            devices["constraints"] = [self.constraint(parts) for _ in range(self.rng.randint(1, 2))]
        if self.chance(0.4):
            devices["config"] = [
                {"requests": self.sample(parts, 2), **self.opaque("claim", i)} for i in range(self.rng.randint(1, 3))
            ]
        return {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{self.uids}"},
            "spec": {"devices": devices},
        }

    def constraint(self, parts: list[str]) -> Json:
        constraint: Json = {"requests": self.sample(parts, 3)} if self.chance(0.5) else {}
        roll = self.rng.random()
        attribute = self.rng.choice(ATTRIBUTES[:3] if self.chance(0.7) else ATTRIBUTES)
        if roll < 0.6:
            constraint["matchAttribute"] = attribute
        elif roll < 0.98 or not self.broken:
            constraint["distinctAttribute"] = attribute
        return constraint

    def request(self, name: str, crowded: bool) -> Json:
        if self.mistake(0.03):
            return {"name": name}
        if self.chance(0.3):
            alternatives = [{"name": f"s{i}", **self.exactly(crowded)} for i in range(self.rng.randint(1, 3))]
            return {"name": name, "firstAvailable": alternatives}
        exactly = self.exactly(crowded)
        if self.chance(0.12):
            exactly["adminAccess"] = self.chance(0.8)
        return {"name": name, "exactly": exactly}

    def exactly(self, crowded: bool) -> Json:
        unknown = "missing" if self.chance(0.5) else ""
        exactly: Json = {
            "deviceClassName": unknown if self.mistake(0.05) else self.rng.choice(["any", "gpu", "narrow", "wide"])
        }
        if self.chance(0.45):
            exactly["selectors"] = [self.selector(0.06) for _ in range(self.rng.randint(1, 2))]
        roll = self.rng.random()
        if roll < 0.12:
            exactly["allocationMode"] = "All"
        elif roll < 0.6:
            exactly["allocationMode"] = "ExactCount"
            exactly["count"] = self.rng.choice([7, 12, 20, 31, 32, 33] if crowded else [1, 1, 1, 2, 2, 3, 0])
        elif roll < 0.61 and self.broken:
            exactly["allocationMode"] = "Some"
        if self.mistake(0.02):
            exactly["count"] = self.rng.choice([-1, 2**62, 2**63 - 1])
        if self.chance(0.4):
            exactly["tolerations"] = [self.toleration() for _ in range(self.rng.randint(1, 2))]
        if self.chance(0.2):
            exactly["capacity"] = {"requests": self.capacity()}
        if self.mistake(0.01):
            exactly["derivedAttributes"] = [{"name": "x", "expression": "1"}]
        return exactly

    def capacity(self) -> Json:
        requests: Json = {}
        if self.chance(0.85):
            requests["memory"] = self.rng.choice(BAD_AMOUNTS if self.mistake(0.3) else AMOUNTS)
        if self.chance(0.2):
            requests["bandwidth"] = self.rng.choice(["1", "10", "2500m", "4", "3.1"])
        if self.chance(0.03):
            requests["cores"] = "1"
        return requests

    def toleration(self) -> Json:
        toleration: Json = {}
        if self.chance(0.8):
            toleration["key"] = self.rng.choice(KEYS)
        operator = self.rng.choice(
            ["Exists", "Equal", "", "Exists", "Odd"] if self.chance(0.2) else ["Exists", "Equal"]
        )
        if operator:
            toleration["operator"] = operator
        if operator != "Exists" or self.chance(0.1):
            toleration["value"] = self.rng.choice(["", "yes"])
        if self.chance(0.4):
            toleration["effect"] = self.rng.choice(["NoSchedule", "NoExecute", "None"])
        if self.chance(0.2):
            toleration["tolerationSeconds"] = self.rng.randint(0, 90)
        return toleration

    def allocated(self, name: str, devices: list[tuple[str, str, Json]]) -> Json:
        self.uids += 1
        results = []
        for driver, pool, device in self.sample(devices, 3):
            result: Json = {"request": "r0", "driver": driver, "pool": pool, "device": device["name"]}
            shared = device.get("allowMultipleAllocations", False)
            if shared != self.chance(0.05):
                result["shareID"] = f"00000000-0000-4000-8000-{self.rng.randint(0, 10**9):012d}"
                if self.chance(0.8):
                    result["consumedCapacity"] = {
                        key: self.rng.choice(["1Gi", "2Gi", "1", "0", "1500m"]) for key in device.get("capacity", {})
                    }
            if self.chance(0.1):
                result["adminAccess"] = self.chance(0.8)
            results.append(result)
        allocation: Json = {"devices": {"results": results}}
        if self.chance(0.4):
            allocation["nodeSelector"] = {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [self.rng.choice(NODES)]}]}
                ]
            }
        return {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{self.uids}"},
            "spec": {"devices": {"requests": []}},
            "status": {"allocation": allocation},
        }


def scenario(seed: int) -> Json:
    """Return the query of this seed."""
    return Generator(seed).query()
