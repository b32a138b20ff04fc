"""Images: their packages, and programs that start in them."""
