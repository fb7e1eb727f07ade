"""Break the code on purpose, and see what finds it."""
