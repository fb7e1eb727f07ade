"""The pattern without a clock, an await or I/O: states, workflows, decisions. Standard library only."""
