"""Sources of telemetry, one module for each vendor or family; a module is imported if its hardware is present."""
