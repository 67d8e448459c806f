"""The control plane on one machine, from installed wheels alone: no service, container or account.

The servers are the real ones: PostgreSQL and Redis run from the binaries of two wheels, on a free
port of the loopback interface, with a password that is generated on the first start and kept in a
file that only its owner can read. This package is not used when ``DATABASE_URL`` and ``REDIS_URL``
point at other servers.

- ``process``: one process: started, awaited, stopped, found again after its starter died
- ``server``, ``postgres``, ``redis``: the two servers, each on a directory of its own
- ``program``: one of Weir's own processes
- ``fork_server``: a process that has imported what those need, and forks them
- ``stack``: all services, watched, restarted and ended together
"""
