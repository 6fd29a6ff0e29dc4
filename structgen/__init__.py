"""structgen: output that always matches the schema."""
