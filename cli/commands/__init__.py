"""One module per command: ``run(session, arguments)`` does it and returns the exit code."""
