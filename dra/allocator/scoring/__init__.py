"""The price of a placement, and the best placements of one geometry."""
