"""Lazy, memory-mapped readers of checkpoint files."""
