"""From a checkpoint to an `.om` artefact."""
