"""Random pools of devices: complete, incomplete, inconsistent, obsolete, of this node and of others."""

from __future__ import annotations

import random
from typing import Any

Json = dict[str, Any]

GPU = "gpu.example.com"
NIC = "nic.example.com"
NODES = ["n1", "n2"]
POLICIES: list[Json] = [
    {"default": "1Gi", "validRange": {"min": "1Gi", "max": "4Gi", "step": "1Gi"}},
    {"default": "2Gi", "validRange": {"min": "1Gi"}},
    {"default": "1Gi", "validRange": {"min": "1Gi", "step": "512Mi"}},
    {"default": "2Gi", "validValues": ["1Gi", "2Gi", "4Gi"]},
    {"default": "1Gi"},
    {"default": "500m", "validRange": {"min": "100m", "max": "8Gi", "step": "100m"}},
    {"default": "1.5", "validRange": {"min": "0.5", "step": "0.25"}},
    {"default": "3Gi", "validValues": ["1Gi", "2Gi"]},
    {"default": "3Gi", "validRange": {"min": "4Gi", "max": "8Gi", "step": "2Gi"}},
    {"validRange": {"max": "2Gi"}},
    {"validRange": {"min": "0", "step": "0"}},
    {"validRange": {"max": "8Gi", "step": "1Gi"}},
    {"validRange": {"min": "0", "step": "1n"}},
    {"validRange": {"min": "-1Gi", "step": "1Gi"}},
    {"validRange": {"min": "1", "max": "9E", "step": "3"}},
    {"default": "1024Mi", "validValues": ["1Gi"]},
]


