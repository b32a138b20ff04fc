"""CDI specs for container runtimes: specs are built, validated, written whole, and removed."""
