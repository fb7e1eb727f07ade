"""What a project needs to be deployed.

``queues`` has the list of queues, ``derived`` the files that follow from an application. ``azd``
has the hooks of azd, with ``owner`` (what only an owner may do) and ``tidying`` (what is taken
away). ``package`` makes the zip, ``deploy`` uploads it, and ``smoke`` looks at what runs.
``github`` signs a workflow in. ``backup`` copies the table. ``commands`` calls az, azd and gh.
"""
