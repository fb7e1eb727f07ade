"""The state store over Azure Table Storage.

Each module has one task in a transition:

* ``operations`` **builds**: it turns a ``Change`` into operations on rows. ``keys`` and ``rows``
  say how a row is named and what its columns hold.
* ``group_transaction`` **sends** the operations as one entity group transaction, once. ``table``
  sends all other requests, and retries them. It also tells a refusal from an unknown outcome.
* ``store`` **recognises our own write**: it is the port that the actors use. It decides what a
  refusal or an unknown outcome means for the order. Its theory of operation is the place to start.
* ``purge`` removes finished orders.
"""
