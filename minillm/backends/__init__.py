"""What executes a step plan: one small protocol, several implementations."""
