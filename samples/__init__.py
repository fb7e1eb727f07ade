"""Real orders, the fallible services they are played against, and the demo."""
