"""Publishing: the MigNode, ResourceSlices and the status of claims."""
