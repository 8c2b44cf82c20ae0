"""Built-in models and losses, and building modules by name."""
