"""Integrations with other libraries, which use only expdb's public API.

The other modules of expdb do not import them.
"""
