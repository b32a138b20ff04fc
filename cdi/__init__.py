"""Container Device Interface specs: build, validate, write atomically, remove, sweep."""
