"""Reading and writing `.om` files."""
