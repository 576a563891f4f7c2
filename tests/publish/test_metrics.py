"""Metrics of the publisher."""

from __future__ import annotations

from dra_agent.metrics.api_server import PublishMetrics
from dra_agent.metrics.registry import Metrics
from dra_agent.metrics.snapshot import MetricsSnapshot
from dra_agent.publish import Publisher
from eventually import eventually_async
from publish.node import Node, device, wait_until_published


def test_publisher_metrics_are_collected_at_each_scrape(node: Node) -> None:
    node.set_devices(device(1), device(2, "nic"))
    node.api.fail(503, methods="POST")

    async def scenario(publisher: Publisher) -> None:
        metrics = Metrics(MetricsSnapshot)
        metrics.add(PublishMetrics(publisher.reading, {"GET": 3}))
        await eventually_async(lambda: len(node.slices()) == 2)
        await wait_until_published(publisher)
        text = metrics.render()[0].decode()
        assert 'dra_agent_publish_writes_total{operation="create"} 2.0' in text
        assert 'dra_agent_publish_writes_total{operation="delete"} 0.0' in text
        assert 'dra_agent_publish_errors_total{kind="unavailable"} 1.0' in text
        assert "dra_agent_publish_slices 2.0" in text
        assert "dra_agent_publish_pending_pools 0.0" in text
        assert "dra_agent_publish_behind_seconds 0.0" in text
        assert "dra_agent_publish_last_write_timestamp_seconds 1" in text
        assert 'dra_agent_api_requests_total{method="GET"} 3.0' in text

    node.run(scenario)
