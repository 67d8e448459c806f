"""Everything Weir needs, started from what pip installed: no service, no container, no account.

A server here is the real one: PostgreSQL and Redis run from the binaries of two wheels, on a free
port of the loopback interface, with a password that is made on the first start and kept in a file
only its owner can read. Nothing in this package is used when ``DATABASE_URL`` and ``REDIS_URL``
point at servers of one's own.

- ``process``: one process: started, awaited, stopped, found again after its starter died
- ``server``, ``postgres``, ``redis``: the two servers, each on a directory of its own
- ``program``: one of Weir's own processes
- ``stack``: all of them, watched, restarted and ended together
"""
