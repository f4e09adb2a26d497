"""The fault that no request is to blame for."""


class EngineError(RuntimeError):
    """The engine or its backend broke a rule: a fault of the code, not of a request."""
