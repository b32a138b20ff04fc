"""HTTP and the API above it: connections, requests to answers, tools for tests, container logs."""
