"""Curves: what a step costs as something grows, at sizes that double. README.md says how to add one."""
