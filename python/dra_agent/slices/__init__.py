"""From the inventory to the ResourceSlices that describe it."""
