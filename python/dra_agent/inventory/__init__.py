"""From the topology to devices: one back end per vendor, rules of the operator, health."""
