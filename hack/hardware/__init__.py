"""The beliefs about hardware, held against a machine with an NVIDIA GPU: ``make hardware``."""
