"""Claims of a node: prepared and unprepared, remembered over a restart."""
