"""GPUs that are let go of, regained, switched to MIG, or get another driver."""
