"""Claims: their requests, their allocations, and the reasons why one waits."""
