"""What runs in a peer's own Python: the saga written for it, and the driver of the load."""
