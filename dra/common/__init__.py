"""Small things that every room needs: quantities, logs, caches, the table of API resources."""
