"""Evict steps by a policy, and archive them in Parquet files."""
