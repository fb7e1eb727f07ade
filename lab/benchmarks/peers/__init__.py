"""The same saga on this project and on its peers, side by side: see README.md."""
