"""The frozen domain types. Import from the modules; this face holds nothing of its own."""
