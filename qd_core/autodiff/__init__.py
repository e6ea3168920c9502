"""Automatic differentiation: reverse and forward mode as transforms from function to function."""
