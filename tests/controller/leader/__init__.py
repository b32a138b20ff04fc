"""Engine: its loop, its terms as leader, and the controller as a process."""
