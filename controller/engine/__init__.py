"""Events become work while this process leads."""
