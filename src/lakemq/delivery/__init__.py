"""Who gets which message, and when."""
