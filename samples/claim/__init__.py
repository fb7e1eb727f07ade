"""A saga in one file, and its tests in one more."""
