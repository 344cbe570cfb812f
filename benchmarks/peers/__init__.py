"""expdb beside the buffers that people use now.

The same data and the same work, each in an environment of its own.
"""
