"""CDI specs for container runtimes: build, validate, write atomically, sweep."""
