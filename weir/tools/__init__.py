"""Tools beside a running job: previews of a restore, comparison of outputs, loading of scripts."""
