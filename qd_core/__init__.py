"""qd-core: parallel Python kernels with exact gradients, on pluggable backends."""
