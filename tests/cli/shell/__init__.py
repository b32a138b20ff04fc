"""Shell: the program, its completion and its documentation."""
