"""The sub-commands of `run-om`, one file each; imported by name when called."""
