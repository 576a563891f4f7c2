"""The dashboards for Grafana, generated as JSON into deploy/helm/dra-agent/files/dashboards."""
