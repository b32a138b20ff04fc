"""Claims: what they ask for, what they were given, and why one waits."""
