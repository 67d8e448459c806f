"""A cluster inside one process, with the operators and workers of a real one."""
