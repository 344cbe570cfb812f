"""From rows to values: which steps match, and what they hold."""
