"""The journal: what was made for which claim, on disk before the hardware changes."""
