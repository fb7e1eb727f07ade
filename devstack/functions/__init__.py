"""An embedded host that runs a Python v2 function app unchanged.

async with Host(app_dir, settings={"ServiceBusConnection": "Endpoint=sb://..."}) as host:
    ...

python -m devstack.functions APP_DIR [--only NAME,NAME] [--http-port 0]
"""
