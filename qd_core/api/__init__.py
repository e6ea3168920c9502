"""What users see: kernels, fields, types and functions of the language."""
