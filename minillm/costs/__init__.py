"""Formulas for bytes, FLOPs and ceilings, as plain arithmetic on their arguments."""
