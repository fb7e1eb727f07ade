"""A deployment rehearsed here, from the artefact and nothing else: ``make rehearse``."""
