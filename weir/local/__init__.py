"""A cluster inside one process, with the operators and channels of a real one."""
