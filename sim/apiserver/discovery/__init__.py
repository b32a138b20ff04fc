"""Discovery: the groups, versions and resources that are served, told to clients."""
