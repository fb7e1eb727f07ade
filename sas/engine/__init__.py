"""The engine: commits decisions and sends their messages."""
