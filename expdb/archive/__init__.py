"""Eviction by a policy, and the Parquet files that it leaves."""
