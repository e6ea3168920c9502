"""What tests of the library and of its backends are made of."""
