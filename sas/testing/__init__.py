"""The whole system in memory, with a virtual clock and faults chosen by a seed.

Our tests, ``sas sim`` and the tests of an adopter use it.
"""
