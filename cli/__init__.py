"""``kubectl mig``: what the GPUs hold, why claims wait, and what is wrong."""
