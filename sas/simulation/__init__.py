"""The ports in memory, with a virtual clock and faults that a test asks for."""
