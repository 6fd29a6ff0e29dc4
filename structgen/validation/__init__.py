"""Parts of the exact JSON Schema validator; `structgen.validate` is the front."""
