"""What a project needs to be deployed.

``queues`` has the list of queues, ``derived`` the files that follow from an application, ``azd``
the hooks of azd, and ``github`` the sign-in of a workflow.
"""
