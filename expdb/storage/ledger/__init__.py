"""Consumers of a buffer, and what was handed out to them."""
