"""LakeMQ beside the brokers people would pick instead: one load program, one definition of the work, in turns."""
