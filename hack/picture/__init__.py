"""Pictures of the terminal for the handbook, made from a simulated cluster."""
