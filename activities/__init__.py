"""What our deployment runs as activities: the model and the tools."""
