"""Text forms that the command line and the pages share: conditions, episodes and metrics."""
