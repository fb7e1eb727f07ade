"""A short test of each tool of the lab."""
