"""Fitting a head: the target writes its corpus, the head learns to foresee it, the engine says how well."""
