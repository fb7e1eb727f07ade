"""``sas new`` and ``sas upgrade``: a project of one's own on the installed packages."""
