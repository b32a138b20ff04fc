"""An optional program that refuses claims and classes whose configuration we could not read."""
