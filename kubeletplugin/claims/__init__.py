"""Claims on this node: preparing, unpreparing, recovery and removal."""
