"""Doctor: the checks of an installation."""
