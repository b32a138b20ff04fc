"""Queue of waiting pods: whose turn it is, what is held back, and what refusals teach."""
