"""The pages: rows as people read them, kept up to date while they look.

A page is rendered on the server from plain values, the same ones that ``live.snapshot`` puts into
an event and ``details.of`` into an answer, so that what the browser fills in later agrees with what
came first. Views read through ``queries`` and act through the services of ``jobs`` and
``checkpoints``; forms work without JavaScript. What a state is called and which tone it has is
decided in ``status``, how numbers look in ``controlplane.base.formatting``, and every picture in
``figures``.
"""
