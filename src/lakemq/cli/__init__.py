"""The command line: one module per noun, each loading only what it needs."""
