"""Bytes to messages and back: parsed once, at the door, and refused with a clear sentence."""