class PoolGenerator:
    """Builds the slices of one query."""

    def __init__(self, rng: random.Random, crowded: bool, broken: bool) -> None:
        self.rng = rng
        self.crowded = crowded
        self.broken = broken
        self.flavor = rng.choice(["plain", "plain", "shared", "counters", "taints", "mixed"])

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def mistake(self, probability: float) -> bool:
        return self.broken and self.chance(probability)

    def has_flavor(self, flavor: str, otherwise: float = 0.08) -> bool:
        return self.flavor in (flavor, "mixed") or self.chance(otherwise)

    def slices(self) -> list[Json]:
        slices: list[Json] = []
        pools = [(d, p) for d in (GPU, NIC) for p in ("n1/gpu", "a", "n1")]
        for driver, pool in self.rng.sample(pools, self.rng.choice([1, 2, 2, 3])):
            slices += self.pool(driver, pool)
        self.rng.shuffle(slices)
        return slices

    def pool(self, driver: str, pool: str) -> list[Json]:
        generation = self.rng.randint(1, 3)
        sets = self.counter_sets() if self.has_flavor("counters") else []
        reach = self.reach()
        slices = [
            self.slice(driver, pool, generation, self.reach() if self.chance(0.15) else reach, sets)
            for _ in range(self.rng.choice([1, 1, 2, 3]))
        ]
        count = 0
        for entry in slices:
            for device in entry["spec"]["devices"]:
                device["name"] = f"d{count}"
                count += 1
        if self.mistake(0.03) and count > 1:
            entry = self.rng.choice([entry for entry in slices if entry["spec"]["devices"]])
            entry["spec"]["devices"][0]["name"] = "d0" if self.chance(0.5) else f"d{count - 1}"
        if sets:
            slices += self.counter_slices(driver, pool, generation, sets, reach)
        names = [f"slice-{pool.replace('/', '-')}-{driver[:3]}-{i}" for i in range(len(slices))]
        self.rng.shuffle(names)
        for name, entry in zip(names, slices, strict=True):
            entry["metadata"] = {"name": name}
            entry["spec"]["pool"]["resourceSliceCount"] = len(slices)
        if self.chance(0.1 if self.broken else 0.02) and len(slices) > 1:
            slices.pop(self.rng.randrange(len(slices)))
        if self.mistake(0.04):
            self.rng.choice(slices)["spec"]["pool"]["generation"] += self.rng.choice([-1, 1])
        if self.mistake(0.02):
            self.rng.choice(slices)["spec"]["pool"]["resourceSliceCount"] += 1
        if self.chance(0.08):
            slices.append(self.obsolete_slice(slices[0], names))
        return slices

    def obsolete_slice(self, entry: Json, names: list[str]) -> Json:
        spec = {**entry["spec"], "pool": {**entry["spec"]["pool"]}}
        spec["pool"]["generation"] += self.rng.choice([-1, 1])
        spec["pool"]["resourceSliceCount"] = self.rng.choice([1, len(names)])
        return {"metadata": {"name": f"{names[0]}-old"}, "spec": spec}

    def slice(self, driver: str, pool: str, generation: int, reach: Json, sets: list[Json]) -> Json:
        number = self.rng.randint(8, 20) if self.crowded else self.rng.choice([0, 1, 2, 3, 4, 5])
        devices = [self.device(driver, sets) for _ in range(number)]
        if reach.get("perDeviceNodeSelection"):
            for device in devices:
                device.update(self.reach(per_device=True))
        spec = {"driver": driver, "pool": {"name": pool, "generation": generation}, **reach, "devices": devices}
        return {"spec": spec}

    def reach(self, per_device: bool = False) -> Json:
        roll = self.rng.random()
        if roll < 0.5:
            return {"nodeName": NODES[0]}
        if roll < 0.6:
            return {"nodeName": NODES[1]}
        if roll < 0.75:
            return {"allNodes": True}
        if roll < 0.9:
            return {"nodeSelector": self.node_selector()}
        if roll < 0.98 and not per_device:
            return {"perDeviceNodeSelection": True}
        return {}

    def node_selector(self) -> Json:
        expressions: list[Json] = [
            {"key": "zone", "operator": "In", "values": ["a"]},
            {"key": "zone", "operator": "In", "values": ["b", "a"]},
            {"key": "zone", "operator": "NotIn", "values": ["c"]},
            {"key": "zone", "operator": "Exists"},
            {"key": "tier", "operator": "Gt", "values": ["1"]},
            {"key": "tier", "operator": "Lt", "values": ["3"]},
            {"key": "absent", "operator": "DoesNotExist"},
        ]
        broken: list[Json] = [
            {"key": "zone", "operator": "In"},
            {"key": "zone", "operator": "Exists", "values": ["a"]},
            {"key": "tier", "operator": "Gt", "values": ["x"]},
            {"key": "-bad", "operator": "Exists"},
            {"key": "zone", "operator": "Like", "values": ["a"]},
        ]
        terms: list[Json] = []
        for _ in range(2 if self.mistake(0.06) else 1):
            source = broken if self.mistake(0.02) else expressions
            term: Json = {"matchExpressions": self.rng.sample(source, self.rng.randint(0, 2))}
            if self.chance(0.2):
                operator = self.rng.choice(["In", "In", "NotIn"])
                term["matchFields"] = [
                    {"key": "metadata.name", "operator": operator, "values": [self.rng.choice(NODES)]}
                ]
            terms.append(term)
        return {"nodeSelectorTerms": terms}

    def device(self, driver: str, sets: list[Json]) -> Json:
        device: Json = {"name": "", "attributes": self.attributes(driver)}
        shared = self.has_flavor("shared", 0.04) and self.chance(0.75)
        if shared:
            device["allowMultipleAllocations"] = True
        if self.chance(0.8 if shared else 0.4):
            device["capacity"] = self.capacity(shared or self.chance(0.05))
        if sets and self.chance(0.75):
            device["consumesCounters"] = self.consumption(sets)
        if self.has_flavor("taints", 0.03) and self.chance(0.5):
            device["taints"] = [self.taint() for _ in range(self.rng.randint(1, 2))]
        if self.chance(0.06):
            device["bindingConditions"] = ["ready"]
            device["bindingFailureConditions"] = ["failed"]
        if self.chance(0.06):
            device["bindsToNode"] = True
        return device

    def attributes(self, driver: str) -> Json:
        attributes: Json = {}
        if self.chance(0.9):
            attributes["model"] = {"string": self.rng.choice(["A", "A", "B"])}
        if self.chance(0.8):
            attributes["numa"] = {"int": self.rng.choice([0, 1])}
        if self.chance(0.85):
            attributes["resource.kubernetes.io/pcieRoot"] = {"string": f"pci{self.rng.randint(0, 2)}"}
        if self.chance(0.5):
            attributes["firmware"] = {"version": self.rng.choice(["1.0.0", "2.1.0", "2.1.0-rc.1"])}
        if self.chance(0.4):
            attributes["healthy"] = {"bool": self.chance(0.7)}
        if self.chance(0.03):
            # Never together with the short name: which of the two Kubernetes uses then depends on a hash.
            attributes.pop("model", None)
            attributes[f"{driver}/model"] = {"string": "A"}
        if self.chance(0.03):
            attributes["numa"] = {"string": "0"}
        if self.chance(0.01):
            attributes["links"] = {"ints": [1, 2]}
        return attributes

    def capacity(self, policies: bool) -> Json:
        capacity: Json = {"memory": {"value": self.rng.choice(["4Gi", "8Gi", "10Gi", "2", "9E", "8192Mi", "1500m"])}}
        if policies and self.chance(0.7):
            capacity["memory"]["requestPolicy"] = self.rng.choice(POLICIES if self.mistake(0.3) else POLICIES[:7])
        if self.chance(0.2):
            capacity["bandwidth"] = {"value": "10"}
            if policies:
                capacity["bandwidth"]["requestPolicy"] = {"default": "1", "validRange": {"min": "1", "step": "500m"}}
        if self.mistake(0.005):
            capacity["bandwidth"] = {"value": "-1"}
        return capacity

    def taint(self) -> Json:
        taint: Json = {
            "key": self.rng.choice(["maintenance", "example.com/slow"]),
            "effect": self.rng.choice(
                ["NoSchedule", "NoExecute", "None", "Later" if self.chance(0.1) else "NoExecute"]
            ),
        }
        if self.chance(0.4):
            taint["value"] = "yes"
        return taint

    def counter_sets(self) -> list[Json]:
        sets = []
        for i in range(self.rng.randint(1, 2)):
            counters: Json = {"slots": {"value": str(self.rng.randint(1, 6))}}
            if self.chance(0.6):
                counters["memory"] = {"value": self.rng.choice(["8Gi", "4Gi", "6Gi"])}
            sets.append({"name": f"card-{i}", "counters": counters})
        return sets

    def counter_slices(self, driver: str, pool: str, generation: int, sets: list[Json], reach: Json) -> list[Json]:
        parts = [sets] if self.chance(0.7) else [[entry] for entry in sets]
        if self.mistake(0.02):
            parts = [sets, sets]
        return [
            {
                "spec": {
                    "driver": driver,
                    "pool": {"name": pool, "generation": generation},
                    **(self.reach() if self.chance(0.2) else reach),
                    "sharedCounters": part,
                }
            }
            for part in parts
        ]

    def consumption(self, sets: list[Json]) -> list[Json]:
        consumption = []
        for entry in self.rng.sample(sets, self.rng.randint(1, len(sets))):
            counters: Json = {"slots": {"value": str(self.rng.choice([0, 1, 1, 2]))}}
            if "memory" in entry["counters"] and self.chance(0.7):
                counters["memory"] = {"value": self.rng.choice(["1Gi", "2Gi", "500m", "1"])}
            if self.mistake(0.01):
                counters["absent"] = {"value": "1"}
            consumption.append({"counterSet": entry["name"], "counters": counters})
        if self.mistake(0.01):
            consumption.append({"counterSet": "absent", "counters": {"slots": {"value": "1"}}})
        if self.chance(0.02):
            consumption.append(dict(consumption[0]))
        return consumption


def make_slices(rng: random.Random, *, crowded: bool, broken: bool) -> list[Json]:
    """Return the ResourceSlices of one query; `crowded` has more devices than one claim may get."""
    return PoolGenerator(rng, crowded, broken).slices()
