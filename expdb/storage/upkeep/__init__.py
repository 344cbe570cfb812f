"""Checking, copying and measuring a database."""
