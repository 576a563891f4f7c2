//! Who holds what, durably.
