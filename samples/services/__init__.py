"""Simulated remote services with injected faults: stock, payment, shipping, mail and carrier.

``faults`` decides which call fails and how. ``ledger`` records what a service did. ``contract``
defines the HTTP requests and answers. ``service`` implements one service, ``carrier`` the slow
one, and ``remote`` runs all of them.
"""
