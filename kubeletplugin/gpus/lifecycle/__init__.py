"""GPUs brought up and looked at, let go of, regained, switched to MIG, or given another driver."""
