"""Subcommands of ``python -m qd_core``, one module each.

A module of this package has ``configure(parser)``, which adds its arguments, and ``run(options) -> int``, which does
the work and returns the exit status. It is imported only when its subcommand is called.
"""
