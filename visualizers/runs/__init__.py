"""Workloads on the engine that figures and notebooks show: no drawing here."""
