"""The folder that host processes of a chaos run have in PYTHONPATH."""
