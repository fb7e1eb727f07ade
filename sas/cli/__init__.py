"""The ``sas`` command of applications and operators. ``main`` runs it."""
