"""The search for devices that several requests get together."""
