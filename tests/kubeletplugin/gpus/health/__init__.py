"""Health of GPUs: XIDs, and GPUs that are lost or hang."""
