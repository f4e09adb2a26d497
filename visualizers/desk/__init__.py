"""The desk: an engine that goes on while it is watched, with requests sent into it and plots that follow.

`session` drives one or two engines without knowing a page; `app` shows a session in a marimo notebook.
"""
