"""What executes a step plan: one small protocol, several implementations."""

from minillm.backends.create import BACKENDS, create_backend

__all__ = ["BACKENDS", "create_backend"]
