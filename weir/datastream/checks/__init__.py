"""The looks at what a script says, before its job runs: each refusal says what to write instead.

``arguments`` and ``inputs`` check what methods are given, ``remarks`` warns of pipelines that can
hardly mean what they do, ``uncaught`` cuts Weir's own frames from a traceback.
"""
