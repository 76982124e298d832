"""Decoding: the draft tree, its verification in one target pass, acceptance, and the loops around them."""
