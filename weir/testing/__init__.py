"""Doubles and simulations for tests of Weir and of pipelines; production code imports none of it.

``faults`` is the exception: named points in production code, which do nothing unless armed.
``clock``, ``network`` and ``cluster`` replace time, lines and processes; ``pipelines`` makes random
jobs whose output is known; ``simulation`` runs one whole life of such a job from a seed.
``strategies`` draws streams with barriers for property tests.
"""
