"""An embedded host that runs a Python v2 function app unchanged.

async with Host(app_dir, settings={"ServiceBusConnection": "Endpoint=sb://..."}) as host:
    ...

python -m devstack.functions APP_DIR [--only NAME,NAME] [--http-port 0]

Why a host of our own: tests start an app in several processes, kill any of them, and look inside.
Core Tools allows none of that, and Microsoft's ``azure-functions-runtime`` has no listener, timer
or HTTP server. So this host copies the 5.x extension for Service Bus (options, trigger metadata,
settlement, lock renewal), and a test compares it with Microsoft's worker core.
"""
