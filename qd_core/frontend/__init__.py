"""From Python functions to IR: signatures, the kernel language, and its lowering."""
