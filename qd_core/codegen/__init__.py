"""Toolkits that backends generate code with."""
