"""Remote services that can be trusted to fail: stock, payment, shipping, mail and carrier.

``faults`` says which call fails and how, ``ledger`` what each service did, ``contract``
what is said over HTTP, ``service`` answers for one service, ``carrier`` for the one that
takes its time, ``remote`` runs all of them.
"""
