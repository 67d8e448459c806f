"""The pages: a job's rows rendered as text, updated live.

A page is rendered on the server from plain values. ``job.snapshot`` puts the same values into an
event and ``job.details`` into an answer, so that the browser's later values agree with the first
ones. The pages of jobs and checkpoints, and the overview, have ``queries`` of their own. A page
acts through the services of ``jobs`` and ``checkpoints``; forms work without JavaScript. Names and
tones of states are decided in ``base.status``, the look of numbers in
``controlplane.base.formatting``, Plotly's figures in ``figures``, the operator graph in ``graph``.
"""
