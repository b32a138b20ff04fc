"""The program as a whole: its parts, the order in which they start and stop, and who serves."""
