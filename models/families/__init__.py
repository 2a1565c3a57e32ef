"""Model families: one file a `model_type`."""
