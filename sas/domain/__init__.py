"""The pattern itself: states, workflows, decisions. No clock, no await, no I/O; stdlib only."""
