"""Proves the table of rules: every strategy of every op, on generated instances, against what the op computes globally."""
