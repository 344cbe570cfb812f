"""Ordinary users of expdb's public face, one ecosystem each; nothing of expdb imports them."""
