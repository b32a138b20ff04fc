"""GPUs brought up and looked at, released, regained, switched to MIG, or given another driver."""
