"""Journal, hardware and claims brought to agree: after a start, after losses, without a journal."""
