"""pagedom: paged KV caches and packed sequences in offline `.om` models."""
