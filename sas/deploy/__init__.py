"""What a project needs to be deployed.

``queues`` has the list of queues, ``derived`` the files that follow from an application,
``package`` the zip. ``azd`` has the hooks of azd, with ``owner`` (what only an owner may do) and
``tidying`` (what is taken away), and ``github`` the sign-in of a workflow. ``commands`` calls az,
azd and gh.
"""
