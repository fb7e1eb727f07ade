"""What `devstack` tells whoever runs it: one sentence each, saying what to do."""


class DevstackError(Exception):
    """Base of every error raised on purpose here; its text is meant for people."""


class ChildFailedError(DevstackError):
    """A child process did not get ready, or died when nobody had asked it to."""


class NotInstalledError(DevstackError):
    """Something this machine needs is missing; the sentence says how to get it."""
