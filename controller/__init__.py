"""The allocation controller: which node, which GPU, which placement."""
