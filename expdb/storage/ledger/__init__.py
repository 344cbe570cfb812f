"""Consumers of a buffer, their leases, and rate limits."""
