"""One file per actor of the pattern: each loads, lets the domain decide, commits, sends."""
