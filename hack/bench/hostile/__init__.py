"""Tenants who stop, starve or mislead a controller, hostile or merely ordinary, as load."""
