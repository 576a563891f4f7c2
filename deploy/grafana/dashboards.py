"""The dashboards: fleet, node, claims, reclaim and device health. `make docs-reference` writes their JSON."""

from __future__ import annotations

from deploy.grafana.model import Dashboard, Panel, Query

NODE = '{instance=~"$instance"}'
DEVICE = "{{instance}} {{device}}"

FLEET = Dashboard(
    "dra-agent-fleet",
    "dra-agent / Fleet",
    "What the nodes have, what can still be claimed, and which agents need attention.",
    (
        Panel("Agents", "Agents that Prometheus can scrape.", (Query("count(dra_agent_build_info)"),), "stat", width=4),
        Panel("Claims", "Claims that hold devices.", (Query("sum(dra_agent_prepared_claims)"),), "stat", width=4),
        Panel(
            "Unhealthy devices",
            "Devices with an issue that excludes them.",
            (Query('sum(dra_agent:devices:sum{state="unhealthy"})'),),
            "stat",
            width=4,
        ),
        Panel(
            "Not registered",
            "Agents that the kubelet does not use. Agents in standalone mode have no kubelet and do not count.",
            (Query("sum((1 - dra_agent_registered) and on (job, instance) dra_agent_publish_slices) or vector(0)"),),
            "stat",
            width=4,
        ),
        Panel(
            "Fragmented memory",
            "The part of the free GPU memory that the largest device that fits on each GPU cannot use.",
            (Query('max(dra_agent:fragmented_memory:ratio{family="gpu"})'),),
            "stat",
            "percentunit",
            4,
        ),
        Panel(
            "Versions",
            "More than one: an update has not ended.",
            (Query("count(count by (version) (dra_agent_build_info))"),),
            "stat",
            width=4,
        ),
        Panel(
            "Devices by state",
            "Every published device, each in one state.",
            (Query("sum by (family, state) (dra_agent:devices:sum)", "{{family}} {{state}}"),),
            stacked=True,
        ),
        Panel(
            "Still allocatable",
            "How many devices of each kind alone can still be claimed. Kinds exclude each other: do not add them.",
            (Query("sum by (product, partition) (dra_agent:allocatable_devices:sum)", "{{product}} {{partition}}"),),
        ),
        Panel(
            "Free memory against what fits",
            "The difference between the two lines of a product is fragmented.",
            (
                Query("sum by (product) (dra_agent:free_memory_bytes:sum)", "{{product}} free"),
                Query("sum by (product) (dra_agent:fitting_memory_bytes:sum)", "{{product}} fitting"),
            ),
            unit="bytes",
        ),
        Panel(
            "Requests to the API server",
            "By HTTP method, of all agents.",
            (Query("sum by (method) (rate(dra_agent_api_requests_total[$__rate_interval]))", "{{method}}"),),
            unit="reqps",
        ),
    ),
)


def _traffic(title: str, description: str, kind: str) -> Panel:
    """Return a panel with both directions of one kind of link: network, rdma, nvlink, xgmi or pcie."""
    return Panel(
        title,
        description,
        tuple(
            Query(
                f"sum by (instance) (rate(dra_agent_device_{kind}_{direction}_bytes_total{NODE}[$__rate_interval]))",
                f"{{{{instance}}}} {direction}",
            )
            for direction in (("read", "write") if kind == "xgmi" else ("receive", "transmit"))
        ),
        unit="Bps",
    )


