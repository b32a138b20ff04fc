"""Schema of what is served: resources, shapes of objects, the form in which these are kept."""
