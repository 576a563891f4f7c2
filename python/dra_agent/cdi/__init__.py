"""CDI (Container Device Interface) specs of claims: model, edits per vendor, directory of specs, device metadata."""
