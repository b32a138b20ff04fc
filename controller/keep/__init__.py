"""Objects that the controller keeps for others: classes, templates, labels of nodes."""
