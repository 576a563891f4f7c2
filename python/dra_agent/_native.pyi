"""Types of the Rust extension; rust/native has one file for each section below."""
