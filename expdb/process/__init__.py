"""Utilities for locks, threads, exits, temporary folders and the liveness of processes."""
