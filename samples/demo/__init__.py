"""The demo: real orders through the whole pattern while services fail and a process is killed."""
