"""Three remote services that can be trusted to fail: stock, payment and shipping.

``faults`` says which call fails and how, ``ledger`` what each service did, ``contract``
what is said over HTTP, ``service`` answers for one service, ``remote`` runs all three.
"""
