"""Optional program that refuses claims and classes with a configuration that we cannot read."""
