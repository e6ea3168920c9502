"""Everything that a plugin sees: the contract, capabilities, hooks, and the registry that finds backends."""
