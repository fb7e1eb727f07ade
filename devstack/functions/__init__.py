"""An embedded host that runs a Python v2 function app unchanged."""
