"""From a claim's devices to a Container Device Interface spec: the model, the recipes per vendor, the directory."""
