"""Microsoft's own live tests against the broker: a shim and the list of what is left out."""
