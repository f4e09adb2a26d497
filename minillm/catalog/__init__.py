"""Models and accelerators as data, with unit, source and date."""
