"""OpenTelemetry: metrics and spans to a collector, by OTLP over HTTP. Imported only if an endpoint is configured."""
