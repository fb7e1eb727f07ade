"""Mutants that nobody chose: mutmut's operators make them, the fast layers of tests hunt them."""
