"""Values, queues and tables that everything uses."""
