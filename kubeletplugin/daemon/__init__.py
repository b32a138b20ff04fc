"""The program as a whole: its parts, and the order in which they start and stop."""
