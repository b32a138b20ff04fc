"""The allocation controller, which chooses node, GPU and placement of every claim."""
