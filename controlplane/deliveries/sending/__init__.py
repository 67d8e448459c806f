"""The way of a rendered message out: HTTP to a checked address, or e-mail.

An attempt's end is a value (``Outcome``), also where the endpoint hangs, resets or lies: what it
does is never an error of the worker.
"""
