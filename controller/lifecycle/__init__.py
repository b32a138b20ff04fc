"""Changes of claims and classes: allocation, cleanup, giving up."""
