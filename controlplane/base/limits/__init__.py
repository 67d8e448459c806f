"""Limits on the share of the service that one client may take.

``addresses`` decides whose a request is, ``rates`` and ``counters`` count over time, ``throttling``
does so for the API, ``admission`` bounds what is open at once.
"""
