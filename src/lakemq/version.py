"""The version, where both the package and its build can read it."""

VERSION = "0.1.0.dev0"
