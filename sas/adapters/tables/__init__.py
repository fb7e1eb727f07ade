"""The state store over Azure Table Storage.

Each module has one task in a transition:

* ``operations`` **builds**: it turns a ``Change`` into operations on rows. ``keys`` and ``rows``
  say how a row is named and what its columns hold.
* ``group_transaction`` **sends** the operations as one entity group transaction; ``table`` sends
  all other requests. ``table`` also retries, and tells a refusal from an unknown outcome.
* ``store`` **recognises our own write**: it is the port that the actors use, and decides what a
  refusal or an unknown outcome means for the order.
* ``purge`` removes finished orders.
"""
