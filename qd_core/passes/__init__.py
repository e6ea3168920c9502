"""Transforms of functions and programs, one a file."""
