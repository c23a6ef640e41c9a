"""Tensor-parallel ranks as threads of this process, and the sums between them.

`comm` is the seam, `rendezvous` is where ranks meet, `group` runs them, and `linear` holds
one rank's part of a matrix.
"""
