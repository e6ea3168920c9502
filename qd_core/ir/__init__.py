"""Typed, structured SSA: op table, nodes, builder, text form, verifier."""
