"""Bytes to messages and back. Input is parsed once, where it enters, or refused with a reason."""
