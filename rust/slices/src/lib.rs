//! From an inventory to the ResourceSlices to publish.