NODES = Dashboard(
    "dra-agent-node",
    "dra-agent / Node",
    "One agent or several: devices, slices, and the agent itself.",
    (
        Panel(
            "Devices by state",
            "Every published device, each in one state.",
            (Query(f"sum by (family, state) (dra_agent_devices{NODE})", "{{family}} {{state}}"),),
            stacked=True,
        ),
        Panel(
            "Still allocatable",
            "How many devices of each kind alone can still be claimed on the node.",
            (
                Query(
                    f"sum by (instance, product, partition) (dra_agent_allocatable_devices{NODE})",
                    "{{instance}} {{product}} {{partition}}",
                ),
            ),
        ),
        Panel(
            "Largest free device",
            "Memory of the largest device that can still be claimed.",
            (Query(f"dra_agent_largest_free_device_memory_bytes{NODE}", "{{instance}} {{product}}"),),
            unit="bytes",
        ),
        Panel(
            "Slices not current",
            "Pools that differ from the desired slices, and the time without changes from the API server.",
            (
                Query(f"dra_agent_publish_pending_pools{NODE}", "{{instance}} pools"),
                Query(f"dra_agent_publish_behind_seconds{NODE}", "{{instance}} seconds behind"),
            ),
        ),
        Panel(
            "Failures to publish",
            "By kind.",
            (
                Query(
                    f"sum by (instance, kind) (increase(dra_agent_publish_errors_total{NODE}[$__rate_interval])) > 0",
                    "{{instance}} {{kind}}",
                ),
            ),
        ),
        Panel(
            "Utilization of GPUs",
            "The mean of the node's GPUs. Requires telemetry.",
            (
                Query(
                    f"avg by (instance, product) (dra_agent_device_gpu_utilization_ratio{NODE})",
                    "{{instance}} {{product}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            "Power of GPUs",
            "The sum of the node's GPUs; of Intel's, the average since the sample before. Requires telemetry.",
            (
                Query(
                    "sum by (instance, product) "
                    f"(dra_agent_device_power_watts{NODE} or dra_agent_device_average_power_watts{NODE})",
                    "{{instance}} {{product}}",
                ),
            ),
            unit="watt",
        ),
        _traffic("Network traffic", "Of interfaces of the host. Requires telemetry.", "network"),
        _traffic("RDMA traffic", "Of all ports of the node's adapters. Requires telemetry.", "rdma"),
        _traffic("NVLink traffic", "Data of all NVLinks of the node's GPUs. Requires telemetry.", "nvlink"),
        _traffic("XGMI traffic", "Data of all XGMI links of the node's AMD GPUs. Requires telemetry.", "xgmi"),
        _traffic("PCIe traffic", "Of NVIDIA GPUs whose driver counts it. Requires telemetry.", "pcie"),
        Panel(
            "Network errors",
            "Errors, dropped packets and failed links of interfaces and RDMA ports. Requires telemetry.",
            tuple(
                Query(
                    f"sum by (instance) (increase(dra_agent_device_{name}_total{NODE}[$__rate_interval])) > 0",
                    f"{{{{instance}}}} {name.replace('_', ' ')}",
                )
                for name in (
                    "network_receive_errors",
                    "network_transmit_errors",
                    "network_receive_drops",
                    "network_transmit_drops",
                    "rdma_receive_errors",
                    "rdma_transmit_discards",
                    "rdma_link_downed",
                )
            ),
        ),
        Panel(
            "Memory of the agent",
            "Resident memory of the process.",
            (Query(f"process_resident_memory_bytes{NODE} and on (instance) dra_agent_build_info", "{{instance}}"),),
            unit="bytes",
        ),
        Panel(
            "CPU of the agent",
            "CPUs that the process uses.",
            (
                Query(
                    f"rate(process_cpu_seconds_total{NODE}[$__rate_interval]) and on (instance) dra_agent_build_info",
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "Versions and configurations",
            "Nodes with different values have different hashes.",
            (Query(f"dra_agent_build_info{NODE}"),),
            "table",
        ),
    ),
    per_node=True,
)

CLAIMS = Dashboard(
    "dra-agent-claims",
    "dra-agent / Claims",
    "Requests of the kubelet by result and duration, and the claims that hold devices.",
    (
        Panel(
            "Claims by state",
            "Claims in the ledgers.",
            (Query(f"sum by (state) (dra_agent_claims{NODE})", "{{state}}"),),
        ),
        Panel(
            "Oldest claim",
            "A claim in state preparing for minutes hangs, or waits for a retry.",
            (Query(f"max by (state) (dra_agent_oldest_claim_age_seconds{NODE})", "{{state}}"),),
            unit="s",
        ),
        Panel(
            "Requests by result",
            "permanent: the claim or the device must change. defect: an error of the agent.",
            (
                Query(
                    f"sum by (operation, result) (rate(dra_agent_dra_requests_total{NODE}[$__rate_interval]))",
                    "{{operation}} {{result}}",
                ),
            ),
            unit="reqps",
        ),
        Panel(
            "Duration of requests",
            "The 99th percentile.",
            (
                Query(
                    "histogram_quantile(0.99, sum by (operation, le) "
                    f"(rate(dra_agent_dra_request_duration_seconds_bucket{NODE}[$__rate_interval])))",
                    "{{operation}}",
                ),
            ),
            unit="s",
        ),
        Panel(
            "Duration of phases",
            "The 99th percentile of the phases of prepare.",
            (
                Query(
                    "histogram_quantile(0.99, sum by (phase, le) "
                    f"(rate(dra_agent_dra_phase_duration_seconds_bucket{NODE}[$__rate_interval])))",
                    "{{phase}}",
                ),
            ),
            unit="s",
        ),
        Panel(
            "Requests in progress",
            "A request that stays for minutes hangs in a driver.",
            (Query(f"dra_agent_dra_requests_inflight{NODE}", "{{instance}}"),),
        ),
        Panel(
            "GPU utilization",
            "Of claims that hold a device alone. Requires telemetry with labels of claims.",
            (
                Query(
                    f"max by (namespace, claim, device, instance) (dra_agent_claim_gpu_utilization_ratio{NODE})",
                    "{{namespace}}/{{claim}} {{device}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            "GPU activity",
            "Of claims on NVIDIA GPUs since Hopper, and on MIG devices. Requires telemetry with labels of claims.",
            tuple(
                Query(
                    f"max by (namespace, claim, device, instance) (dra_agent_claim_{name}{NODE})",
                    f"{{{{namespace}}}}/{{{{claim}}}} {{{{device}}}} {text}",
                )
                for name, text in (
                    ("sm_activity_ratio", "multiprocessors"),
                    ("tensor_activity_ratio", "tensor operations"),
                    ("memory_bandwidth_ratio", "memory bandwidth"),
                )
            ),
            unit="percentunit",
        ),
        Panel(
            "GPU memory in use",
            "Of claims that hold a device alone. Requires telemetry with labels of claims.",
            (
                Query(
                    f"max by (namespace, claim, device, instance) (dra_agent_claim_memory_used_bytes{NODE})",
                    "{{namespace}}/{{claim}} {{device}}",
                ),
            ),
            unit="bytes",
        ),
        Panel(
            "Idle GPUs of claims",
            "The part of the last hour in which the claim's GPU did not compute.",
            (Query(f"rate(dra_agent_claim_idle_seconds_total{NODE}[1h])", "{{namespace}}/{{claim}} {{device}}"),),
            unit="percentunit",
        ),
        Panel(
            "Power of claims",
            "From the energy that their devices consumed.",
            (
                Query(
                    "sum by (namespace, claim, instance) "
                    f"(rate(dra_agent_claim_energy_joules_total{NODE}[$__rate_interval]))",
                    "{{namespace}}/{{claim}}",
                ),
            ),
            unit="watt",
        ),
        Panel(
            "Idle GPU-hours by namespace",
            "Of the hour before: 2 means that two GPUs were held and did not compute.",
            (
                Query(
                    f"sum by (namespace) (increase(dra_agent_claim_idle_seconds_total{NODE}[1h])) / 3600",
                    "{{namespace}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Energy by namespace",
            "Of the hour before.",
            (
                Query(
                    f"sum by (namespace) (increase(dra_agent_claim_energy_joules_total{NODE}[1h])) / 3600",
                    "{{namespace}}",
                ),
            ),
            unit="watth",
            stacked=True,
        ),
        Panel(
            "Longest idle claims",
            "Time of the last day in which the claim's GPU did not compute, of the 20 longest.",
            (
                Query(
                    "topk(20, sum by (namespace, claim, device, instance) "
                    f"(increase(dra_agent_claim_idle_seconds_total{NODE}[1d])) > 0)",
                ),
            ),
            "table",
            "s",
            24,
            value_column="idle",
        ),
    ),
    per_node=True,
)

RECLAIM = Dashboard(
    "dra-agent-reclaim",
    "dra-agent / Reclaim",
    "Notices that a node is reclaimed, the release of its claims, and the sources of notices.",
    (
        Panel(
            "Nodes with a notice",
            "Nodes that are about to be reclaimed.",
            (Query('sum(dra_agent_reclaim_phase{phase="notice"}) or vector(0)'),),
            "stat",
            width=6,
        ),
        Panel(
            "Overdue claims",
            "Claims that were not released at the deadline.",
            (Query("sum(dra_agent_reclaim_claims_overdue) or vector(0)"),),
            "stat",
            width=6,
        ),
        Panel(
            "Sources down",
            "A notice from them would not be received.",
            (Query("count(dra_agent_reclaim_source_up == 0) or vector(0)"),),
            "stat",
            width=6,
        ),
        Panel(
            "Notices in a day",
            "Notices that began.",
            (Query("sum(increase(dra_agent_reclaim_notices_total[1d]))"),),
            "stat",
            width=6,
        ),
        Panel(
            "Claims of notices",
            "By state; all are released at the end.",
            (Query("sum by (state) (dra_agent_reclaim_claims)", "{{state}}"),),
            stacked=True,
        ),
        Panel(
            "Time to the deadline",
            "By node.",
            (Query("dra_agent_reclaim_deadline_timestamp_seconds - time() > 0", "{{instance}}"),),
            unit="s",
        ),
        Panel(
            "Time until every device was tainted",
            "From the notice.",
            (Query("dra_agent_reclaim_taint_publish_duration_seconds", "{{instance}}"),),
            unit="s",
        ),
        Panel(
            "Pods that agents evicted",
            "Pods that the taint would not have evicted in time, by method and result.",
            (
                Query(
                    "sum by (mode, result) (increase(dra_agent_reclaim_fallback_evictions_total[$__rate_interval]))",
                    "{{mode}} {{result}}",
                ),
            ),
        ),
    ),
)

HEALTH = Dashboard(
    "dra-agent-health",
    "dra-agent / Device health",
    "Issues of devices, their taints, and problems of hosts.",
    (
        Panel(
            "Unhealthy devices",
            "By product.",
            (Query('sum by (product) (dra_agent_devices{instance=~"$instance", state="unhealthy"})', "{{product}}"),),
        ),
        Panel(
            "Issues that began",
            "By cause, also of devices that have recovered.",
            (
                Query(
                    f"sum by (cause) (increase(dra_agent_device_cause_begun_total{NODE}[$__rate_interval])) > 0",
                    "{{cause}}",
                ),
            ),
        ),
        Panel("Current issues", "Devices and their causes.", (Query(f"dra_agent_device_causes{NODE}"),), "table"),
        Panel("Current taints", "Devices and their taints.", (Query(f"dra_agent_device_taints{NODE}"),), "table"),
        Panel(
            "Throttled devices",
            "Devices whose clocks are lowered, by reason. power_cap occurs in normal operation. Requires telemetry.",
            (Query(f"sum by (reason) (dra_agent_device_throttled{NODE})", "{{reason}}"),),
        ),
        Panel(
            "Temperature of GPUs",
            "Requires telemetry.",
            (Query(f"dra_agent_device_temperature_celsius{NODE}", DEVICE),),
            unit="celsius",
        ),
        Panel(
            "Memory errors",
            "Errors that ECC corrected, and those that it could not correct. Requires telemetry.",
            tuple(
                Query(
                    f"increase(dra_agent_device_ecc_{kind}_errors_total{NODE}[$__rate_interval]) > 0",
                    f"{DEVICE} {kind}",
                )
                for kind in ("corrected", "uncorrected")
            ),
        ),
        Panel(
            "XIDs",
            "Errors that NVIDIA's driver reported, of every number. Requires telemetry.",
            (Query(f"increase(dra_agent_device_xid_errors_total{NODE}[$__rate_interval]) > 0", DEVICE),),
        ),
        Panel(
            "PCIe replays",
            "Packets that were sent again, of NVIDIA GPUs and of AMD GPUs since MI300. Requires telemetry.",
            (Query(f"increase(dra_agent_device_pcie_replays_total{NODE}[$__rate_interval]) > 0", DEVICE),),
        ),
        Panel(
            "Problems of hosts",
            "dra-agent doctor lists them.",
            (Query(f"dra_agent_host_problems{NODE} > 0", "{{instance}}"),),
        ),
        Panel(
            "Devices with a second manager",
            "Devices that another driver or device plugin also advertises.",
            (Query(f"dra_agent_second_manager_devices{NODE} > 0", "{{instance}} {{manager}}"),),
        ),
    ),
    per_node=True,
)

DASHBOARDS = (FLEET, NODES, CLAIMS, RECLAIM, HEALTH)


def files() -> dict[str, str]:
    """Return the JSON by file name."""
    return {f"{dashboard.uid}.json": dashboard.to_json() for dashboard in DASHBOARDS}
