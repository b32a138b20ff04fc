"""Events, sent from a thread of their own, within limits."""
