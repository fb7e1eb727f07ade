"""The ports in memory, with a virtual clock and faults on demand."""
