"""The seeded simulator: one whole life of a job from one number.

``clock``, ``network`` and ``cluster`` replace time, connections and processes; ``pipelines`` draws
jobs whose output is known; ``simulation`` runs them, ``operations`` takes savepoints and goes back
meanwhile, ``control_plane`` is the coordinator apart from its drivers, ``lines`` the plain reading
of lineage. ``strategies`` draws streams with barriers for property tests.
"""
