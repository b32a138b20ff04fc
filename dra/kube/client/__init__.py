"""The Kubernetes API over plain dicts: requests, watches, what a server serves."""
