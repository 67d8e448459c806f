"""The pages: rows as people read them, kept up to date while they look.

A page is rendered on the server from plain values. ``job.snapshot`` puts the same values into an
event and ``job.details`` into an answer, so that the browser's later values agree with the first
ones. Views read through ``queries`` and act through the services of ``jobs`` and ``checkpoints``;
forms work without JavaScript. Names and tones of states are decided in ``base.status``, the look of
numbers in ``controlplane.base.formatting``, and every picture in ``figures``.
"""
