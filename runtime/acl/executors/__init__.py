"""What executes a GE-IR graph on the host device."""
