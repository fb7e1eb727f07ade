"""Features around the core, each in its own folder or file. See ``sas.engine.hooks``."""
