"""Secrets of the job in a process: received, given out by name, and masked in its output.

Standard library only, for the supervisor of a slot masks as well, and imports neither NumPy nor
Arrow.

- ``job_secrets``: the values, from the launcher's pipe, the job master or the environment;
- ``masking``: texts, messages and streams in which values become ``***``;
- ``masked_output``: standard output and error of a process through such a stream.
"""
