"""Life of a claim from its label to its end, with all that goes wrong in between."""
