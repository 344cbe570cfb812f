"""Which steps a batch holds, and what each becomes. Knows NumPy: no files, no SQL, no Arrow."""
