"""Features around the core: each whole in its own room, called from few named places."""
