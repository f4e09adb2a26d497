"""Figures of the handbook: one module and one contract each, every level derived from it."""
