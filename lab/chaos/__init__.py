"""Chaos: real orders over real processes while everything around them fails."""
