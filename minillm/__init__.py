"""A real LLM inference engine, small enough to read in an evening."""

__version__ = "0.1.0"
