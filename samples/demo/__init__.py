"""The demo: real orders pass through the whole pattern while services fail."""
